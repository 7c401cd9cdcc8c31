"""Change the logits of samples' own classes by margins, with their exact derivatives.

A margin gets the target cosines of the N samples that this rank works on: those of all ranks where classes
are sharded, and then that of a sample whose class is in another shard is any number, and what becomes of it
is not used. It gets the norms of their embeddings, too, and returns the targets' new cosines and their
slopes. The head scales them; all other logits stay as they are, unless the margin has `others`. Margins with
running statistics are in adaptive.py. To write your own, see docs/extend.md.

Angles in radians. theta is the angle between an embedding and the centre of its own class.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import paddle

from plsc.errors import UserError
from plsc.heads.constants import filled

# Below this sine the derivative of cos(theta + m) by cos(theta) is cut off: it grows as 1 / sin(theta) while
# the tangent that it multiplies, centre minus projection, shrinks as sin(theta), so their product stays right
# to rounding.
_SMALLEST_SINE = 1e-4


@dataclass
class Target:
    """The targets as a margin has changed them.

    cosine: the targets' new cosines [N]. slope: their derivatives by the old ones [N]. norm_slope: by the
    embeddings' norms [N], None if no gradient flows through them.
    """

    cosine: paddle.Tensor
    slope: paddle.Tensor
    norm_slope: paddle.Tensor | None = None


class Margin(ABC):
    """Changes the cosine of each sample with its own class. A subclass defines the call, and what it needs of
    the others.

    others(cos_Nb, plain_N1, target_N1): changes the cosines of a block with classes that are not the target,
        by each sample's target cosine without and with margin -> new cosines [N, b], their slopes by the old
        ones. The samples' own classes are in the block, too, near -1e30: they must stay far below. It costs a
        collective and an elementwise pass over all logits.
    penalty(norm_N): a term of each sample's loss by its embedding's norm [N] -> value [N], slope by the norm
        [N].
    """

    others: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    penalty: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    # Numbers of the run so far, by name: floats, or scalars on the device. A new dict replaces it.
    statistics: Mapping[str, float | paddle.Tensor] = {}

    @abstractmethod
    def __call__(self, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target | paddle.Tensor:
        """Change target cosines [N], float32 in [-1, 1], of embeddings with these norms [N]. Where the new
        cosines are returned alone, autograd finds their slopes."""

    def observe(self, norm_N: paddle.Tensor) -> None:  # noqa: B027 (most margins have nothing to do)
        """Note the norms of all ranks' samples, before the call of a training step."""

    def observe_targets(self, plain_N: paddle.Tensor) -> None:  # noqa: B027
        """Note the plain target cosines of all ranks' samples, before `others` is called."""

    def state_dict(self) -> dict[str, float]:
        """Return the statistics for a resumed run, for JSON."""
        return {name: float(number) for name, number in self.statistics.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the statistics."""
        self.statistics = state


def change_targets(margin: Margin, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target:
    """Call a margin, and find the slopes of one that gives its new cosines alone. UserError for a result that
    is neither, or through which no gradient flows."""
    target = margin(cos_N, norm_N)
    whose = f"Head.name: {type(margin).__name__} returned"
    wanted = _described(cos_N)
    found = [target.cosine, target.slope] if isinstance(target, Target) else [target]
    if any(_described(each) != wanted for each in found):
        raise UserError(
            f"{whose} {' and '.join(map(_described, found))}; a margin returns the new cosines, {wanted} as "
            "the old ones, or a Target of them and their slopes"
        )
    if isinstance(target, Target):
        return target
    # Once more, with a graph: a margin that counts its calls would count two a step.
    inputs = [cos_N.detach(), norm_N.detach()]
    for tensor in inputs:
        tensor.stop_gradient = False
    with paddle.enable_grad():
        cosine = margin(*inputs)
        if cosine.stop_gradient:
            raise UserError(
                f"{whose} cosines without a gradient by the old ones; compute them by Paddle's operators, or "
                "return a Target with their slopes"
            )
        grads = paddle.grad([cosine.sum()], inputs, allow_unused=True)
    # Zeros where there is none: all ranks must find the same number of slopes.
    return Target(cosine.detach(), *(paddle.zeros_like(cos_N) if grad is None else grad for grad in grads))


def check_slopes(margin: Margin) -> None:
    """Refuse by UserError a margin that does not return what a margin returns, or whose slopes by the cosines
    or the norms are not those of its new cosines."""
    inputs = [paddle.linspace(-0.9, 0.9, 19), paddle.linspace(15.0, 33.0, 19)]
    for tensor in inputs:
        tensor.stop_gradient = False
    target = change_targets(margin, *inputs)
    if target.cosine.stop_gradient:  # autograd has found the slopes, or nothing can be compared
        return
    grads = paddle.grad([target.cosine.sum()], inputs, allow_unused=True)
    for what, at, given_N, slope_N in (
        ("slope", "cosine -0.6", target.slope, grads[0]),
        ("norm_slope", "norm 18", target.norm_slope, grads[1]),
    ):
        given_N, slope_N = (paddle.zeros([19]) if each is None else each for each in (given_N, slope_N))
        off_N = (slope_N - given_N).abs() > 1e-3 * slope_N.abs() + 1e-5
        if off_N.astype("float32").mean().item() > 0.5:
            raise UserError(
                f"{type(margin).__name__} gives a {what} of {given_N[3].item():.3g} at the {at}, where its "
                f"cosines have {slope_N[3].item():.3g}; return the cosines alone, and autograd finds their "
                "slopes (detach the norms if no gradient shall flow through them)",
                key="Head.name",
            )


def _described(returned: object) -> str:
    if not paddle.is_tensor(returned):
        return f"a {type(returned).__name__}"
    return f"{str(returned.dtype).removeprefix('paddle.')} {list(returned.shape)}"


def angle(cos: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute theta in [0, pi], and sin(theta) kept away from 0 for dividing by it."""
    cos = cos.clip(-1.0, 1.0)
    return cos.acos(), (1.0 - cos * cos).sqrt().clip(min=_SMALLEST_SINE)


class CosFace(Margin):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, equation 4)."""

    def __init__(self, margin: float = 0.35):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(cos_N - self.margin, paddle.ones_like(cos_N))


def add_angle(cos_N: paddle.Tensor, margin: float | paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute cos(theta + m) and its slope, m a number or [N]. Where theta + m passes pi it is cos(theta) - m
    sin(m), as in the authors' code of ArcFace: there the cosine would rise again."""
    cos_N = cos_N.clip(-1.0, 1.0)
    sin_N = paddle.scale(cos_N * cos_N, -1.0, 1.0).sqrt()
    cot_N = cos_N / sin_N.clip(min=_SMALLEST_SINE)
    if isinstance(margin, float):  # fewer passes than with a tensor
        cos_m = math.cos(margin)
        sin_m = math.sin(margin)
        slope_N = paddle.scale(cot_N, sin_m, cos_m)
    else:
        cos_m = margin.cos()
        sin_m = margin.sin()
        slope_N = cos_m + sin_m * cot_N
    past_pi = cos_N <= (filled([], -cos_m) if isinstance(margin, float) else -cos_m)
    value_N = paddle.where(past_pi, cos_N - margin * sin_m, cos_N * cos_m - sin_N * sin_m)
    return value_N, paddle.where(past_pi, filled(slope_N.shape, 1.0), slope_N)


