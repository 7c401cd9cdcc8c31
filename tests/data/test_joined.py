"""Several sets in one: whose samples, which classes, under which names; what does not fit is refused in a
line."""

import numpy as np
import pytest

from plsc.data.batch import make_batch
from plsc.data.dataset import Dataset, class_names, misnumbered_class, shared_identities
from plsc.data.joined import Joined
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from plsc.errors import CorruptImageError, UserError


class People(Dataset):
    """Two images of each person; a pixel says the set, the index and the epoch."""

    def __init__(self, title, people, shape=(1, 4, 4), corrupt=()):
        self.image_shape = shape
        self.labels = np.repeat(np.arange(len(people)), 2)
        self.num_classes = len(people)
        self.identities = np.array(people)
        self.corrupt = corrupt
        self._title = title

    @property
    def title(self):
        return self._title

    def sample(self, index, epoch):
        if index in self.corrupt:
            raise CorruptImageError(f"{self.name(index)}: not an image")
        return np.full(self.image_shape, 5 * index + epoch % 5 + ord(self._title[0]) % 2, np.uint8)

    def name(self, index):
        return f"{index}.jpg"


def joined(*parts, own=None):
    return Joined(
        {f"dataset.{number}": part for number, part in enumerate(parts)}, own or [False] * len(parts)
    )


def of(data, *indices):
    """-> names of the classes of these samples."""
    return [class_names(data)[label] for label in data.labels[list(indices)]]


def test_identities_of_the_same_name_are_one_class():
    first, second = People("a", ["Ann", "Bob", "Cy"]), People("b", ["Di", "Bob", "Ann"])
    data = joined(first, second)
    assert (len(data), data.num_classes, data.ranges) == (12, 4, [(0, 4)])
    assert class_names(data) == ["Ann", "Bob", "Cy", "Di"]
    assert of(data, 0, 2, 4, 6, 8, 10) == ["Ann", "Bob", "Cy", "Di", "Bob", "Ann"]
    assert data.labels.dtype == np.int64
    # Two Unicode forms of a name are one name.
    assert joined(People("a", ["Zo\u00eb", "Ann"]), People("b", ["Zoe\u0308", "Bob"])).num_classes == 3


def test_a_set_of_its_own_has_a_range_and_names_that_differ():
    first, second, third = People("a", ["Ann", "Bob"]), People("b", ["Ann", "Cy"]), People("c", ["Cy", "Bob"])
    data = joined(first, second, third, own=[False, True, False])
    assert data.ranges == [(0, 3), (3, 5)]
    assert class_names(data) == ["Ann", "Bob", "Cy", "b/Ann", "b/Cy"]
    assert data.identities.tolist() == ["Ann", "Bob", "Cy", "Ann", "Cy"]
    assert data.labels.tolist() == [0, 0, 1, 1, 3, 3, 4, 4, 2, 2, 1, 1]
    same = joined(People("a", ["Ann", "Bob"]), People("a", ["Ann", "Bob"]), own=[True, True])
    assert class_names(same) == ["Ann", "Bob", "a 2/Ann", "a 2/Bob"]
    # What verification must not share is compared by the identities, not by the names in checkpoints.
    assert shared_identities(data.identities, People("v", ["Cy", "Zed"]).identities).tolist() == ["Cy"]
    # Another order of the sets is found by the names.
    other = joined(second, first, third, own=[True, False, False])
    assert "class 1" in misnumbered_class(class_names(data), other, strangers=True)


def test_sets_without_names():
    data = joined(
        Synthetic(3, 2, (1, 4, 4)), People("b", ["Ann", "Bob"]), Synthetic(2, 2, (1, 4, 4)), own=[True] * 3
    )
    assert class_names(data)[::4] == ["Synthetic/0", "Bob"]
    assert class_names(data)[-1] == "Synthetic 2/1"
    assert shared_identities(data.identities, People("v", ["Bob", "0"]).identities).tolist() == ["Bob"]
    unknown = joined(Synthetic(3, 2), Synthetic(2, 2), own=[False, True])
    assert unknown.identities is None and len(class_names(unknown)) == 5


def test_samples_are_those_of_the_sets():
    first, second = People("a", ["Ann", "Bob"]), People("b", ["Bob", "Cy"])
    data = joined(first, second)
    assert np.array_equal(data.sample(3, 2), first.sample(3, 2))
    assert np.array_equal(data.sample(5, 2), second.sample(1, 2))
    assert [data.name(3), data.name(4)] == ["a: 3.jpg", "b: 0.jpg"]
    assert data.sets_of(np.array([0, 3, 4, 7])).tolist() == [0, 0, 1, 1]
    assert data.preprocessing == first.preprocessing
    assert data.images(3, 5).shape == (2, 1, 4, 4)


def test_a_corrupt_image_is_replaced_by_one_of_its_own_set():
    names = [f"p{number}" for number in range(20)]
    data = joined(People("a", names), People("b", names, corrupt=[5]), People("c", names))
    for seed in range(20):
        images = np.empty((1, 1, 4, 4), np.uint8)
        ((_, index, substitute),) = make_batch(data, seed, 0, np.array([45]), images)
        assert index == 45 and 40 <= substitute < 80


def test_data_workers_make_the_same_batches():
    data = joined(Synthetic(5, 4, (1, 8, 8)), Synthetic(3, 4, (1, 8, 8), seed=1), own=[True, True])
    here, there = (Loader(data, 8, 0, 1, 0, num_workers=count) for count in (0, 1))
    for ours, theirs in zip(here.epoch(1), there.epoch(1)):
        for one, other in zip(ours, theirs):
            assert np.array_equal(one, other)
    there.close()


@pytest.mark.parametrize(
    ("parts", "own", "line"),
    [
        (
            [People("a", ["Ann", "Bob"]), People("b", ["Ann", "Cy"], (3, 4, 4))],
            [False, False],
            "dataset.1: its samples have shape [3, 4, 4] ([1, 4, 4] in dataset.0), channels RGB (grey in dataset.0); sets that are",
        ),
        (
            [People("a", ["Ann"]), Synthetic(3, 2, (1, 4, 4))],
            [False, False],
            "dataset.1: its identities have no names",
        ),
        (
            [People("a", ["Ann"]), People("b", [1, 2])],
            [False, False],
            "dataset.1: its identities are numbers, those of dataset.0 text",
        ),
        ([People("a", ["Ann", "Bob"]), People("b", ["Cy"])], [False, True], "dataset.1: has 1 class"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(parts, own, line):
    with pytest.raises(UserError) as caught:
        joined(*parts, own=own)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_sets_that_share_no_name_are_warned_of(caplog):
    joined(People("a", ["Ann"]), People("b", ["Bob"]))
    assert any("no identity of one is in another" in record.getMessage() for record in caplog.records)
