"""Apply margins to the target logits, with exact derivatives.

The head calls a margin with the target cosines and the embedding norms for the N samples that this rank works
on. If the classes are sharded, these are all ranks' samples. The cosine of a sample whose class is in
another shard is then arbitrary, and the head ignores the result for it.

The margin returns the new target cosines and their slopes, and the head applies the scale. All other logits
stay unchanged unless the margin defines `others`. adaptive.py has the margins with running statistics.
docs/extend.md shows how to write your own margin.

Angles are in radians. theta is the angle between an embedding and its own class's centre.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import paddle

from plsc.errors import UserError
from plsc.heads.constants import filled

# Below this sine, the derivative of cos(theta + m) with respect to cos(theta) is cut off. The derivative
# grows as 1 / sin(theta). The tangent that it multiplies, centre minus projection, shrinks as sin(theta).
# Their product therefore stays right to rounding.
_SMALLEST_SINE = 1e-4


@dataclass
class Target:
    """The target cosines after the margin.

    Attributes:
        cosine: new target cosines, float32 [N].
        slope: the new cosines' derivatives with respect to the old ones, float32 [N].
        norm_slope: the new cosines' derivatives with respect to the embeddings' norms, float32 [N], or None
            if no gradient flows through the norms.
    """

    cosine: paddle.Tensor
    slope: paddle.Tensor
    norm_slope: paddle.Tensor | None = None


class Margin(ABC):
    """Changes the cosine between each sample and its own class. A subclass defines the call. It may also
    define the following methods.

    others(cos_Nb, plain_N1, target_N1): changes the cosines [N, b] between the samples and a block with other
        classes. The other arguments are each sample's target cosine without and with margin. It returns the
        new cosines [N, b] and their derivatives with respect to the old ones [N, b]. The block also holds the
        samples' own classes, with cosines near -1e30, and these must stay far below all others. `others`
        costs a collective and an elementwise pass over all logits.
    penalty(norm_N): computes a term of each sample's loss from its embedding's norm [N]. It returns the value
        [N] and its derivative with respect to the norm [N].
    """

    others: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    penalty: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    # Running statistics by name: floats, or scalars on the device. Assign a new dict to change them.
    statistics: Mapping[str, float | paddle.Tensor] = {}

    @abstractmethod
    def __call__(self, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target | paddle.Tensor:
        """Apply the margin to the target cosines.

        Args:
            cos_N: target cosines, float32 [N], in [-1, 1].
            norm_N: the embeddings' norms, float32 [N].

        Returns a Target, or the new cosines alone. In the latter case autograd finds their slopes.
        """

    def observe(self, norm_N: paddle.Tensor) -> None:  # noqa: B027 (most margins have nothing to do)
        """Update the statistics from the norms of all ranks' samples. The head calls it in each training
        step, before it calls the margin."""

    def observe_targets(self, plain_N: paddle.Tensor) -> None:  # noqa: B027
        """Update the statistics from the target cosines of all ranks' samples, without margin. The head calls
        it before `others`."""

    def state_dict(self) -> dict[str, float]:
        """Return the statistics as JSON numbers, for a resumed run."""
        return {name: float(number) for name, number in self.statistics.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the statistics."""
        self.statistics = state


