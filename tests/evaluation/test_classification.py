"""Classification by hand, and the images that nothing can be said about."""

import numpy as np
import pytest

from plsc.evaluation import classify
from tests.helpers.refusals import refusal


def test_classification_by_hand():
    label = np.array([0, 0, 0, 2, 2, 1])
    found = classify(label, np.array([0, 0, 2, 2, 2, 2]), num_classes=4)
    assert found.kind == "classification" and found.headline == "accuracy 66.67 %"
    assert found.row() == {"accuracy": 4 / 6, "images": 6}
    assert found.results() == {
        "images": "6 of 3 classes",
        "accuracy (top-1)": "66.67 % (30.00 to 90.32)",
        "in brackets": "95 % confidence interval (Wilson)",
    }
    numbers = found.numbers()
    assert found.row().items() <= numbers.items()
    assert numbers["confidence_95"]["accuracy"] == pytest.approx((0.3, 0.9032), abs=1e-4)


@pytest.mark.parametrize("lost", [3, -1])
def test_an_image_without_a_prediction(lost):
    assert refusal(classify, np.array([0, 1, 2]), np.array([0, lost, lost]), 3) == (
        "classification: image 1 has no finite logit (2 such images); the network has diverged or its images "
        "are broken, lower the learning rate or check them"
    )
