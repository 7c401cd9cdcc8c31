import itertools
import threading

import numpy as np
import pytest

from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from tests.data.counting import Counting
from tests.helpers.refusals import refusal


def one_epoch(loader, epoch):
    return loader.from_step(epoch * loader.steps_per_epoch)


def epoch_of(data, global_batch, world_size, epoch=0, **kwargs):
    """The indices of each rank's batches: [rank][step] -> list."""
    loaders = [Loader(data, global_batch, rank, world_size, seed=5, **kwargs) for rank in range(world_size)]
    return [[batch.indices.tolist() for batch in one_epoch(loader, epoch)] for loader in loaders]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [8, 24, 25, 47, 50])
def test_every_sample_once_and_enough_on_each_rank(size, world_size):
    ranks = epoch_of(Counting(size), 4 * world_size, world_size)
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(size))
    assert len({len(batches) for batches in ranks}) == 1
    for step in zip(*ranks):
        lengths = [len(batch) for batch in step]
        assert min(lengths) >= 2 and max(lengths) - min(lengths) <= 1
    for batches in ranks:
        assert all(len(batch) == 4 for batch in batches[:-2])


def test_the_global_order_does_not_depend_on_ranks():
    def flat(ranks):
        return [i for step in zip(*ranks) for batch in step for i in batch]

    one = flat(epoch_of(Counting(50), 12, 1))
    assert one == flat(epoch_of(Counting(50), 12, 2)) == flat(epoch_of(Counting(50), 12, 3))
    assert one != list(range(50)) and one != flat(epoch_of(Counting(50), 12, 1, epoch=1))


@pytest.mark.parametrize(
    ("global_batch", "planned", "size"), [(96, 3, 195), (96, 3, 199), (10, 5, 43), (10, 2, 40), (10, 5, 10)]
)
def test_a_kept_global_batch_has_the_same_samples_on_any_number_of_ranks(global_batch, planned, size):
    """Rests with 3 samples join the step before them, also on one rank, which could make a step from them."""

    def steps(world_size):
        ranks = epoch_of(Counting(size), global_batch, world_size, micro_batches=planned)
        for step in zip(*ranks):
            lengths = [len(batch) for batch in step]
            assert min(lengths) >= 2 and max(lengths) - min(lengths) <= 1
        return [[i for batch in step for i in batch] for step in zip(*ranks)]

    one = steps(1)
    assert len(one) == max(1, size // global_batch + (size % global_batch >= 2 * planned))
    assert all(len(step) == global_batch for step in one[:-1])
    assert sorted(i for step in one for i in step) == list(range(size))
    for world_size in (2, 3) if size == 199 else (2, 3, 4, 5):
        assert steps(world_size) == one


def test_a_short_rest_joins_the_batch_before_it():
    assert [len(batch) for batch in epoch_of(Counting(17), 8, 1)[0]] == [8, 9]
    assert [len(batch) for batch in epoch_of(Counting(18), 8, 1)[0]] == [8, 8, 2]
    assert [[len(batch) for batch in rank] for rank in epoch_of(Counting(19), 8, 2)] == [[4, 6], [4, 5]]
    assert Loader(Counting(17), 8, 0, 1, seed=0).steps_per_epoch == 2


@pytest.mark.parametrize(("size", "global_batch", "planned"), [(7, 4, None), (199, 96, 3)])
def test_ranks_must_have_two_samples_each_in_the_last_step(size, global_batch, planned):
    """If the set is too small, and if more ranks than planned share a rest."""
    assert refusal(Loader, Counting(size), global_batch, 0, 4, seed=0, micro_batches=planned) == (
        "the last step of an epoch has 7 samples, 4 ranks need at least 8 (two each); start 3 or fewer"
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_can_start_at_any_step(num_workers):
    loader = Loader(Counting(40), 4, 0, 1, seed=1, num_workers=num_workers)
    whole = [batch.images for batch in one_epoch(loader, 2)]
    rest = [batch.images for batch in loader.from_step(27)]
    assert len(whole) == 10 and len(rest) == 3
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], rest))


def test_processes_change_no_bit():
    data = Synthetic(num_classes=9, images_per_class=7, image_shape=(3, 20, 24), seed=2)

    def batches(num_workers):
        loader = Loader(data, 16, rank=1, world_size=2, seed=4, num_workers=num_workers)
        return [batch for epoch in (0, 1) for batch in one_epoch(loader, epoch)]

    reference = batches(0)
    assert len(reference) == 8
    for num_workers in (1, 3):
        other = batches(num_workers)
        assert len(other) == len(reference)
        for ours, theirs in zip(reference, other):
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(ours[:3], theirs[:3]))


@pytest.mark.parametrize("num_workers", [0, 3])
def test_an_abandoned_epoch_leaves_nothing_behind(num_workers):
    loader = Loader(Counting(40), 4, 0, 1, seed=1, num_workers=num_workers)
    expected = [batch.indices.tolist() for batch in loader.from_step(0)]
    for _ in loader.from_step(10):
        break
    images = [batch.images[:, 0, 0] for batch in loader.from_step(0)]
    assert [image[:, 0].tolist() for image in images] == expected
    assert all(np.all(image[:, 1] == 0) for image in images)


def test_two_batches_are_prepared_ahead():
    class Noting(Counting):
        def __init__(self, size):
            super().__init__(size)
            self.asked, self.twelfth = [], threading.Event()

        def sample(self, index, epoch):
            self.asked.append(index)
            if len(self.asked) == 12:
                self.twelfth.set()
            return super().sample(index, epoch)

    data = Noting(40)
    batches = Loader(data, 4, 0, 1, seed=1).from_step(0)
    indices = next(batches).indices
    assert data.twelfth.wait(timeout=30)
    assert data.asked[:4] == indices.tolist() and len(data.asked) == 12


def test_time_spent_waiting_is_counted(monkeypatch):
    loader = Loader(Counting(8), 4, 0, 1, seed=1)
    assert loader.wait_seconds == 0
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    waits = []
    for epoch in range(2):
        next(one_epoch(loader, epoch))
        waits.append(loader.wait_seconds)
    assert 0 < waits[0] < waits[1]