def apply_margin(margin: Margin, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target:
    """Call a margin, and find the slopes by autograd if it returns the new cosines alone.

    Args:
        margin: margin to call.
        cos_N: target cosines, float32 [N].
        norm_N: the embeddings' norms, float32 [N].

    Raises UserError if the result is neither a Target nor cosines, or if no gradient flows through the
    cosines.
    """
    target = margin(cos_N, norm_N)
    prefix = f"Head.name: {type(margin).__name__} returned"
    wanted = _describe(cos_N)
    found = [target.cosine, target.slope] if isinstance(target, Target) else [target]
    if any(_describe(each) != wanted for each in found):
        raise UserError(
            f"{prefix} {' and '.join(map(_describe, found))}; a margin returns the new cosines, {wanted} as "
            "the old ones, or a Target of them and their slopes"
        )
    if isinstance(target, Target):
        return target
    # Call it again, with a graph. A margin that counts its calls would therefore count two per step.
    inputs = [cos_N.detach(), norm_N.detach()]
    for tensor in inputs:
        tensor.stop_gradient = False
    with paddle.enable_grad():
        cosine = margin(*inputs)
        if cosine.stop_gradient:
            raise UserError(
                f"{prefix} cosines without a gradient with respect to the old ones; compute them with "
                "Paddle's operators, "
                "or return a Target with their slopes"
            )
        grads = paddle.grad([cosine.sum()], inputs, allow_unused=True)
    # A missing gradient becomes zeros, because all ranks must find equally many slopes.
    return Target(cosine.detach(), *(paddle.zeros_like(cos_N) if grad is None else grad for grad in grads))


def check_slopes(margin: Margin) -> None:
    """Raise UserError if a margin's result has the wrong type or shape, or if its slopes with respect to the
    cosines or the norms are not the derivatives of its new cosines."""
    inputs = [paddle.linspace(-0.9, 0.9, 19), paddle.linspace(15.0, 33.0, 19)]
    for tensor in inputs:
        tensor.stop_gradient = False
    target = apply_margin(margin, *inputs)
    if target.cosine.stop_gradient:  # autograd found the slopes, or there is nothing to compare
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
                "slopes (detach the norms if no gradient should flow through them)",
                key="Head.name",
            )


def _describe(returned: object) -> str:
    if not paddle.is_tensor(returned):
        return f"a {type(returned).__name__}"
    return f"{str(returned.dtype).removeprefix('paddle.')} {list(returned.shape)}"


def angle(cos: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return theta in [0, pi], and sin(theta), which is kept away from 0 so that it can be a divisor."""
    cos = cos.clip(-1.0, 1.0)
    return cos.acos(), (1.0 - cos * cos).sqrt().clip(min=_SMALLEST_SINE)


class CosFace(Margin):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, equation 4)."""

    def __init__(self, margin: float = 0.35):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(cos_N - self.margin, paddle.ones_like(cos_N))


def add_angle(cos_N: paddle.Tensor, margin: float | paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute cos(theta + m) and its slope.

    If theta + m is larger than pi, the cosine would rise again. The value is then cos(theta) - m sin(m), as
    in the ArcFace authors' code.

    Args:
        cos_N: cosines of theta, float32 [N].
        margin: angle m in radians, a number or a tensor [N].

    Returns the new cosines [N] and their derivatives with respect to the old ones [N].
    """
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
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, equation 3). If theta + m is larger than pi, the value
    still falls with theta (see add_angle)."""

    def __init__(self, margin: float = 0.5):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(*add_angle(cos_N, self.margin))


class CombinedMargin(Margin):
    """cos(m1 theta + m2) - m3 (Deng et al., ArcFace, CVPR 2019, equation 4).

    If m1 theta + m2 is in [k pi, (k + 1) pi], the value is (-1)^k cos(m1 theta + m2) - 2 k - m3. It therefore
    keeps falling, as SphereFace's psi does.
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
        if self.margin2 == 0:  # the cut-off misses the limit of m1 sin(m1 theta) / sin(theta) at 0
            slope_N = paddle.where(cos_N >= 1.0, paddle.full_like(slope_N, self.margin1**2), slope_N)
        return Target(sign_N * phi_N.cos() - 2.0 * k_N - self.margin3, slope_N)


class SphereFace(CombinedMargin):
    """psi(theta) = (-1)^k cos(m theta) - 2 k for theta in [k pi / m, (k + 1) pi / m] (Liu et al., SphereFace,
    CVPR 2017, equation 7), on normalised embeddings."""

    def __init__(self, margin: float = 1.7):
        super().__init__(margin, 0.0, 0.0)
