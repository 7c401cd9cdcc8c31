"""`SoftmaxHead.classify` on W ranks against NumPy's sort of all logits at once, where a tie is no class.
One rank and many run the same cases."""

from __future__ import annotations

import itertools

import numpy as np
import paddle

from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace

D = 8


def classify_equals_a_sort() -> int:
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
        order = np.argsort(-logits, axis=1, kind="stable")
        ordered = np.take_along_axis(logits, order, axis=1)
        equal = (ordered[:, 1:] == ordered[:, :-1]).astype(int)
        tied = np.pad(equal, ((0, 0), (0, 1))) + np.pad(equal, ((0, 0), (1, 0))) > 0
        assert kind != "ties" or C < 37 or 0 < tied[:, 0].sum() < 50
        want = np.where(tied, C, order)
        largest = np.abs(x) @ np.abs(centres).max(axis=0) + np.abs(bias).max()  # above the sum of all terms
        bound = 2 * (D + 2) * np.finfo(np.float32).eps * (largest if kind != "cosine" else np.ones(50))
        for top in (1, 3):
            case, last = (C, sharded, budget, kind, top), min(top, C)
            found, similarity = head.classify(paddle.to_tensor(x), top)
            assert found.dtype == paddle.int64
            assert np.array_equal(found.numpy(), want[:, :last]), case
            assert (np.abs(similarity.numpy() - ordered[:, :last]) <= bound[:, None]).all(), case
    return len(cases)
