"""Make a batch: write its samples one after another into its memory, and replace corrupt ones by others.

A substitute is drawn from (seed, index), so it is the same on any number of ranks and processes. How many may
be replaced is up to corrupt.py.
"""

import contextlib

import numpy as np

from plsc.data.dataset import Dataset, check_image
from plsc.data.transforms import SUBSTITUTES, generator
from plsc.errors import CorruptImageError, UserError

REDRAWS = 100  # substitutes tried for one image

Replacement = tuple[int, int, int]  # row of the batch, corrupt sample, the sample that took its place


class SampleError(RuntimeError):
    """Reports that a data set failed to make a sample; the message names the sample and the cause."""


def make_batch(
    dataset: Dataset, seed: int, epoch: int, indices: np.ndarray, images: np.ndarray
) -> list[Replacement]:
    """Write samples `indices` into `images` [B, *shape], as augmented in an epoch.

    Returns the replacements of corrupt ones. Raises UserError, SampleError.
    """
    replaced = []
    for row, index in enumerate(indices.tolist()):
        try:
            make_sample(dataset, epoch, index, images[row])
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
            make_sample(dataset, epoch, substitute, image)
            return substitute
    raise CorruptImageError(f"{error}; and so are {REDRAWS} others drawn instead") from error


def make_sample(dataset: Dataset, epoch: int, index: int, image: np.ndarray) -> None:
    """Write a sample into `image`, whose shape and dtype it must have. Raises UserError, SampleError."""
    try:
        made = dataset.sample(index, epoch)
        what = f"{type(dataset).__name__}.sample({index})"
        image[...] = check_image(made, image.shape, lambda: f"{what} ({dataset.name(index)})")
    except UserError:
        raise
    except Exception as error:
        what = f"sample {index} ({dataset.name(index)})"
        raise SampleError(f"{what}: {type(error).__name__}: {error}") from error
