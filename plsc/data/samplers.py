"""Choose the order of the samples in an epoch.

An order depends on seed, epoch and labels alone, so it is the same on any number of ranks; the loader cuts it
into global batches and gives each rank its slice. To see one:

    Shuffle(10, seed=0).order(epoch=3)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from plsc.data.transforms import MIXTURE, ORDER, generator
from plsc.errors import UserError
from plsc.utils.memory import refuse_beyond_memory


class Sampler(ABC):
    """Gives the order of each epoch; `len` is the number of samples of an epoch, the same in every one."""

    repeats = True  # whether a sample may come several times in an epoch

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """Choose the samples of an epoch: a new array int64 [len(self)] of indices, of which some may be
        missing and others repeat."""


class Shuffle(Sampler):
    """Permutes all `count` samples, anew in each epoch."""

    repeats = False

    def __init__(self, count: int, seed: int):
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def order(self, epoch: int) -> np.ndarray:
        return generator(self._seed, epoch, use=ORDER).permutation(self._count)


class _Classes:
    """The samples of `labels` (int64 [N]) grouped by class; classes without a sample are left out.

    counts, starts: int64 [C], where the samples of each class lie among the N.
    """

    def __init__(self, labels: np.ndarray):
        counts = np.bincount(labels)
        self.counts = counts[counts > 0]
        self.starts = np.cumsum(self.counts) - self.counts
        self._samples = np.argsort(labels, kind="stable")

    def __len__(self) -> int:
        return len(self.counts)

    def permuted(self, rng: np.random.Generator) -> np.ndarray:
        """Permute the samples of each class: the indices of all samples, int64 [N], class after class."""
        keys = rng.random(len(self._samples))
        keys += np.repeat(np.arange(len(self)), self.counts)
        # The keys are nearly in order already, which a stable sort uses: five times as fast as another.
        return self._samples[np.argsort(keys, kind="stable")]


class Balanced(Sampler):
    """Shows every class `per_class` times in an epoch, however many samples it has, in random order.

    A class's samples take turns, through all epochs: it shows one again when all of them have been shown.
    `labels`: int64 [N].
    `per_class`: None: the mean number of samples of a class, rounded, so that an epoch is about as long as
    the set.
    """

    def __init__(self, labels: np.ndarray, seed: int, per_class: int | None = None):
        self._seed = seed
        self._classes = _Classes(labels)
        self._samples = self._classes.permuted(generator(seed, index=1, use=ORDER))
        self._per_class = per_class or round(len(labels) / len(self._classes))
        count = self._per_class * len(self._classes)
        refuse_beyond_memory(
            24 * count,
            f"per_class: the order of {count:,} samples an epoch",
            "lower it, or take the mean, null",
        )

    def __len__(self) -> int:
        return self._per_class * len(self._classes)

    def order(self, epoch: int) -> np.ndarray:
        turns = epoch * self._per_class + np.arange(self._per_class)
        places = turns % self._classes.counts[:, np.newaxis]
        places += self._classes.starts[:, np.newaxis]
        return generator(self._seed, epoch, use=ORDER).permutation(self._samples[places].ravel())


class PK(Sampler):
    """Fills each global batch with K samples of each of P different classes, those of a class one after the
    other.

    The classes come in passes, each a permutation of all: an epoch shows every class as often as makes it
    about as long as the set, at least once, but for the fewer than P classes of the last pass that would not
    fill a batch. The samples of a class are permuted anew in each epoch and taken in turn; one with fewer
    than K repeats them in a batch. As PaddleClas's PKSampler, after Hermans et al., In Defense of the Triplet
    Loss (2017), and Luo et al., Bag of Tricks and a Strong Baseline for Deep Person Re-identification (CVPR
    workshops 2019), who take P = 16, K = 4.

    Args:
        labels: int64 [N]. samples: K. global_batch: P x K.

    Raises UserError for a batch that is no multiple of K, or has more classes than there are.
    """

    def __init__(self, labels: np.ndarray, seed: int, samples: int, global_batch: int):
        self._seed = seed
        self._classes = _Classes(labels)
        self._samples = samples
        self._batch_classes, rest = divmod(global_batch, samples)
        if rest:
            raise UserError(
                f"samples: the global batch, {global_batch} samples, must be a multiple of it (got {samples})"
            )
        if self._batch_classes > len(self._classes):
            raise UserError(
                f"samples: a global batch of {global_batch}, {samples} of each class, needs {self._batch_classes:,} "
                f"classes, the data has {len(self._classes):,}; raise it, or lower DataLoader.Train.batch_size, accumulate or global_batch"
            )
        self._passes = max(1, round(len(labels) / (samples * len(self._classes))))

    def __len__(self) -> int:
        classes = self._passes * len(self._classes)
        return (classes - classes % self._batch_classes) * self._samples

    def order(self, epoch: int) -> np.ndarray:
        rng = generator(self._seed, epoch, use=ORDER)
        classes = self._class_order(rng)
        turns = np.arange(len(classes)) // len(self._classes) * self._samples
        places = turns[:, np.newaxis] + np.arange(self._samples)
        places %= self._classes.counts[classes][:, np.newaxis]
        places += self._classes.starts[classes][:, np.newaxis]
        return self._classes.permuted(rng)[places].ravel()

    def _class_order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the class of each group of an epoch, int64 [len(self) / K]. No batch has a class twice."""
        count = len(self._classes)
        order = np.empty(self._passes * count, np.int64)
        for start in range(
            0, len(order), count
        ):  # never more passes than batches, since a batch's classes differ
            new = rng.permutation(count)
            begun = start % self._batch_classes
            if begun:  # the last pass has begun a batch: fill it with others than its classes
                others = np.flatnonzero(~np.isin(new, order[start - begun : start]))
                filling = others[: self._batch_classes - begun]
                new = np.concatenate([new[filling], np.delete(new, filling)])
            order[start : start + count] = new
        return order[: len(self) // self._samples]


class Mixture(Sampler):
    """Takes from each of several sets its share of an epoch, in random order.

    An epoch has as many samples as all sets together, weight / sum of the weights of them from each set,
    rounded so that they add up. The samples of a set come one permutation after another, through all epochs:
    an epoch goes on where the one before has stopped, so that all samples of a set are shown equally often,
    whatever its weight.

    Args:
        starts: the first sample of each set, and the number of all, int64 [sets + 1].
        weights: more than 0 each, [sets].

    Raises UserError for a weight that gives a set no sample.
    """

    def __init__(self, starts: np.ndarray, weights: Sequence[float], seed: int):
        self._seed = seed
        self._starts = starts[:-1]
        self._sizes = np.diff(starts)
        self.counts = share_out(
            int(starts[-1]), np.array(weights, np.float64)
        )  # samples of each set in an epoch
        if not self.counts.all():
            raise UserError(
                f"weight: {weights[int(np.argmin(self.counts))]:g} of {sum(weights):g} in all gives no sample in an epoch of "
                f"{starts[-1]:,}; raise it, or leave the set out"
            )

    def __len__(self) -> int:
        return int(self.counts.sum())

    def order(self, epoch: int) -> np.ndarray:
        taken = [self._take(number, epoch) for number in range(len(self._sizes))]
        return generator(self._seed, epoch, use=ORDER).permutation(np.concatenate(taken))

    def _take(self, number: int, epoch: int) -> np.ndarray:
        """Take the samples of a set in an epoch out of the row of its permutations."""
        size, count = int(self._sizes[number]), int(self.counts[number])
        first, skipped = divmod(epoch * count, size)
        passes = range(first, first - (-(skipped + count) // size))
        rows = [generator(self._seed, each, number, MIXTURE).permutation(size) for each in passes]
        return np.concatenate(rows)[skipped : skipped + count] + self._starts[number]


def share_out(total: int, weights: np.ndarray) -> np.ndarray:
    """Share `total` out in proportion to the weights: whole numbers, int64, the rest to the largest
    fractions."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return counts
