"""Make a batch: write its samples into its memory, and replace corrupt samples by others.

Drawing a substitute depends only on (seed, index), so it is the same for any number of ranks and
processes. The substitute brings its own label. If REDRAWS substitutes for one image cannot be decoded either,
the training ends. corrupt_images.py limits how many images are replaced. Try it:

    make_batch(Synthetic(), 0, 0, np.arange(2), np.empty((2, 1, 32, 32), np.uint8))
"""

import contextlib

import numpy as np

from plsc.data.dataset import Dataset, make_sample
from plsc.data.transforms import SUBSTITUTES, generator
from plsc.errors import CorruptImageError

REDRAWS = 100  # substitutes that are tried for one image

Replacement = tuple[int, int, int]  # row in the batch, corrupt sample, sample that replaces it


def make_batch(
    dataset: Dataset, seed: int, epoch: int, indices: np.ndarray, images: np.ndarray
) -> list[Replacement]:
    """Write a batch's samples into its memory.

    Args:
        dataset: the data set.
        seed: the run's seed, from which substitutes are drawn.
        epoch: epoch number, which the augmentation depends on.
        indices: int64 [B], sample indices.
        images: uint8 [B, *shape], the memory to write to.

    Returns the replacements of corrupt samples.

    Raises UserError if a sample cannot be made.
    """
    replaced = []
    for row, index in enumerate(indices.tolist()):
        try:
            images[row] = make_sample(dataset, index, epoch, images.shape[1:])
        except CorruptImageError as error:
            substitute = _make_substitute(dataset, seed, epoch, index, images[row], error)
            replaced.append((row, index, substitute))
    return replaced


def _make_substitute(
    dataset: Dataset, seed: int, epoch: int, index: int, image: np.ndarray, error: CorruptImageError
) -> int:
    draws = generator(seed, index=index, use=SUBSTITUTES).integers(len(dataset), size=REDRAWS)
    for substitute in draws.tolist():
        with contextlib.suppress(CorruptImageError):
            image[...] = make_sample(dataset, substitute, epoch, image.shape)
            return substitute
    raise CorruptImageError(
        f"{error}; {REDRAWS} other images drawn instead cannot be decoded either"
    ) from error
