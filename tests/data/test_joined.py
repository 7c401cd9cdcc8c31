"""Several sets in one: whose samples, which classes, and which names. What does not fit is refused."""

import numpy as np

from plsc.data.dataset import Dataset, shared_identities
from plsc.data.joined import Joined
from plsc.data.synthetic import Synthetic
from tests.helpers.refusals import refusal


class People(Dataset):
    """Two images of each person. A pixel tells the set, the index and the epoch."""

    title = ""

    def __init__(self, title, people, shape=(1, 4, 4)):
        self.image_shape = shape
        self.labels = np.repeat(np.arange(len(people)), 2)
        self.num_classes = len(people)
        self.identities = np.array(people)
        self.title = title

    def sample(self, index, epoch):
        return np.full(self.image_shape, 5 * index + epoch % 5 + ord(self.title[0]) % 2, np.uint8)

    def name(self, index):
        return f"{index}.jpg"


def joined(*parts):
    return Joined({f"dataset.{number}": part for number, part in enumerate(parts)})


def test_classes_lie_one_set_after_the_other_and_their_names_differ():
    first, second = People("a", ["Ann", "Bob"]), People("b", ["Cy", "Ann", "Di"])
    data = joined(first, second, second)
    assert (len(data), data.num_classes, data.labels.dtype) == (16, 8, np.int64)
    assert data.labels.tolist() == [number // 2 for number in range(16)]
    assert data.class_names == ["Ann", "Bob", "Cy", "2/Ann", "Di", "3/Cy", "3/Ann", "3/Di"]
    # What verification must not share is compared by the identities, not by the names in checkpoints.
    assert shared_identities(data.identities, np.array(["Ann", "Zed"])).tolist() == ["Ann"]
    assert data.title == "a + b + b"
    assert joined(People("a", ["Ann"]), Synthetic(3, 2, (1, 4, 4))).identities is None


def test_samples_are_those_of_the_sets():
    first, second = People("a", ["Ann", "Bob"]), People("b", ["Bob", "Cy"])
    data = joined(first, second)
    assert np.array_equal(data.sample(3, 2), first.sample(3, 2))
    assert np.array_equal(data.sample(5, 2), second.sample(1, 2))
    assert [data.name(3), data.name(4)] == ["a: 3.jpg", "b: 0.jpg"]
    assert data.preprocessing == first.preprocessing
    assert data.images(3, 5).shape == (2, 1, 4, 4)


def test_samples_of_another_shape_are_refused():
    assert refusal(joined, People("a", ["Ann", "Bob"]), People("b", ["Ann", "Cy"], (3, 4, 4))) == (
        "dataset.1: its samples have shape [3, 4, 4] (dataset.0 has [1, 4, 4]), channels RGB (dataset.0 has "
        "grey); all sets must have the same"
    )
