from collections import Counter

import numpy as np
import pytest

from plsc.data.loader import Loader
from plsc.data.samplers import PK, Balanced, Sampler, Shuffle
from plsc.data.synthetic import Synthetic
from plsc.data.transforms import ORDER, generator
from plsc.errors import UserError

# Classes with 1, 2, 3, 7 and 40 samples, in no order, and class 5 with none.
LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3, 4, 6], [1, 2, 3, 7, 40, 9]))
CLASSES = [0, 1, 2, 3, 4, 6]


class Fixed(Sampler):
    """Sample 3 four times, then 0 to 6, in every epoch."""

    def __len__(self):
        return 11

    def order(self, epoch):
        return np.concatenate([np.full(4, 3), np.arange(7)])


class Labelled(Synthetic):
    """The samples of LABELS."""

    def __init__(self):
        super().__init__(7, 10)
        self.labels = LABELS


def test_shuffle_has_the_order_of_runs_before_there_were_samplers():
    for epoch in (0, 3):
        expected = generator(5, epoch, use=ORDER).permutation(20)
        assert np.array_equal(Shuffle(20, seed=5).order(epoch), expected)


def test_the_loader_cuts_what_the_sampler_gives():
    def epoch_of(rank):
        loader = Loader(Synthetic(5, 2), 4, rank, 2, seed=0, sampler=Fixed())
        assert loader.steps_per_epoch == 1  # the rest, 3 samples, is less than two on each rank
        return [indices.tolist() for _, _, indices in loader.epoch(1)]

    assert epoch_of(0) == [[3, 3, 3, 3, 0, 1]] and epoch_of(1) == [[2, 3, 4, 5, 6]]
    loader = Loader(Synthetic(5, 2), 4, 0, 1, seed=0, sampler=Fixed())
    assert [indices.tolist() for _, _, indices in loader.epoch(1, 1)] == [[0, 1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("per_class", [None, 1, 3, 50])
def test_balanced_shows_each_class_equally_often_and_its_samples_in_turn(per_class):
    sampler = Balanced(LABELS, seed=1, per_class=per_class)
    each = per_class or 10  # 62 samples of 6 classes
    shown = Counter()
    for epoch in range(5):
        order = sampler.order(epoch)
        assert order.dtype == np.int64 and len(order) == len(sampler) == 6 * each
        assert Counter(LABELS[order].tolist()) == dict.fromkeys(CLASSES, each)
        shown.update(order.tolist())
        for label in CLASSES:
            times = [shown[index] for index in np.flatnonzero(LABELS == label).tolist()]
            assert max(times) - min(times) <= 1


def test_balanced_mixes_the_classes():
    order = LABELS[Balanced(LABELS, seed=1, per_class=500).order(0)]
    for half in (order[:1500], order[1500:]):
        counts = np.bincount(half, minlength=7)[CLASSES]
        assert np.all(np.abs(counts - 250) < 60)  # over 5 standard deviations


@pytest.mark.parametrize(
    "samples, global_batch", [(1, 6), (2, 4), (4, 12), (4, 20), (4, 24), (3, 15), (10, 50)]
)
def test_every_batch_of_pk_is_p_classes_by_k(samples, global_batch):
    sampler = PK(LABELS, seed=2, samples=samples, global_batch=global_batch)
    different = global_batch // samples
    assert len(sampler) % global_batch == 0 and len(sampler) > 0
    for epoch in range(4):
        order = sampler.order(epoch)
        assert order.dtype == np.int64 and len(order) == len(sampler)
        for batch in order.reshape(-1, different, samples):
            classes = LABELS[batch]
            assert np.all(classes == classes[:, :1])
            assert len(set(classes[:, 0].tolist())) == different
            for group in batch:
                times = Counter(group.tolist())
                there = min(samples, int(np.sum(LABELS == LABELS[group[0]])))
                assert len(times) == there and max(times.values()) - min(times.values()) <= 1
        often = Counter(LABELS[order[::samples]].tolist())
        assert max(often.values()) - min(often[label] for label in CLASSES) <= 1
    assert abs(len(sampler) - len(LABELS)) <= samples * 6 / 2 + global_batch


def test_pk_shows_samples_again_only_when_all_of_the_class_were_shown():
    sampler = PK(LABELS, seed=2, samples=3, global_batch=6)
    for epoch in range(3):
        times = np.bincount(sampler.order(epoch), minlength=len(LABELS))
        for label in CLASSES:
            assert np.ptp(times[LABELS == label]) <= 1


def test_pk_takes_other_classes_together_in_each_batch():
    labels = np.repeat(np.arange(40), 20)
    batches = labels[PK(labels, seed=0, samples=2, global_batch=8).order(0)].reshape(-1, 8)
    together = {tuple(sorted(set(batch.tolist()))) for batch in batches}
    assert len(together) == len(batches) == 100


@pytest.mark.parametrize("make", [lambda seed: Balanced(LABELS, seed), lambda seed: PK(LABELS, seed, 4, 8)])
def test_orders_differ_by_epoch_and_seed_and_come_again(make):
    orders = [make(seed).order(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
    assert make(0).order(1).tolist() == orders[1]


@pytest.mark.parametrize(
    "make",
    [lambda: Balanced(LABELS, seed=3, per_class=12), lambda: PK(LABELS, 3, samples=6, global_batch=24)],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_steps_are_the_same_on_any_number_of_ranks(make, num_workers):
    def steps(world_size, start_step=0):
        """The global batches: those of the ranks one after the other."""
        loaders = [
            Loader(Labelled(), 24 // world_size, rank, world_size, 3, num_workers, sampler=make())
            for rank in range(world_size)
        ]
        ranks = [[indices.tolist() for _, _, indices in loader.epoch(1, start_step)] for loader in loaders]
        for loader in loaders:
            loader.close()
        return [[index for part in parts for index in part] for parts in zip(*ranks)]

    one = steps(1)
    assert len(one) == 3 and all(len(step) == 24 for step in one)
    assert steps(2) == one
    if num_workers == 0:
        assert steps(4) == one
    assert steps(2, start_step=1) == one[1:]


def test_impossible_batches_are_refused():
    with pytest.raises(UserError) as raised:
        PK(LABELS, 0, samples=5, global_batch=24)
    assert str(raised.value) == "samples: the global batch, 24 samples, must be a multiple of it (got 5)"
    with pytest.raises(UserError) as raised:
        PK(LABELS, 0, samples=3, global_batch=24)
    assert str(raised.value) == (
        "samples: a global batch of 24, 3 samples of each class, needs 8 classes, the data has 6; raise it, or lower "
        "DataLoader.Train.batch_size"
    )
