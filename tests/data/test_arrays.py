"""Samples and labels in .npy files: numbers, names, classes held out, pairs of these, and what is refused."""

import pickle

import numpy as np
import pytest

from plsc.data.arrays import ArrayPairs, Arrays, open_npy
from plsc.data.loader import Loader
from plsc.errors import MissingFileError, UserError

NAMES = np.array([f"p{number:02}" for number in range(30)])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """x.npy: row i is full of i; y.npy: three rows of each name, in no order; numbers.npy: the same as
    numbers."""
    monkeypatch.chdir(tmp_path)
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 3))
    np.save("x.npy", np.broadcast_to(np.arange(90, dtype=">f4")[:, None, None], (90, 2, 5)))
    np.save("y.npy", NAMES[owners])
    np.save("numbers.npy", owners.astype(np.uint8))
    return owners


def test_the_samples_are_the_rows_and_the_names_the_classes(files):
    data = Arrays("x.npy", "y.npy", scale=2.0)
    assert data.preprocessing.samples == "float32 [2, 5]" and data.preprocessing.scale == 2
    assert data.num_classes == 30 and np.array_equal(data.identities, NAMES) and data.title == "x.npy"
    assert np.array_equal(data.labels, files) and data.labels.dtype == np.int64
    assert np.array_equal(data.images(7, 9)[:, 0, 0], [7, 8]) and data.name(7) == "x.npy row 7"
    numbered = Arrays("x.npy", "numbers.npy")
    assert np.array_equal(numbered.labels, files) and numbered.identities is None


@pytest.mark.parametrize("labels", ["y.npy", "numbers.npy"])
def test_who_is_held_out_is_in_the_pairs_and_not_in_the_training(files, labels):
    data = Arrays("x.npy", labels, hold_out=0.3)
    pairs = ArrayPairs("x.npy", labels, hold_out=0.3)
    trained = {int(data.sample(index, 0)[0, 0]) for index in range(len(data))}
    verified = {int(pairs.image(index)[0, 0]) for index in range(pairs.num_images)}
    assert not trained & verified and {*files[[*trained]]}.isdisjoint(files[[*verified]])
    assert len(trained) + 3 * len({*files[[*verified]]}) == 90 and 0 < len(verified)
    assert np.array_equal(np.unique(data.labels), np.arange(data.num_classes))
    first, second = (files[[int(pairs.image(index)[0, 0]) for index in column]] for column in pairs.pairs.T)
    assert np.array_equal(first == second, pairs.same) and pairs.same.any() and not pairs.same.all()
    if labels == "y.npy":
        assert {*pairs.identities} | {*data.identities} == {*NAMES}


def test_worker_processes_make_the_same_batches(files):
    batches = []
    for workers in (0, 1):
        loader = Loader(Arrays("x.npy", "y.npy"), 16, 0, 1, seed=3, num_workers=workers)
        batches.append([(images.copy(), labels) for images, labels, _ in loader.epoch(0)])
        loader.close()
    assert len(batches[0]) == 6
    for (images, labels), (others, same) in zip(*batches):
        assert np.array_equal(images, others) and np.array_equal(labels, same)
    assert len(pickle.dumps(Arrays("x.npy", "y.npy"))) < 20_000, "the samples stay in the file"


def test_what_is_refused(files):
    np.save("objects.npy", np.array([{}, {}], object), allow_pickle=True)
    np.save("gap.npy", np.where(files == 4, 30, files))
    np.save("short.npy", files[:-1])
    np.save("flat.npy", np.zeros(90))
    cases = [
        (("flat.npy", "y.npy"), "flat.npy: must be numbers [N, ...], a sample a row, got float64 [90]"),
        (("x.npy", "gap.npy"), "gap.npy: has label 5 and none 4; number the classes 0, 1, 2, ... without gaps"),
        (("x.npy", "short.npy"), "short.npy: must have a whole number or a name for each of the 90 rows of x.npy, got int64 [89]"),
        (("x.npy", "objects.npy"), "objects.npy: is no .npy file of numbers (Array can't be memory-mapped: Python objects in dtype.)"),
    ]  # fmt: skip
    for given, message in cases:
        with pytest.raises(UserError) as raised:
            Arrays(*given)
        assert str(raised.value) == message
    with pytest.raises(UserError, match="/dev/null: is a device, no regular file"):
        open_npy("/dev/null")
    with pytest.raises(MissingFileError, match="samples: file 'none.npy' does not exist"):
        Arrays.check(samples="none.npy", labels="y.npy")
