"""Templates: combine one person's images and video frames into one feature, as the IJB benchmarks do.

It computes what InsightFace's published evaluation computes. The embeddings of each medium are averaged, so
that all frames of one video together count once. The means are summed over the media, and the sum is
normalised. The embeddings are not normalised before, so a longer embedding has a higher weight. Try it:

    template_features(np.eye(3, dtype=np.float32), np.array([0, 0, 1]), np.array([0, 1, 0]))
"""

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.search import row_lengths, unit_rows
from plsc.native.evaluation import verification as kernels

BLOCK_IMAGES = 16_384


def template_features(embeddings: np.ndarray, template: np.ndarray, media: np.ndarray) -> np.ndarray:
    """Compute the feature of each template.

    Args:
        embeddings: float [N, D], of any length.
        template: int64 [N], each image's template, from 0. T is the largest number plus 1.
        media: int64 [N], each image's picture or video. Equal numbers in different templates are
            different media.

    Returns float32 [T, D], unit rows. A feature whose sum is 0 stays 0. It is NaN if the length in float32 of
    one of its embeddings is not finite.

    Raises UserError if a template has no image.
    """
    images = np.bincount(template)
    if not images.all():
        raise UserError(
            f"templates: template {np.argmin(images)} has no image; number them 0, 1, ... without gaps"
        )
    order = np.lexsort((media, template))
    new = np.ones(len(order), bool)  # its medium's first image
    new[1:] = (np.diff(template[order]) != 0) | (np.diff(media[order]) != 0)
    size = np.diff(np.append(np.flatnonzero(new), len(order)))
    weight = 1 / np.repeat(size, size)  # the weights of a medium's images add up to 1
    starts = np.append(0, np.cumsum(images))
    total = _by_numpy
    if kernels.usable() and embeddings.dtype == np.float32 and embeddings.flags.c_contiguous:
        total = kernels.weighted_sums
    features = np.empty((len(images), embeddings.shape[1]), np.float32)
    first = 0
    while first < len(images):
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_IMAGES, side="right")) - 1)
        features[first:stop] = unit_rows(total(embeddings, order, weight, starts[first : stop + 1]))
        first = stop
    # The sums are float64, in which an embedding does not overflow whose float32 length does.
    features[template[np.isnan(row_lengths(embeddings.astype(np.float32, copy=False)))]] = np.nan
    return features


def _by_numpy(
    embeddings: np.ndarray, order: np.ndarray, weight: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    rows = slice(starts[0], starts[-1])
    weighted = embeddings[order[rows]] * weight[rows, None]
    return np.add.reduceat(weighted, starts[:-1] - starts[0], axis=0)
