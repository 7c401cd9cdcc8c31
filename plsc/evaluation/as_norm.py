"""Normalise the scores of pairs by a cohort, embeddings of other classes: AS-norm, as in speaker
verification.

An embedding that is like everybody has high cosines with strangers, too. Of its cosines with the cohort the
`top` largest have a mean m and a standard deviation s, and the score of the pair (a, b) is the mean of (cos -
m_a) / s_a and (cos - m_b) / s_b (Matejka et al., Analysis of Score Normalization in Multilingual Speaker
Recognition, Interspeech 2017, adaptive S-norm).

    with_as_norm(verify_pairs(embeddings, pairs, same), embeddings, pairs, Cohort(centres, 300))

Letters: N embeddings, D their size, P pairs, K of the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.verification import Verification, verify_distances
from plsc.utils.vectors import unit_rows

_BLOCK = 1 << 22  # cosines at once: 32 MB
_LEAST_DEVIATION = 1e-6  # of an embedding that is like all of the cohort alike, as one of zeros is


@dataclass(frozen=True)
class Cohort:
    """Embeddings [K, D] of any length, float, none of a class that is verified; `top` of them count for each
    embedding."""

    embeddings: np.ndarray
    top: int

    def __post_init__(self):
        if not 2 <= self.top <= len(self.embeddings):
            raise UserError(
                f"--as-norm: must be at least 2, and at most the {len(self.embeddings):,} of the cohort (got {self.top})"
            )


def with_as_norm(
    result: Verification, embeddings: np.ndarray, pairs: np.ndarray, cohort: Cohort
) -> Verification:
    """Return the result with `normalised`, the same pairs by their normalised scores.

    Args:
        result: of `verify_pairs` with these embeddings [N, D] and pairs int64 [P, 2].
    """
    scores = as_norm(result.similarity, embeddings, pairs, cohort)
    # Only the order of scores counts. Their unit is a deviation, not a cosine, so they are scaled to [-1, 1]
    # for the grid of thresholds.
    largest = np.abs(scores).max() or 1.0
    normalised = verify_distances(2 - 2 * scores / largest, result.same)
    normalised = replace(normalised, people=result.people, of_pair=result.of_pair)
    note = f"AS-norm: by the {cohort.top:,} most alike of {len(cohort.embeddings):,} class centres."
    return replace(result, normalised=normalised, notes=[*result.notes, note])


def as_norm(similarity: np.ndarray, embeddings: np.ndarray, pairs: np.ndarray, cohort: Cohort) -> np.ndarray:
    """Normalise the cosines [P] of pairs int64 [P, 2] of embeddings [N, D] -> scores [P] float64."""
    mean_N, deviation_N = _statistics(embeddings, cohort)
    z_P2 = (similarity[:, None] - mean_N[pairs]) / deviation_N[pairs]
    return z_P2.mean(axis=1)


def _statistics(embeddings: np.ndarray, cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of each embedding's `top` largest cosines with the cohort, [N]
    float64 each."""
    cohort_KD = unit_rows(cohort.embeddings.astype(np.float64))
    mean_N, deviation_N = np.empty(len(embeddings)), np.empty(len(embeddings))
    block = max(1, _BLOCK // len(cohort_KD))
    for start in range(0, len(embeddings), block):
        rows = slice(start, start + block)
        cosine_nK = unit_rows(embeddings[rows].astype(np.float64)) @ cohort_KD.T
        top_nk = np.partition(cosine_nK, -cohort.top, axis=1)[:, -cohort.top :]
        mean_N[rows] = top_nk.mean(axis=1)
        deviation_N[rows] = top_nk.std(axis=1)
    return mean_N, deviation_N.clip(min=_LEAST_DEVIATION)
