"""What the tests of the head share."""

from __future__ import annotations

import itertools

import paddle


def run(head, x, label):
    """-> HeadOutput, gradient by x, gradient by the centres."""
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out, emb.grad.numpy(), head.bank.gradients()["centres"].numpy()


def optimizer_cases(counts: list[int], folder: str = ".") -> list[dict]:
    """-> arguments of `head_errors`: 10 steps of each optimizer on each float32 bank, all classes and sampled ones, spread over
    the ranks and not; counts: samples of each rank."""
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
        for optimizer, bank, rate in itertools.product(optimizers, ("device", "host", "disk"), (1.0, 0.3))
    ]
    for optimizer in optimizers:
        plain = {"name": "softmax", "bias": True, "optimizer": optimizer, **shared}
        cases += [
            {**plain, "num_classes": 1003, "sample_rate": 0.3},
            {**plain, "num_classes": 11, "sharded": False},
        ]
        cases.append({"name": "arcface", "num_classes": 2, "optimizer": optimizer, "bank": "host", **shared})
    # Adam divides a gradient near 0, of which rounding is a large part, by itself: an error of a share of the rate.
    return [{**case, "lr": 1e-3 if case["optimizer"] == "AdamW" else 1e-2} for case in cases]
