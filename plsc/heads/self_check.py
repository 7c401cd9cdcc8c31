"""Compare a tiny sharded head with the dense float64 reference: what a training does before its first step.

Kernels on a new processor, operators on a new device, a flag of Paddle's: each can give wrong numbers without
a word. This takes milliseconds; `plsc selftest` compares more. Try it:

    refuse_a_wrong_head(tf32=False)
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import paddle

from plsc import distributed
from plsc import native as kernels
from plsc.distributed.device import on_device
from plsc.errors import UserError
from plsc.heads import make_head, reference
from plsc.heads.banks.bank import initial_rows
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import choose_classes
from plsc.utils.sharding import ClassShard

_CLASSES = 101
_WIDTH = 16
_MARGIN = 0.35
_SCALE = 8.0
_RATE = 1.0  # of learning: the update is as large as the centres
_SMALL = 8 << 10  # bytes for a block of classes, so that there are several


class Difference(NamedTuple):
    """The number of a result that is worst against its bound: its difference from float64, and the most that
    rounding explains."""

    what: str
    difference: float
    bound: float

    @property
    def excess(self) -> float:
        """The difference in units of the bound; infinite for what is not a number."""
        ratio = self.difference / self.bound
        return ratio if np.isfinite(ratio) else np.inf


def head_differences(tf32: bool) -> list[Difference]:
    """Compare losses, gradients by the embeddings and updated centres of this rank: with all classes in
    several blocks, and with sampled ones. Every rank calls it.

    tf32: whether a GPU may compute products in TensorFloat-32.
    """
    return _compare(1.0, _SMALL, tf32) + _compare(0.3, None, tf32)


def _compare(sample_rate: float, budget: int | None, tf32: bool) -> list[Difference]:
    counts = [4 + rank % 2 for rank in range(distributed.world_size())]
    start = sum(counts[: distributed.rank()])
    own = slice(start, start + counts[distributed.rank()])
    rng = np.random.default_rng(0)
    x_ND = rng.standard_normal((sum(counts), _WIDTH)).astype(np.float32)
    label_N = rng.integers(0, _CLASSES, sum(counts))
    options = {
        "sample_rate": sample_rate,
        "budget": budget,
        "init_std": 0.5,
        "seed": 3,
        "rule": Momentum(0.0),
    }
    head = make_head(_CLASSES, _WIDTH, CosFace(_MARGIN), scale=_SCALE, **options)
    emb_BD = paddle.to_tensor(x_ND[own], stop_gradient=False)
    out = head(emb_BD, paddle.to_tensor(label_N[own]), counts=counts)
    out.loss.backward()
    head.step(_RATE)

    dense = reference.DenseHead(
        initial_rows(3, 0, _CLASSES, _WIDTH, 0.5), margin=(reference.cosface, _MARGIN), scale=_SCALE
    )
    dense.taken = choose_classes(
        np.unique(label_N), ClassShard.whole(_CLASSES), sample_rate, head.spec.seed, 0
    )
    losses_N, dx_ND, dw_KD, _ = dense.loss_and_gradients(x_ND, label_N)
    loss_bound_N, dx_bound_ND, dw_bound_KD = _bounds(dense, x_ND.astype(np.float64), label_N, losses_N, tf32)
    centres_CD = dense.w.copy()
    centres_CD[dense.taken] -= _RATE * dw_KD
    centre_bound_CD = 4 * _EPSILON * np.abs(dense.w)
    centre_bound_CD[dense.taken] += _RATE * dw_bound_KD
    shard = slice(head.shard.start, head.shard.stop)
    results = {
        "losses": (out.losses_B, losses_N[own], loss_bound_N[own]),
        "gradients by the embeddings": (emb_BD.grad / distributed.world_size(), dx_ND[own], dx_bound_ND[own]),
        "updated centres": (head.bank.state()["centres"], centres_CD[shard], centre_bound_CD[shard]),
    }
    return [_worst(what, *result) for what, result in results.items()]


_EPSILON = 2.0**-24  # of a float32 that is rounded to the nearest
_TF32 = 2.0**-11  # of an input of a product in TensorFloat-32


def _bounds(
    dense: reference.DenseHead, x_ND: np.ndarray, label_N: np.ndarray, losses_N: np.ndarray, tf32: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bound what rounding makes of losses, gradients by the embeddings and by the centres that take part.

    A sum of n terms is off by at most n eps sum(|terms|); here all sums in a row count, those of a product, a
    normalisation, a softmax and the way back. A softmax turns an error e of its logits into a factor of exp(2
    e).
    """
    unit_ND, inverse_N1 = reference.unit(x_ND)
    centre_KD, inverse_K1 = reference.unit(dense.w[dense.taken])
    eps = (4 * _WIDTH + len(dense.taken) + len(x_ND)) * _EPSILON + (
        2 * _TF32 if tf32 and on_device() else 0.0
    )
    logits_NK = dense.logits(x_ND, label_N)[0]
    of_logits_N = _SCALE * eps * (np.abs(unit_ND) @ np.abs(centre_KD).T + _MARGIN).max(axis=1)
    target_N = logits_NK[np.arange(len(x_ND)), np.searchsorted(dense.taken, label_N)]
    loss_N = 2 * of_logits_N + eps * (losses_N + np.abs(target_N))
    by_logits_NK = np.exp(logits_NK - (losses_N + target_N)[:, None])
    by_logits_NK[np.arange(len(x_ND)), np.searchsorted(dense.taken, label_N)] = -np.expm1(-losses_N)
    off_NK = by_logits_NK * (_SCALE / len(x_ND)) * (2 * of_logits_N + 2 * eps)[:, None]
    dx_ND = _through_unit(off_NK @ np.abs(centre_KD), np.abs(unit_ND), inverse_N1)
    return loss_N, dx_ND, _through_unit(off_NK.T @ np.abs(unit_ND), np.abs(centre_KD), inverse_K1)


def _through_unit(terms: np.ndarray, unit: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    return (terms + (terms * unit).sum(axis=1, keepdims=True) * unit) * inverse


def _worst(what: str, got, want: np.ndarray, bound: np.ndarray) -> Difference:
    if not want.size:
        return Difference(what, 0.0, 1.0)
    difference = np.abs(np.asarray(got, np.float64) - want)
    ratio = np.where(np.isfinite(difference), difference / bound, np.inf)
    at = np.unravel_index(ratio.argmax(), ratio.shape)
    return Difference(what, float(difference[at]), float(bound[at]))


def refuse_a_wrong_head(tf32: bool) -> None:
    """Refuse by UserError, on every rank, a machine that computes the head wrongly. Every rank calls it;
    tf32: as of `head_differences`."""
    own = max(head_differences(tf32), key=lambda difference: difference.excess)
    worst = max(distributed.gather_objects(own), key=lambda difference: difference.excess)
    if worst.excess <= 1:
        return
    flags = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("FLAGS_")]
    backend = "with kernels" if kernels.library() and not on_device() else "without kernels"
    remedy = f"unset {' '.join(flags)}" if flags else "try PLSC_KERNELS=0, or another version of Paddle"
    raise UserError(
        f"this machine computes the head wrongly: {worst.what} of a tiny case differ from float64's by {worst.difference:.2g}, and rounding "
        f"explains {worst.bound:.2g} at most (on {paddle.get_device()} {backend}, Paddle {paddle.__version__}); `plsc selftest` shows which "
        f"parts are wrong; {remedy}"
    )
