"""The two kernels of the softmax against a dense float64 computation, at every instruction set, in float32
and bfloat16."""

import numpy as np
import pytest

from plsc import native as kernels
from plsc.native import onednn
from plsc.native.heads import softmax
from tests.helpers.bounds import HALF_EPS, assert_within, perturbed

S, K, D, N = 70, 41, 33, 9  # none is a multiple of a vector


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    rows, bias = rng.standard_normal((S, D)).astype(np.float32), rng.standard_normal(S).astype(np.float32)
    x = rng.standard_normal((N, D)).astype(np.float32)
    index = np.sort(rng.choice(S, K, replace=False))
    sample = rng.permutation(N)[:6]  # three samples' classes are in another shard
    return x, rows, bias, index, np.sort(rng.integers(0, K, 6)), sample


def dense(x, rows, bias, kept, ones, target_class, sample, factor, cosine):
    """Loss summed over the samples, and its gradients. The targets' logits are given their own gradient.

    kept, ones: [N, K], factors on the exponentials and on the logits' gradients. Both may be rounded there.
    """
    x, rows, bias = (array.astype(np.float64) for array in (x, rows, bias))
    length = np.linalg.norm(rows, axis=1, keepdims=True) if cosine else np.ones((len(rows), 1))
    unit = rows / length
    logit = x @ unit.T + bias
    logit[sample, target_class] = -np.inf
    largest = logit.max(axis=1)
    lse = (
        np.log(np.exp(logit - largest[:, None]).sum(axis=1)) + largest + 0.3
    )  # as if other shards had classes too
    dlogit = np.exp(logit - lse[:, None]) * kept
    dtarget = np.linspace(-1, -0.1, len(sample))
    dlogit[sample, target_class] = dtarget
    factors = dlogit * ones
    dunit = factors.T @ x * factor
    drows = (dunit - (dunit * unit).sum(axis=1, keepdims=True) * unit) / length if cosine else dunit
    return largest, lse, dtarget, factors @ unit, drows, factors.sum(axis=0)


# Any two among block, sampled, cosine, kept and bfloat16 take every pair of values.
PAIRWISE = [
    (1, False, False, False, False),
    (1, True, True, True, True),
    (16, False, True, False, True),
    (16, True, False, True, False),
    (512, False, True, True, False),
    (512, True, False, False, True),
]


@pytest.mark.parametrize("path", kernels.LEVELS, indirect=True)
@pytest.mark.parametrize("block,sampled,cosine,kept,bfloat16", PAIRWISE)
def test_against_float64(path, two_threads, block, sampled, cosine, kept, bfloat16, monkeypatch):
    if not kernels.multiplies() or (bfloat16 and not onednn.has_bfloat16()):
        pytest.skip("no such matrix product on this machine")
    monkeypatch.setattr(softmax, "BLOCK", block)
    x, rows, bias, index, target_class, sample = drawn()
    index = index if sampled else None
    chosen = slice(None) if index is None else index
    count = len(rows[chosen])
    bias = np.zeros_like(bias) if cosine else bias
    ones = np.ones((N, count), np.float32)
    rounded = kept or bfloat16
    exact = () if rounded else (ones,)  # exponentials that are computed again in float32 are not stored
    compute = lambda *inputs: dense(*inputs[:3], *exact, *inputs[3:], target_class, sample, 0.5, cosine)
    off = {"terms": 1, "eps": HALF_EPS} if bfloat16 else {"terms": K}
    (largest, lse, dtarget, *gradients), bound = perturbed(
        compute, x, rows[chosen], bias[chosen], *([ones] if rounded else []), ones, **off
    )

    exps = np.empty((count, N), softmax.kept_dtype(bfloat16)) if kept else None
    arrays = x, rows, None if cosine else bias, index, target_class, sample, exps
    one = softmax.Softmax(*arrays, cosine=cosine, bfloat16=bfloat16)
    max_bN, sum_bN = one.forward()
    got_drows, got_dbias = np.empty((count, D), np.float32), None if cosine else np.empty(count, np.float32)
    got_dx = one.backward(
        lse.astype(np.float32), dtarget.astype(np.float32), x * np.float32(0.5), got_drows, got_dbias
    )
    got_lse = np.log((sum_bN * np.exp(max_bN - max_bN.max(0))).sum(0)) + max_bN.max(0) + 0.3
    assert_within([max_bN.max(0), got_lse], [largest, lse], bound[:2])
    parts = 2 if cosine else 3  # there is no bias
    assert_within([got_dx, got_drows, got_dbias][:parts], gradients[:parts], bound[3:][:parts])


@pytest.mark.parametrize("path", kernels.LEVELS[-1:], indirect=True)
@pytest.mark.parametrize("block,sampled,cosine,kept", [case[:4] for case in PAIRWISE if case[4]])
def test_whole_tiles_by_amx(path, two_threads, block, sampled, cosine, kept, monkeypatch):
    if not onednn.has_amx():
        pytest.skip("no AMX on this processor")
    for name, size in {"S": 150, "K": 97, "D": 64, "N": 32}.items():
        monkeypatch.setitem(globals(), name, size)
    test_against_float64(path, two_threads, max(block, 16), sampled, cosine, kept, True, monkeypatch)


def test_gradients_by_amx_have_the_same_bits_wherever_they_are_written(two_threads):
    if not onednn.has_amx():
        pytest.skip("no AMX on this processor")
    rng = np.random.default_rng(0)
    x, rows = (rng.standard_normal((count, 64)).astype(np.float32) for count in (32, 96))
    none = np.empty(0, np.int64)
    head = softmax.Softmax(x, rows, None, None, none, none, None, cosine=True, bfloat16=True)
    (max_N,), (sum_N,) = head.forward()  # of the one block
    lse, no_targets = max_N + np.log(sum_N), np.empty(0, np.float32)
    memory = np.empty(rows.size + 32, np.float32)
    at_line = -memory.ctypes.data % 64 // memory.itemsize  # where a line of the cache begins
    gradients = []
    for start in (at_line, at_line + 1):
        of_rows = memory[start : start + rows.size].reshape(rows.shape)
        head.backward(lse, no_targets, x, of_rows, None)
        gradients.append(of_rows.copy())
    assert np.isfinite(gradients[0]).all() and gradients[0].any()
    assert gradients[0].tobytes() == gradients[1].tobytes()


@pytest.mark.parametrize("path", kernels.LEVELS, indirect=True)
def test_numbers_that_are_not_finite_come_through(path):
    if not kernels.multiplies():
        pytest.skip("no matrix product on this machine")
    x, rows, _, _, target_class, sample = drawn()
    for value in (np.nan, np.inf):
        bad = x.copy()
        bad[2, 5] = value
        arrays = bad, rows, None, None, target_class, sample, None
        _, sum_bN = softmax.Softmax(*arrays, cosine=False, bfloat16=False).forward()
        assert np.isfinite(sum_bN.sum(axis=0)).tolist() == [n != 2 for n in range(N)]
