"""`SoftmaxHead.classify` on W ranks against NumPy's argmax over all logits at once, where a tie is no class.
One rank and many run the same cases."""

from __future__ import annotations

import itertools

import numpy as np
import paddle

from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace

D = 8


def classify_equals_argmax() -> int:
    """Asserts every case on this rank, and returns how many there were."""
    cases = list(
        itertools.product((1, 2, 37, 1003), (True, False), (64 << 20, 4000), ("ties", "bias", "cosine"))
    )
    for C, sharded, budget, kind in cases:
        rng = np.random.default_rng(C)
        x, centres = rng.standard_normal((50, D), np.float32), rng.standard_normal((C, D), np.float32)
        if kind == "ties":
            # Small whole numbers: exact products, many of them equal, within and between blocks and shards.
            x, centres = x.round(), centres.round()
        bias = rng.standard_normal(C, np.float32)
        head = make_head(
            C,
            D,
            ArcFace(0.5) if kind == "cosine" else None,
            scale=64.0 if kind == "cosine" else 1.0,
            sharded=sharded,
            bias=kind == "bias",
            sample_rate=0.1 if sharded else 1.0,
            budget=budget,
        )
        rows = slice(head.shard.start, head.shard.stop)
        given = {"centres": centres, "bias": bias} if kind == "bias" else {"centres": centres}
        head.bank.load_rows(0, {name: array[rows] for name, array in given.items()})
        logits = x.astype(np.float64) @ centres.T.astype(np.float64)
        if kind == "bias":
            logits += bias
        if kind == "cosine":
            logits /= np.linalg.norm(centres.astype(np.float64), axis=1)
            logits /= np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        found, similarity = head.classify(paddle.to_tensor(x))
        assert found.dtype == paddle.int64
        ties = (logits == logits.max(axis=1, keepdims=True)).sum(axis=1) > 1
        assert kind != "ties" or C < 37 or 0 < ties.sum() < 50
        want = np.where(ties, C, logits.argmax(axis=1))
        assert np.array_equal(found.numpy(), want), (C, sharded, budget, kind)
        largest = np.abs(x) @ np.abs(centres).max(axis=0) + np.abs(bias).max()  # above the sum of all terms
        bound = 2 * (D + 2) * np.finfo(np.float32).eps * (largest if kind != "cosine" else np.ones(50))
        assert (np.abs(similarity.numpy() - logits.max(axis=1)) <= bound).all(), (C, sharded, budget, kind)
    return len(cases)
