"""Vectors of any length: both ways through a shard give the same numbers, or a loss that is not finite."""

import numpy as np
import paddle
import pytest

from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.optimizer import Momentum
from tests.heads.ways import with_kernels

C, D, N = 40, 16, 6
LENGTHS = [0.0, 1e-30, 1e-16, 1e-8, 1.0, 1e8, 1e19, 1e22, float("inf"), float("nan")]
SKIPPED = {1e22, float("inf")}
rng = np.random.default_rng(0)
unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
EMBEDDINGS, CENTRES = unit(rng.standard_normal((N, D))), unit(rng.standard_normal((C, D)))
LABELS = np.array([3, 7, 7, 12, 30, 39])


def step(embeddings, centres, margin=CosFace, **options):
    """-> losses, accuracy, gradients by embeddings and centres."""
    head = make_head(C, D, margin(0.3), scale=8.0, rule=Momentum(0.0), **options)
    head.bank.load_rows(0, {"centres": centres.astype(np.float32)})
    emb = paddle.to_tensor(embeddings.astype(np.float32), stop_gradient=False)
    out = head(emb, LABELS, 0, counts=[N])
    out.loss.backward()
    gradients = [emb.grad.numpy(), out.selection.gradients()["centres"].numpy()]
    return [out.losses_B.numpy(), np.float32(out.accuracy.item()), *gradients]


def scaled(rows, number, length):
    rows = rows.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        rows[number] *= length
    return rows


def near(found, want, floor=0.0):
    return np.abs(found - want).max() <= max(1e-5 * np.abs(want).max(), floor)


@with_kernels
@pytest.mark.parametrize("margin", [CosFace, ArcFace])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("what", ["embedding", "centre", "own centre", "all embeddings"])
def test_both_ways_agree_or_skip_the_step(what, length, margin, monkeypatch):
    embeddings, centres = EMBEDDINGS, CENTRES
    if what.endswith("centre"):
        centres = scaled(CENTRES, 7 if what == "own centre" else 20, length)
    else:
        embeddings = scaled(EMBEDDINGS, 2 if what == "embedding" else slice(None), length)
    found = step(embeddings, centres, margin)
    monkeypatch.setenv("PLSC_KERNELS", "0")
    for budget in (1 << 20, 4000):
        want = step(embeddings, centres, margin, budget=budget)
        if np.isnan(length) or length in SKIPPED:
            assert not np.isfinite(found[0].mean()) and not np.isfinite(want[0].mean())
            continue
        for one, other in zip(found, want):
            # Vectors with very different lengths have gradients with very different sizes, so rows are
            # compared one by one.
            assert np.isfinite(one).all() and np.isfinite(other).all()
            rows = zip(np.atleast_2d(one), np.atleast_2d(other)) if one.ndim == 2 else [(one, other)]
            # Operators take what counts as zero at 1e-11 of its direction.
            assert all(near(x, y, 1e-11 if length < 1e-18 else 0.0) for x, y in rows)


@pytest.mark.parametrize("length", [0.0, 1e-30])
def test_a_vector_without_a_direction_has_no_gradient(length):
    _, _, by_embeddings, by_centres = step(scaled(EMBEDDINGS, 2, length), scaled(CENTRES, 7, length))
    assert not by_embeddings[2].any() and not by_centres[7].any()
    assert np.count_nonzero(by_embeddings.any(axis=1)) == N - 1
    assert np.count_nonzero(by_centres.any(axis=1)) == C - 1


def test_small_lengths_are_not_bent():
    """The loss depends on directions alone."""
    want = step(EMBEDDINGS, CENTRES)[0]
    for length in (1e-16, 1e-8, 1e8, 1e18):
        assert near(step(EMBEDDINGS * length, CENTRES * length)[0], want)


@pytest.mark.parametrize("embeddings", [np.zeros((N, D)), np.ones((N, D))], ids=["dead", "alike"])
def test_a_tie_is_not_a_hit(embeddings):
    centres = np.eye(C, D)[[0] * C]  # all products are exact in any order of the sums
    assert step(embeddings, centres)[1] == 0
    head = make_head(C, D, CosFace(0.3))
    head.bank.load_rows(0, {"centres": centres.astype(np.float32)})
    assert (head.classify(paddle.to_tensor(embeddings.astype(np.float32)))[0].numpy() == C).all()


@pytest.mark.parametrize("classes", [1, C])
def test_an_embedding_without_a_known_length_has_no_class(classes):
    head = make_head(classes, D, CosFace(0.3))
    found, similarity = head.classify(paddle.to_tensor(scaled(EMBEDDINGS, 2, 1e22).astype(np.float32)))
    assert found[2].item() == classes and np.isnan(similarity[2].item())
    assert (found.numpy()[[0, 1, 3, 4, 5]] < classes).all()
