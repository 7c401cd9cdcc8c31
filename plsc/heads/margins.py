"""Change the logits of samples' own classes by margins, with their exact derivatives.

A margin gets the target cosines of the P samples that this rank works on (all N where classes are sharded;
that of a sample whose class is in another shard is any number, and what becomes of it is not used) and the
norms of their embeddings, and returns the targets' new cosines and their slopes. The head scales them; all
other logits stay as they are, unless the margin has `others`. Margins with running
statistics are in adaptive.py. To write your own, see docs/extend.md.

Angles in radians. theta is the angle between an embedding and the centre of its own class.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import paddle

from plsc.errors import UserError

# Below this sine the derivative of cos(theta + m) by cos(theta) is cut off: it grows as 1 / sin(theta) while
# the tangent that it multiplies, centre minus projection, shrinks as sin(theta), so their product stays right
# to rounding.
_SMALLEST_SINE = 1e-4


@dataclass
class Target:
    """The targets as a margin has changed them.

    cosine: the targets' new cosines [P]. slope: their derivatives by the old ones [P]. norm_slope: by the
    embeddings' norms [P], None where the margin does not depend on them.
    """

    cosine: paddle.Tensor
    slope: paddle.Tensor
    norm_slope: paddle.Tensor | None = None


class Margin(ABC):
    """Changes the cosine of each sample with its own class. A subclass defines the call, and what it needs of
    the others.

    others(cos_Nb, plain_N1, target_N1): changes the cosines of a block with classes that are not the target,
        by each sample's target cosine without and with margin -> new cosines [N, b], their slopes by the old
        ones. It costs a collective and an elementwise pass over all logits.
    penalty(norm_B): a term of each sample's loss by its embedding's norm [B] -> value [B], slope by the norm
        [B]; with it the call must give a norm_slope.
    """

    others: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    penalty: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    # Numbers of the run so far, by name: floats, or scalars on the device. A new dict replaces it.
    statistics: Mapping[str, float | paddle.Tensor] = {}

    @abstractmethod
    def __call__(self, cos_P: paddle.Tensor, norm_P: paddle.Tensor) -> Target | paddle.Tensor:
        """Change target cosines [P], float32 in [-1, 1], of embeddings with these norms [P]. Where the new
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


def change_targets(margin: Margin, cos_P: paddle.Tensor, norm_P: paddle.Tensor) -> Target:
    """Call a margin, and find the slopes of one that gives its new cosines alone. UserError for a result that
    is neither, or through which no gradient flows."""
    target = margin(cos_P, norm_P)
    whose = f"Head.name: {type(margin).__name__} returned"
    wanted = _described(cos_P)
    found = [target.cosine, target.slope] if isinstance(target, Target) else [target]
    if any(_described(each) != wanted for each in found):
        raise UserError(
            f"{whose} {' and '.join(map(_described, found))}; a margin returns the new cosines, {wanted} as "
            "the old ones, or a Target of them and their slopes"
        )
    if isinstance(target, Target):
        return target
    # Once more, with a graph: a margin that counts its calls would count two a step.
    inputs = [cos_P.detach(), norm_P.detach()]
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
    slopes = [paddle.zeros_like(cos_P) if grad is None else grad for grad in grads]
    return Target(cosine.detach(), slopes[0], slopes[1] if margin.penalty else None)


def check_slopes(margin: Margin) -> None:
    """Refuse by UserError a margin with another result than a margin's, or with slopes of other cosines."""
    cos_P = paddle.linspace(-0.9, 0.9, 19)
    cos_P.stop_gradient = False
    target = change_targets(margin, cos_P, paddle.full([19], 20.0))
    if target.cosine.stop_gradient:  # autograd has found the slopes
        return
    (slope_P,) = paddle.grad([target.cosine.sum()], [cos_P])
    off_P = (slope_P - target.slope).abs() > 1e-3 * (1.0 + slope_P.abs())
    if off_P.astype("float32").mean().item() > 0.5:
        raise UserError(
            f"{type(margin).__name__} gives a slope of {target.slope[3].item():.3g} at the cosine "
            f"-0.6, where its cosines have {slope_P[3].item():.3g}; return the cosines alone, and autograd "
            "finds their slopes",
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

    def __call__(self, cos_P, norm_P):
        return Target(cos_P - self.margin, paddle.ones_like(cos_P))


def add_angle(cos_P: paddle.Tensor, margin: float | paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute cos(theta + m) and its slope, m a number or [P]. Where theta + m passes pi it is cos(theta) - m
    sin(m), as in the authors' code of ArcFace: there the cosine would rise again."""
    cos_P = cos_P.clip(-1.0, 1.0)
    sin_P = paddle.scale(cos_P * cos_P, -1.0, 1.0).sqrt()
    cot_P = cos_P / sin_P.clip(min=_SMALLEST_SINE)
    if isinstance(margin, float):  # fewer passes than with a tensor
        cos_m = math.cos(margin)
        sin_m = math.sin(margin)
        slope_P = paddle.scale(cot_P, sin_m, cos_m)
    else:
        cos_m = margin.cos()
        sin_m = margin.sin()
        slope_P = cos_m + sin_m * cot_P
    past_pi = cos_P <= -cos_m
    value_P = paddle.where(past_pi, cos_P - margin * sin_m, cos_P * cos_m - sin_P * sin_m)
    return value_P, paddle.where(past_pi, paddle.ones_like(slope_P), slope_P)


class ArcFace(Margin):
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, equation 3), falling with theta beyond pi too (see
    add_angle)."""

    def __init__(self, margin: float = 0.5):
        self.margin = margin

    def __call__(self, cos_P, norm_P):
        return Target(*add_angle(cos_P, self.margin))


class CombinedMargin(Margin):
    """cos(m1 theta + m2) - m3 (Deng et al., ArcFace, CVPR 2019, equation 4).

    Where m1 theta + m2 passes k pi it goes on falling: (-1)^k cos(m1 theta + m2) - 2 k - m3, as SphereFace's
    psi does.
    """

    def __init__(self, margin1: float = 1.0, margin2: float = 0.3, margin3: float = 0.2):
        self.margin1 = margin1
        self.margin2 = margin2
        self.margin3 = margin3

    def __call__(self, cos_P, norm_P):
        theta_P, sin_P = angle(cos_P)
        phi_P = self.margin1 * theta_P + self.margin2
        k_P = (phi_P / math.pi).floor()
        sign_P = 1.0 - 2.0 * (k_P % 2.0)
        slope_P = sign_P * self.margin1 * phi_P.sin() / sin_P
        if self.margin2 == 0:  # at theta 0 m1 sin(m1 theta) / sin(theta) has a limit that the cut-off misses
            slope_P = paddle.where(cos_P >= 1.0, paddle.full_like(slope_P, self.margin1**2), slope_P)
        return Target(sign_P * phi_P.cos() - 2.0 * k_P - self.margin3, slope_P)


class SphereFace(CombinedMargin):
    """psi(theta) = (-1)^k cos(m theta) - 2 k for theta in [k pi / m, (k + 1) pi / m] (Liu et al., SphereFace,
    CVPR 2017, equation 7), on normalised embeddings."""

    def __init__(self, margin: float = 1.7):
        super().__init__(margin, 0.0, 0.0)
