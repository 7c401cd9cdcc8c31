"""Compare a tiny sharded head with dense float64 numpy: what a training does before its first step.

Kernels on a new processor, operators on a new device, a flag of Paddle's: each can give wrong numbers without
a word. This takes milliseconds; `plsc selftest` compares more. Try it:

    refuse_a_wrong_head()
"""

import numpy as np
import paddle

from plsc import distributed
from plsc.distributed.device import on_device
from plsc.errors import UserError
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard, draw_classes, unite

_CLASSES = 101
_WIDTH = 16
_MARGIN = 0.35
_SCALE = 8.0
_RATE = 1.0  # of learning: the update is as large as the centres

LIMIT = 1e-4  # relative; rounding of float32 explains some 1e-6, a wrong head is off by more
TF32_LIMIT = 2e-2  # products in TensorFloat-32 round their inputs to 2**-11, and the scale multiplies that


def relative(got, want) -> float:
    """Return the largest difference, relative to the largest number of `want`; infinite for what is not a
    number."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    error = np.abs(got - want).max(initial=0.0) / np.abs(want).max(initial=1e-12)
    return float(error) if np.isfinite(error) else np.inf


def head_error() -> float:
    """Compare losses, gradients by the embeddings and updated centres of this rank -> the worst relative
    error: with all classes in several blocks, and with sampled ones. Every rank calls it."""
    return max(_compare(1.0, budget=8 << 10), _compare(0.3, budget=1 << 20))


def _compare(sample_rate: float, budget: int) -> float:
    counts = [4 + rank % 2 for rank in range(distributed.world_size())]
    start = sum(counts[: distributed.rank()])
    of_rank = slice(start, start + counts[distributed.rank()])
    rng = np.random.default_rng(0)
    x_ND = rng.standard_normal((sum(counts), _WIDTH)).astype(np.float32)
    label_N = rng.integers(0, _CLASSES, sum(counts))
    options = {"sample_rate": sample_rate, "budget": budget, "init_std": 0.5, "seed": 3}
    head = make_head(_CLASSES, _WIDTH, CosFace(_MARGIN), scale=_SCALE, rule=Momentum(0.0), **options)
    emb_BD = paddle.to_tensor(x_ND[of_rank], stop_gradient=False)
    out = head(emb_BD, paddle.to_tensor(label_N[of_rank]), counts=counts)
    out.loss.backward()
    head.update(_RATE)

    centres_CD = initial_rows(3, 0, _CLASSES, _WIDTH, 0.5).astype(np.float64)
    taken_K = unite(draw_classes(ClassShard.of_rank(_CLASSES), sample_rate, 3, 0), np.unique(label_N))
    target_N = np.searchsorted(taken_K, label_N)
    losses_N, dx_ND, dw_KD = _dense(x_ND.astype(np.float64), centres_CD[taken_K], target_N)
    centres_CD[taken_K] -= _RATE * dw_KD
    rows = slice(head.shard.start, head.shard.stop)
    return max(
        relative(out.losses_B, losses_N[of_rank]),
        relative(emb_BD.grad / distributed.world_size(), dx_ND[of_rank]),
        relative(head.bank.state()["centres"], centres_CD[rows]),
    )


def _dense(
    x_ND: np.ndarray, centre_KD: np.ndarray, target_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute CosFace's losses [N], and the gradients of their mean by embeddings and centres."""
    sample_N = np.arange(len(x_ND))
    x_length_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    length_K1 = np.linalg.norm(centre_KD, axis=1, keepdims=True)
    x_ND, centre_KD = x_ND / x_length_N1, centre_KD / length_K1
    logit_NK = _SCALE * (x_ND @ centre_KD.T)
    logit_NK[sample_N, target_N] -= _SCALE * _MARGIN
    exp_NK = np.exp(logit_NK)
    sum_N1 = exp_NK.sum(axis=1, keepdims=True)
    losses_N = np.log(sum_N1[:, 0]) - logit_NK[sample_N, target_N]
    grad_NK = exp_NK / sum_N1
    grad_NK[sample_N, target_N] -= 1.0
    grad_NK *= _SCALE / len(x_ND)
    dx_ND = _through_unit(grad_NK @ centre_KD, x_ND) / x_length_N1
    return losses_N, dx_ND, _through_unit(grad_NK.T @ x_ND, centre_KD) / length_K1


def _through_unit(grad: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Take away from gradients what changes only the length of a row."""
    return grad - (grad * unit).sum(axis=1, keepdims=True) * unit


def refuse_a_wrong_head() -> None:
    """Refuse by UserError, on every rank, a machine that computes the head wrongly. Every rank calls it."""
    errors = distributed.gather_objects(head_error())
    error = max(errors)
    limit = TF32_LIMIT if on_device() else LIMIT
    if error > limit:
        raise UserError(
            f"rank {errors.index(error)} computes the head wrongly: numbers of a tiny case differ from "
            f"float64's by {error:.2g} of the largest, and {limit:g} is allowed (on {paddle.get_device()}, "
            f"Paddle {paddle.__version__}); `plsc selftest` compares more; try PLSC_KERNELS=0, another "
            "version of Paddle, or no FLAGS_ in the environment"
        )
