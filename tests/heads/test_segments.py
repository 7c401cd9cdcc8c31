"""Row sums per class against a loop."""

import numpy as np
import paddle
import pytest

from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.segments import ClassSums
from tests.heads.ways import without_kernels
from tests.helpers.bounds import EPS


@without_kernels
@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [2], [3, 1], [1, 4, 2, 7, 1], [64], [5] * 9])
def test_each_class_has_the_sum_of_its_rows(counts):
    classes = np.repeat(np.arange(len(counts)) * 3 + 2, counts)
    rows = np.random.default_rng(0).standard_normal((len(classes), 5)).astype(np.float32)
    sums = ClassSums(classes)
    assert np.array_equal(sums.class_U.numpy(), np.unique(classes))
    want = np.stack([rows[classes == one].astype(np.float64).sum(axis=0) for one in np.unique(classes)])
    bound = 8 * EPS * np.stack([np.abs(rows[classes == one]).sum(axis=0) for one in np.unique(classes)])
    assert (np.abs(sums.of(paddle.to_tensor(rows)).numpy() - want) <= bound).all()


@without_kernels
def test_nothing_is_quadratic_in_the_global_batch(monkeypatch):
    """Neither a tensor nor the count of operators grows with N^2."""
    largest = []
    for name in ("matmul", "gather", "concat"):
        original = getattr(paddle, name)

        def watched(*args, original=original, **keywords):
            out = original(*args, **keywords)
            largest.append(out.size)
            return out

        monkeypatch.setattr(paddle, name, watched)
    N, D = 2048, 4
    head = make_head(8, D, CosFace(0.3), scale=8.0)
    emb = paddle.ones([N, D])
    emb.stop_gradient = False
    head(emb, np.arange(N) % 8, 0, counts=[N]).loss.backward()
    assert largest and max(largest) <= 2 * N * 8
