"""What the tests of pictures share: something to draw, and reports that have pictures."""

import contextlib

import numpy as np
import pytest

from plsc.evaluation import identify, report
from plsc.evaluation.verification import verify_distances

DRAW = report.draw  # the tests' other reports have no pictures


@contextlib.contextmanager
def drawn():
    """Have pictures in the reports that are written inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", DRAW)
        yield


def verification(negatives=1000, seed=0):
    positives = 300
    rng = np.random.default_rng(seed)
    same = rng.permutation(np.arange(positives + negatives) < positives)
    cosine = np.clip(np.where(same, 0.6, 0.0) + 0.2 * rng.normal(size=len(same)), -1, 1)
    return verify_distances(2 - 2 * cosine, same)


def identification(identities=60):
    rng = np.random.default_rng(0)
    identity = np.repeat(np.arange(identities), 3)
    embeddings = rng.normal(size=(identities, 8))[identity] + 0.8 * rng.normal(size=(len(identity), 8))
    images = np.arange(len(identity))
    return identify(embeddings, images[::3], images[1::3], identity)
