"""One head on W ranks against the dense reference: the cases, and the comparison that every rank makes for its own part."""

from __future__ import annotations

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.bank import initial_rows
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.softmax import SoftmaxHead
from plsc.sharding import split
from tests import reference

D = 16
MARGINS = {
    "softmax": (None, None, 1.0),
    "arcface": (ArcFace(0.5), (reference.arcface, 0.5), 64.0),
    "cosface": (CosFace(0.35), (reference.cosface, 0.35), 64.0),
}


def relative(a, b) -> float:
    """Largest difference, in units of the largest reference number."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)) if a.size else 0.0


def labels_for(kind: str, num_samples: int, num_classes: int, rng) -> np.ndarray:
    """ "any": uniform. "one rank": all in the last shard that has classes. "gap": none in the first shard, if others have any."""
    shards = [s for s in split(num_classes, distributed.world_size()) if s[1] > s[0]]
    low, high = {"any": (0, num_classes), "one rank": shards[-1], "gap": (shards[1:] or shards)[0]}[kind]
    if kind == "gap":
        high = num_classes
    return rng.integers(low, high, num_samples)


def head_equals_reference(
    name,
    num_classes,
    counts,
    *,
    bias=False,
    labels="any",
    steps=10,
    sharded=True,
    rate=1.0,
    bank="device",
    budget=64 << 20,
    lr=0.01,
):
    """Train the head alone for `steps` steps; the largest relative error of loss, gradients and parameters on this rank."""
    margin, dense_margin, scale = MARGINS[name]
    std = 0.5
    head = SoftmaxHead(
        num_classes,
        D,
        margin,
        scale=scale,
        sharded=sharded,
        bias=bias,
        sample_rate=rate,
        bank=bank,
        budget=budget,
        init_std=std,
        seed=3,
        weight_decay=5e-4,
    )
    dense = reference.DenseHead(
        initial_rows(3, 0, num_classes, D, std),
        np.zeros(num_classes) if bias else None,
        dense_margin,
        scale,
        decay=5e-4,
    )
    rng = np.random.default_rng(num_classes + len(counts))
    start = sum(counts[: distributed.rank()])
    own = slice(start, start + counts[distributed.rank()])
    rows = slice(head.shard.start, head.shard.stop)
    errors = {
        "loss": 0.0,
        "losses": 0.0,
        "embedding gradient": 0.0,
        "centre gradient": 0.0,
        "parameters": 0.0,
        "accuracy": 0.0,
    }

    def note(key, got, want):
        errors[key] = max(errors[key], relative(got, want))

    for number in range(steps):
        x = rng.standard_normal((sum(counts), D)).astype(np.float32)
        label = labels_for(labels, sum(counts), num_classes, rng)
        emb = paddle.to_tensor(x[own], stop_gradient=False)
        out = head(emb, paddle.to_tensor(label[own]), number)
        out.loss.backward()
        taken = head.bank.index
        assert len(taken) == max(
            int(rate * head.shard.size), len(np.intersect1d(label, np.arange(rows.start, rows.stop)))
        )
        if sharded:
            dense.taken = np.concatenate(distributed.gather_objects(taken + rows.start))
        mine = np.searchsorted(dense.taken, taken + rows.start)
        losses, dx, dw, db = dense.loss_and_gradients(x, label)
        note("loss", out.loss.item(), losses.mean())
        note("losses", out.losses_B.numpy(), losses[own])
        assert (out.correct_B.numpy() == dense.correct(x, label)[own]).all()
        note("accuracy", out.accuracy.item() + 1, dense.correct(x, label).mean() + 1)
        note("embedding gradient", emb.grad.numpy() / distributed.world_size(), dx[own])
        if len(taken):
            # in units of the whole matrix's largest gradient: a shard without positives has next to none of its own
            got = head.bank.gradients()["centres"].numpy() - dw[mine]
            errors["centre gradient"] = max(
                errors["centre gradient"], np.abs(got).max() / max(np.abs(dw).max(), 1e-12)
            )
            if bias:
                note("centre gradient", head.bank.gradients()["bias"].numpy(), db[mine])
        head.step(lr)
        dense.step(dw, db, lr)
    state = head.bank.state()
    note("parameters", state["centres"], dense.w[rows])
    note("parameters", state["momentum"], dense.vw[rows])
    if bias:
        note("parameters", state["bias"], dense.b[rows])
    return errors


def run(head, x, label):
    """-> HeadOutput, gradient by x, gradient by the centres."""
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out, emb.grad.numpy(), head.bank.gradients()["centres"].numpy()
