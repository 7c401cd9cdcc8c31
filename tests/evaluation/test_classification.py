"""Classification by hand."""

import numpy as np
import pytest

from plsc.evaluation import classify


def test_classification_by_hand():
    label = np.array([0, 0, 0, 2, 2, 1])
    found = classify(label, np.array([0, 0, 2, 2, 2, 2]))
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


def test_an_image_that_no_class_fits_best_is_wrong():
    """For a tie the head gives C, the class count. All logits of a black picture are the same."""
    assert classify(np.array([0, 1, 2]), np.array([0, 3, 3])).accuracy == 1 / 3
