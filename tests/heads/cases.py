"""What the tests of the head share."""

from __future__ import annotations

import itertools

import numpy as np
import paddle

from plsc import distributed
from plsc.heads.banks.bank import initial_rows
from plsc.heads.sampling import ClassShard
from plsc.utils.sharding import split
from tests.heads import reference
from tests.heads.errors import MARGINS, OPTIMIZERS, D, choose_classes, labels_for
from tests.helpers.bounds import EPS, perturbed, roundings


def run(head, x, label):
    """-> HeadOutput, gradient by x, gradient by the centres."""
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out, emb.grad.numpy(), out.selection.gradients()["centres"].numpy()


def optimizer_cases(counts: list[int], folder: str = ".") -> list[dict]:
    """-> arguments for `head_errors`: 10 steps with each optimizer on each float32 bank, all classes and
    sampled ones, distributed over the ranks and not. counts: each rank's samples."""
    shared = {"counts": counts, "bank_folder": folder}
    optimizers = ("Nesterov", "AdamW", "LARS")
    cases = [
        {
            "name": "arcface",
            "num_classes": 53,
            "optimizer": optimizer,
            "bank": bank,
            "sample_rate": rate,
            **shared,
        }
        for optimizer in (*optimizers, "Own")
        for bank, rate in itertools.product(("device", "host", "disk"), (1.0, 0.3))
    ]
    for optimizer in optimizers:
        plain = {"name": "softmax", "bias": True, "optimizer": optimizer, **shared}
        cases += [
            {**plain, "num_classes": 1003, "sample_rate": 0.3},
            {**plain, "num_classes": 11, "sharded": False},
        ]
        cases.append({"name": "arcface", "num_classes": 2, "optimizer": optimizer, "bank": "host", **shared})
    # Adam divides a gradient near 0, which is largely rounding, by itself. The error is then a share of the
    # learning rate.
    return [{**case, "lr": 1e-3 if case["optimizer"] == "AdamW" else 1e-2} for case in cases]


class Rounded(reference.DenseHead):
    """The reference with factors [C] on the logits, and on the logarithm of their summed exponentials. These
    numbers reach 64, so their rounding exceeds that of the cosines and probabilities."""

    def __init__(self, factor, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor

    def logits(self, x, label):
        logits, slope, plain = super().logits(x, label)
        return logits * self.factor[self.taken], slope, plain

    def log_sum(self, logits):
        return super().log_sum(logits) * self.factor[0]


def rounding(
    name, num_classes, counts, *, labels="any", steps=10, lr=0.01, optimizer="Momentum", sample_rate=1.0,
    bias=False, sharded=True, **_
):  # fmt: skip
    """-> a bound for each error that `head_errors` finds in this case. What is not in it must be 0, since
    those are counts."""
    _, margin, scale = MARGINS[name]
    rule, dense_optimizer = OPTIMIZERS[optimizer]
    rng, whole, count = (
        np.random.default_rng(num_classes + len(counts)),
        ClassShard(num_classes, 0, num_classes),
        sum(counts),
    )
    draw = lambda: (
        rng.standard_normal((count, D)).astype(np.float32),
        labels_for(labels, count, num_classes, rng),
    )
    x, label = zip(*(draw() for _ in range(steps)))
    ranks, rank = distributed.world_size(), distributed.rank()
    own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    shard = ClassShard(num_classes, *split(num_classes, ranks)[rank]) if sharded else whole

    def train(centres, x, factor):
        found = {}
        zeros = np.zeros(num_classes) if bias else None
        options = margin, scale, dense_optimizer, rule.moments
        dense = Rounded(factor[:, 1], centres, zeros, *options)
        for number in range(steps):
            dense.taken = choose_classes(np.unique(label[number]), whole, sample_rate, 3, number)
            losses, dx, dw, db = dense.loss_and_gradients(x[number], label[number])
            names = ("loss", "losses", "embedding gradient", "centre gradient", "bias gradient")
            for key, array in zip(names, (losses.mean(), losses[own], dx[own], dw, db)):
                found.setdefault(key, []).append(array)
            dense.step(dw * factor[dense.taken], db * factor[dense.taken, 0], lr)
        state = {f"updated {key}": [array[shard.start : shard.stop]] for key, array in dense.state().items()}
        return found | state

    centres = initial_rows(3, 0, num_classes, D, 0.5)
    want, bound = perturbed(train, centres, list(x), np.ones((num_classes, D)), times=2)
    tiny = (
        roundings(256) * np.finfo(np.float32).tiny
    )  # below the smallest number they have fewer digits, or are 0
    share = lambda want, bound: bound.max(initial=tiny) / max(np.abs(want).max(initial=0), 1e-12)
    return {"accuracy": 2 * EPS} | {key: max(map(share, want[key], bound[key])) for key in want}


def exact(centres, x, label, margin=None, scale=1.0, bias=None, lr=None, momentum=None, **bounds):
    """-> losses, gradients with respect to x and the centres, and the centres after a step, in float64, and
    their bounds."""

    def step(centres, x, bias, momentum, factor):
        dense = Rounded(factor, centres, bias, margin, scale, reference.DenseMomentum(0.9))
        if momentum is not None:
            dense.of_w["momentum"] = momentum
        losses, dx, dw, db = dense.loss_and_gradients(x, label)
        if lr:
            dense.step(dw, db, lr)
        return [losses, dx, dw, *([dense.w] if lr else [])]

    return perturbed(step, centres, x, bias, momentum, np.ones(len(centres)), **bounds)
