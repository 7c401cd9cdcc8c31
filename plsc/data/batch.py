"""Make a batch: write its samples into its memory, and replace corrupt samples by others.

Drawing a substitute depends only on (seed, index), so it is the same for any number of ranks and
processes. corrupt_images.py limits how many images are replaced. Try it:

    make_batch(Synthetic(), 0, 0, np.arange(2), np.empty((2, 1, 32, 32), np.uint8))
"""

import contextlib

import numpy as np

from plsc.data.dataset import Dataset, check_image
from plsc.data.transforms import SUBSTITUTES, generator
from plsc.errors import CorruptImageError, UserError

REDRAWS = 100  # substitutes that are tried for one image

Replacement = tuple[int, int, int]  # row in the batch, corrupt sample, sample that replaces it


class SampleError(RuntimeError):
    """Reports that a data set failed to make a sample. The message names the sample and the cause."""


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

    Returns: the replacements of corrupt samples.

    Raises UserError or SampleError.
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
    """Write a sample into `image`, whose shape and dtype it must have. Raises UserError or SampleError."""
    try:
        made = dataset.sample(index, epoch)
        what = f"{type(dataset).__name__}.sample({index})"
        image[...] = check_image(made, image.shape, lambda: f"{what} ({dataset.name(index)})")
    except UserError:
        raise
    except Exception as error:
        what = f"sample {index} ({dataset.name(index)})"
        raise SampleError(f"{what}: {type(error).__name__}: {error}") from error
