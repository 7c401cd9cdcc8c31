"""Load batches: choose the samples of each rank's batches and make the batches in a thread or in processes.

An epoch's order depends only on (seed, epoch). A sample depends only on (seed, epoch, index). The
batches are therefore bit-identical for any number of processes. To see a batch:

    loader = Loader(Synthetic(), global_batch=4, rank=0, world_size=1, seed=0)
    images = next(loader.from_step(0)).images
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from plsc.data.balanced import balanced_length, balanced_order
from plsc.data.batch import Replacement, make_batch
from plsc.data.corrupt_images import CorruptImages
from plsc.data.dataset import Dataset
from plsc.data.transforms import ORDER, generator
from plsc.data.workers import Workers
from plsc.errors import UserError
from plsc.utils.sharding import split

AHEAD = 2  # batches in preparation for each process


class Batch(NamedTuple):
    """This rank's samples in a step.

    Attributes:
        images: uint8 [B, *shape].
        labels: int64 [B].
        indices: int64 [B], sample indices in the data set.
        step: step number, from 0.
        counts: how many samples each rank has in this step.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    step: int
    counts: list[int]


class Loader:
    """Yields the batches of one rank.

    Over all ranks, an epoch contains every sample once, in shuffled order. The last batch may be smaller. The
    step count does not depend on the world size if `micro_batches` is given.

    Args:
        dataset: the data set to train on.
        global_batch: samples per step, over all ranks. The ranks' shares differ by at most one.
        rank: this rank, from 0.
        world_size: how many ranks train.
        seed: the run's seed.
        num_workers: processes that make batches. With 0, a thread in this process makes them.
        micro_batches: how many micro-batches a whole global batch has, over all ranks. BatchNorm needs two
            samples. A last global batch with fewer than 2 samples per micro-batch is therefore joined to the
            one before it. None means one micro-batch per rank.
        per_class: images of each class that follow one another (plsc.data.balanced). An epoch then contains
            some images twice. If it is None, all images are shuffled.

    Raises UserError if an epoch or its last step is too small for `world_size`.
    """

    def __init__(
        self,
        dataset: Dataset,
        global_batch: int,
        rank: int,
        world_size: int,
        seed: int,
        num_workers: int = 0,
        micro_batches: int | None = None,
        per_class: int | None = None,
    ):
        count = balanced_length(dataset.labels, per_class) if per_class else len(dataset)
        self._per_class = per_class
        self.dataset, self.rank, self.world_size, self.seed = dataset, rank, world_size, seed
        self._num_workers = num_workers
        self._threads = max(num_workers, 1)  # for each process, one thread waits
        self.corrupt = CorruptImages(dataset)
        self.wait_seconds = 0.0  # total time that the consumer has waited for batches
        self.global_batch = global_batch
        starts = [*range(0, count, global_batch)]  # start of each global batch in the epoch's order
        if len(starts) > 1 and count - starts[-1] < 2 * (micro_batches or world_size):
            starts.pop()
        self._bounds = [*zip(starts, [*starts[1:], count])]
        if (last := count - starts[-1]) < 2 * world_size:
            raise UserError(
                f"the last step of an epoch has {last} samples, {world_size} ranks need at least "
                f"{2 * world_size} (two each); start {last // 2} or fewer"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Count an epoch's global batches, including a smaller last one."""
        return len(self._bounds)

    def shares(self, step: int) -> list[tuple[int, int]]:
        """Return the range (start, stop) of each rank's samples in the global batch of a step.

        step: step number, from 0, over all epochs.
        """
        start, stop = self._bounds[step % self.steps_per_epoch]
        return split(stop - start, self.world_size)

    def probe(self) -> None:
        """Try to decode some images before the first step.

        Raises CorruptImageError if too many cannot be decoded.
        """
        self.corrupt.probe(self.seed)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield this rank's batches from a step to its epoch's end.

        step: step number, from 0, over all epochs.

        If an image is corrupt, its label and index are those of the substitute. An error in a sample is
        raised here, when its batch is due: the data set's own UserError, or one with the sample and the
        cause.
        """
        self.corrupt.start_epoch()
        epoch, done = divmod(step, self.steps_per_epoch)
        order = self._order(generator(self.seed, epoch, use=ORDER))
        places = iter(range(done, self.steps_per_epoch))
        under_way: deque = deque()  # in order: the ranks' shares, indices, and the future of the images
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="plsc-loader")

        def refill() -> None:
            for place in itertools.islice(places, AHEAD * self._threads - len(under_way)):
                start, shares = self._bounds[place][0], self.shares(place)
                first, last = shares[self.rank]
                indices = order[start + first : start + last]
                under_way.append((shares, indices, pool.submit(self._make, self._make_batch, epoch, indices)))

        try:
            refill()
            while under_way:
                shares, indices, made = under_way.popleft()
                began = time.perf_counter()
                images, replaced_here = made.result()
                self.wait_seconds += time.perf_counter() - began
                self.corrupt.note(replaced_here)
                for row, _, substitute in replaced_here:
                    indices[row] = substitute
                refill()
                counts = [last - first for first, last in shares]
                yield Batch(images, self.dataset.labels[indices], indices, step, counts)
                step += 1
        finally:
            pool.shutdown(cancel_futures=True)

    def _order(self, draw: np.random.Generator) -> np.ndarray:
        if self._per_class:
            return balanced_order(self.dataset.labels, self._per_class, draw)
        return draw.permutation(len(self.dataset))

    @cached_property
    def _make_batch(self) -> Callable[[int, np.ndarray, np.ndarray], list[Replacement]]:
        if not self._num_workers:
            return partial(make_batch, self.dataset, self.seed)
        largest = max(split(stop - start, self.world_size)[0][1] for start, stop in self._bounds)
        return Workers(self.dataset, self.seed, self._num_workers, largest).make_batch

    def _make(
        self, make_batch: Callable, epoch: int, indices: np.ndarray
    ) -> tuple[np.ndarray, list[Replacement]]:
        images = np.empty((len(indices), *self.dataset.preprocessing.shape), np.uint8)
        return images, make_batch(epoch, indices, images)
