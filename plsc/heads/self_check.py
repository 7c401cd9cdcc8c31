"""Compare a tiny sharded head with a dense head in float64. Training does this before its first step.

Kernels on a new processor, operators on a new device and Paddle's flags can give wrong numbers without an
error. The check takes milliseconds. `plsc selftest` compares more.
"""

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc import distributed
from plsc.distributed.device import on_device
from plsc.errors import UserError
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard, draw_classes, merge_classes

_CLASSES = 300  # per rank, enough for several blocks of the kernels
_WIDTH = 16
_MARGIN = 0.35
_SCALE = 8.0
_RATE = 1.0  # learning rate. It makes the update as large as the centres.

LIMIT = 1e-4  # relative error. float32 rounding explains about 1e-6, and a wrong head has a larger error.
TF32_LIMIT = 2e-2  # products in TensorFloat-32 round their inputs to 2**-11, and the scale multiplies that


def relative(got, want) -> float:
    """Return the largest difference divided by the largest magnitude in `want`, or infinity if a value is not
    finite."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    error = np.abs(got - want).max(initial=0.0) / np.abs(want).max(initial=1e-12)
    return float(error) if np.isfinite(error) else np.inf


def head_error() -> float:
    """Compare this rank's losses, embedding gradients and updated centres with the dense head. Return the
    largest relative error. Every rank calls it.

    One comparison uses all classes and recomputes the exponentials. The other one samples the classes.
    """
    return max(_compare(1.0, budget=4 << 10), _compare(0.3, budget=1 << 20))


def _compare(sample_rate: float, budget: int) -> float:
    classes = _CLASSES * distributed.world_size() + 1
    counts = [4 + rank % 2 for rank in range(distributed.world_size())]
    start = sum(counts[: distributed.rank()])
    own_samples = slice(start, start + counts[distributed.rank()])
    rng = np.random.default_rng(0)
    x_ND = rng.standard_normal((sum(counts), _WIDTH)).astype(np.float32)
    label_N = rng.integers(0, classes, sum(counts))
    options = {"sample_rate": sample_rate, "budget": budget, "init_std": 0.5, "seed": 3}
    head = make_head(classes, _WIDTH, CosFace(_MARGIN), scale=_SCALE, rule=Momentum(0.0), **options)
    emb_BD = paddle.to_tensor(x_ND[own_samples], stop_gradient=False)
    out = head(emb_BD, paddle.to_tensor(label_N[own_samples]), 0, counts=counts)
    out.loss.backward()
    head.update(_RATE)

    centres_CD = initial_rows(3, 0, classes, _WIDTH, 0.5).astype(np.float64)
    drawn = draw_classes(ClassShard(classes, 0, classes), sample_rate, 3, 0)
    taken_K = merge_classes(drawn, np.unique(label_N))
    target_N = np.searchsorted(taken_K, label_N)
    losses_N, dx_ND, dw_KD = _dense(x_ND, centres_CD[taken_K], target_N)
    centres_CD[taken_K] -= _RATE * dw_KD
    rows = slice(head.shard.start, head.shard.stop)
    return max(
        relative(out.losses_B, losses_N[own_samples]),
        relative(emb_BD.grad / distributed.world_size(), dx_ND[own_samples]),
        relative(head.bank.state()["centres"], centres_CD[rows]),
    )


def _dense(
    x_ND: np.ndarray, centre_KD: np.ndarray, target_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute CosFace's losses [N], and their mean's gradients with respect to embeddings [N, D] and
    centres [K, D]. This uses autograd in float64 on the CPU."""
    on_cpu = {"place": paddle.CPUPlace()}
    x_ND, centre_KD = (
        paddle.to_tensor(rows, "float64", stop_gradient=False, **on_cpu) for rows in (x_ND, centre_KD)
    )
    target_N = paddle.to_tensor(target_N, **on_cpu)
    margin_NK = _MARGIN * F.one_hot(target_N, len(centre_KD)).astype("float64")
    logit_NK = _SCALE * (F.normalize(x_ND) @ F.normalize(centre_KD).T - margin_NK)
    losses_N = F.cross_entropy(logit_NK, target_N, reduction="none").flatten()
    losses_N.mean().backward()
    return losses_N.numpy(), x_ND.grad.numpy(), centre_KD.grad.numpy()


def check_head() -> None:
    """Raise UserError on every rank if a rank computes the head wrongly. Every rank calls it."""
    errors = distributed.gather_objects(head_error())
    error = max(errors)
    limit = TF32_LIMIT if on_device() else LIMIT
    if error > limit:
        raise UserError(
            f"rank {errors.index(error)} computes the head incorrectly: in a tiny case its numbers differ "
            f"from float64's by {error:.2g} of the largest, and {limit:g} is allowed (on "
            f"{paddle.get_device()}, "
            f"Paddle {paddle.__version__}); `plsc selftest` compares more; try PLSC_KERNELS=0, another "
            "version of Paddle, or no FLAGS_ in the environment"
        )
