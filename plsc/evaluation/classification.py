"""Compute the classification accuracy: the share of images that the head assigns to their own class.

Try it:

    classify(np.array([0, 1, 1]), np.array([0, 1, 0])).headline
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plsc.evaluation.intervals import IN_BRACKETS, percent, wilson, with_interval


@dataclass(frozen=True)
class Classification:
    """The result of `classify`: how well the head predicts the images' classes.

    Attributes:
        images: image count.
        classes: how many classes these images have.
        accuracy: top-1 accuracy, the share of images whose predicted class is their own.
    """

    kind: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"
    notes: ClassVar[tuple[str, ...]] = ()
    images: int
    classes: int
    accuracy: float

    @property
    def headline(self) -> str:
        """The result in a few words."""
        return f"accuracy {percent(self.accuracy)}"

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval. It is Wilson's, because the images are
        independent."""
        return {"accuracy": wilson(self.accuracy, self.images)}

    def row(self) -> dict[str, float]:
        """Return the row for metrics.jsonl: {"accuracy", "images"}."""
        return {"accuracy": self.accuracy, "images": self.images}

    def numbers(self) -> dict:
        """Return the numbers for results.json: `row` and the intervals."""
        return {**self.row(), "confidence_95": self.intervals}

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit."""
        return {
            "images": f"{self.images:,} of {self.classes:,} classes",
            "accuracy (top-1)": with_interval(self.accuracy, self.intervals["accuracy"]),
            IN_BRACKETS: "95 % confidence interval (Wilson)",
        }


def classify(label: np.ndarray, predicted: np.ndarray) -> Classification:
    """Score predictions.

    Args:
        label: int64 [n], the images' classes.
        predicted: int64 [n], classes that the head found. If several classes fit an image equally, the head
            gives a number that is not a label. Such a prediction is wrong.
    """
    return Classification(len(label), len(np.unique(label)), float(np.mean(predicted == label)))