class ArcFace(Margin):
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, equation 3), falling with theta beyond pi too (see
    add_angle)."""

    def __init__(self, margin: float = 0.5):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(*add_angle(cos_N, self.margin))


class CombinedMargin(Margin):
    """cos(m1 theta + m2) - m3 (Deng et al., ArcFace, CVPR 2019, equation 4).

    Where m1 theta + m2 passes k pi it goes on falling: (-1)^k cos(m1 theta + m2) - 2 k - m3, as SphereFace's
    psi does.
    """

    def __init__(self, margin1: float = 1.0, margin2: float = 0.3, margin3: float = 0.2):
        self.margin1 = margin1
        self.margin2 = margin2
        self.margin3 = margin3

    def __call__(self, cos_N, norm_N):
        theta_N, sin_N = angle(cos_N)
        phi_N = self.margin1 * theta_N + self.margin2
        k_N = (phi_N / math.pi).floor()
        sign_N = 1.0 - 2.0 * (k_N % 2.0)
        slope_N = sign_N * self.margin1 * phi_N.sin() / sin_N
        if self.margin2 == 0:  # at theta 0 m1 sin(m1 theta) / sin(theta) has a limit that the cut-off misses
            slope_N = paddle.where(cos_N >= 1.0, paddle.full_like(slope_N, self.margin1**2), slope_N)
        return Target(sign_N * phi_N.cos() - 2.0 * k_N - self.margin3, slope_N)


class SphereFace(CombinedMargin):
    """psi(theta) = (-1)^k cos(m theta) - 2 k for theta in [k pi / m, (k + 1) pi / m] (Liu et al., SphereFace,
    CVPR 2017, equation 7), on normalised embeddings."""

    def __init__(self, margin: float = 1.7):
        super().__init__(margin, 0.0, 0.0)
