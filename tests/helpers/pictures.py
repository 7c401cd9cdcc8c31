"""What the tests of pictures share: the style that they are drawn in, something to draw, and reports that
have pictures."""

import contextlib

import matplotlib
import numpy as np
import pytest

from plsc.evaluation import identify, verify_distances
from plsc.evaluation.report import figures, html
from plsc.evaluation.report.style import STYLE


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context(STYLE):
        yield


@contextlib.contextmanager
def drawn():
    """Have pictures in the reports that are written inside the block; the tests' other reports have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "draw", figures.draw)
        yield


def verification(negatives=1000, seed=0):
    positives = 300
    rng = np.random.default_rng(seed)
    same = np.arange(positives + negatives) < positives
    cosine = np.clip(np.where(same, 0.6, 0.0) + 0.2 * rng.normal(size=len(same)), -1, 1)
    return verify_distances(2 - 2 * cosine, same)


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def identification(identities=60):
    images, identity, embeddings = _three_images_each(identities)
    return identify(embeddings, images[::3], images[1::3], identity)


def _three_images_each(identities):
    rng = np.random.default_rng(0)
    identity = np.repeat(np.arange(identities), 3)
    embeddings = rng.normal(size=(identities, 8))[identity] + 0.8 * rng.normal(size=(len(identity), 8))
    return np.arange(len(identity)), identity, embeddings
