import itertools
from collections import Counter

import numpy as np
import pytest

from plsc.data.loader import Loader, count_turns
from plsc.data.samplers import PK, Balanced, Mixture, Sampler, Shuffle, share_out
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
        loader = Loader(Synthetic(5, 2), 8, rank, 2, seed=0, sampler=Fixed())
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
    ("make", "num_workers"),
    [
        (lambda: Balanced(LABELS, seed=3, per_class=12), 0),
        (lambda: PK(LABELS, 3, samples=6, global_batch=24), 0),
        (lambda: PK(LABELS, 3, samples=6, global_batch=24), 1),
    ],
)
def test_steps_are_the_same_on_any_number_of_ranks(make, num_workers):
    def steps(world_size, start_step=0):
        """The global batches: those of the ranks one after the other."""
        loaders = [
            Loader(Labelled(), 24, rank, world_size, 3, num_workers, sampler=make())
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
        assert steps(4) == steps(5) == one
    assert steps(2, start_step=1) == one[1:]


def test_impossible_batches_are_refused():
    with pytest.raises(UserError) as raised:
        PK(LABELS, 0, samples=5, global_batch=24)
    assert str(raised.value) == "samples: the global batch, 24 samples, must be a multiple of it (got 5)"
    with pytest.raises(UserError) as raised:
        PK(LABELS, 0, samples=3, global_batch=24)
    assert str(raised.value) == (
        "samples: a global batch of 24, 3 of each class, needs 8 classes, the data has 6; raise it, or lower "
        "DataLoader.Train.batch_size, accumulate or global_batch"
    )


# -- a mixture of sets

STARTS = np.array([0, 30, 37, 100])


@pytest.mark.parametrize(
    ("weights", "counts"),
    [([1, 1, 2], [25, 25, 50]), ([1, 1, 1], [34, 33, 33]), ([0.97, 0.015, 0.015], [97, 2, 1])],
)
def test_a_mixture_takes_its_share_of_each_set(weights, counts):
    sampler = Mixture(STARTS, weights, seed=3)
    assert len(sampler) == 100 and sampler.counts.tolist() == counts
    for epoch in range(3):
        order = sampler.order(epoch)
        assert order.dtype == np.int64
        assert np.bincount(np.searchsorted(STARTS, order, "right") - 1).tolist() == counts
        assert np.array_equal(order, Mixture(STARTS, weights, seed=3).order(epoch))  # whatever came before it
        assert not np.array_equal(order, Mixture(STARTS, weights, seed=4).order(epoch))
        assert not np.array_equal(order, sampler.order(epoch + 1))


@pytest.mark.parametrize("weights", [[1, 1, 2], [0.97, 0.015, 0.015], [5, 1, 100]])
def test_all_samples_of_a_set_come_equally_often_across_epochs(weights):
    """After any number of epochs the numbers of times that two samples of a set came differ by one at
    most."""
    sampler, seen = Mixture(STARTS, weights, seed=0), np.zeros(100, int)
    for epoch in range(40):
        np.add.at(seen, sampler.order(epoch), 1)
        for start, stop in itertools.pairwise(STARTS):
            assert np.ptp(seen[start:stop]) <= 1


def test_the_sets_of_a_mixture_are_mixed_and_permuted():
    order = Mixture(STARTS, [30, 7, 63], seed=0).order(0)
    assert sorted(order.tolist()) == list(range(100))  # weights like the sizes: a plain epoch
    sets = np.searchsorted(STARTS, order, "right") - 1
    assert len(set(sets[:20].tolist())) > 1
    first = order[sets == 0]
    assert not np.array_equal(first, np.sort(first))


def test_a_weight_that_gives_no_sample_is_refused():
    with pytest.raises(UserError, match="weight: 1e-05 of 2.00001 in all gives no sample in an epoch of 100"):
        Mixture(STARTS, [1, 1, 1e-5], seed=0)
    assert share_out(10, np.array([1.0, 1.0, 1.0])).tolist() == [4, 3, 3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_comes_again_in_an_epoch_is_augmented_anew(num_workers):
    data = Synthetic(5, 2)
    loader = Loader(data, 4, 0, 1, seed=0, sampler=Fixed(), num_workers=num_workers)
    images, indices = (np.concatenate(parts) for parts in list(zip(*loader.epoch(1)))[::2])
    assert np.array_equal(images[0], data.sample(3, 1))  # the first time as in a plain epoch
    again = images[indices == 3]
    assert len(again) == 5 and len({image.tobytes() for image in again}) == 5
    assert count_turns(indices).tolist() == [0, 1, 2, 3, 0, 0, 0, 4, 0, 0, 0]
    loader.close()
