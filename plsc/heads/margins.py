"""Apply margins to the target cosines, and compute exact derivatives.

The target cosine of a sample is the cosine between its embedding and the centre of its class. theta is the
angle between the two, in radians. N is the number of samples that this rank processes, and b is how many
classes a block has.

The head calls a margin with the target cosines and with the embeddings' norms. If the classes are
sharded, N counts all ranks' samples. If a sample's class is in another shard, its cosine is
arbitrary, and the head ignores the result for this sample.

The margin returns the new target cosines and their derivatives. In the names of attributes, a derivative is
called a slope. The head then multiplies the cosines by the scale. All other logits stay unchanged unless the
margin defines `others`. adaptive.py contains the margins with running statistics. docs/extend.md shows how to
write your own margin.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import paddle

from plsc.errors import UserError
from plsc.heads.constants import filled

# A smaller sine is replaced by this one in the derivative of cos(theta + m) with respect to cos(theta). This
# derivative grows as 1 / sin(theta). It is multiplied by the component of the centre that is orthogonal to
# the embedding, which shrinks as sin(theta). The product therefore stays correct except for rounding.
_SMALLEST_SINE = 1e-4


@dataclass
class Target:
    """The result of a margin.

    Attributes:
        cosine: new target cosines, float32 [N].
        slope: derivative of each new cosine with respect to the old cosine, float32 [N].
        norm_slope: derivative of each new cosine with respect to the embedding's norm, float32 [N]. None
            if no gradient flows through the norms.
    """

    cosine: paddle.Tensor
    slope: paddle.Tensor
    norm_slope: paddle.Tensor | None = None


class Margin(ABC):
    """Changes the target cosine of each sample. A subclass must define `__call__`. A subclass may also
    define two methods:

    others(cos_Nb, plain_N1, target_N1): changes the cosines with other classes. `cos_Nb` contains the cosines
        between the samples and a block of classes [N, b]. `plain_N1` and `target_N1` are each sample's target
        cosine without and with margin, [N, 1]. The method returns the new cosines [N, b], and their
        derivatives with respect to the old cosines [N, b]. The block may contain a sample's class. Its
        cosine in `cos_Nb` is then near -1e30, and the new cosine must also be far below all others. `others`
        needs one more collective, and more computations with all logits.
    penalty(norm_N): computes a term that is added to each sample's loss. `norm_N` contains the embeddings'
    norms [N]. The method returns the term [N] and its derivative with respect to the norm [N].
    """

    others: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    penalty: Callable[..., tuple[paddle.Tensor, paddle.Tensor]] | None = None
    # Running statistics by name. A value is a float or a scalar tensor on the device. To change a value,
    # assign a new dict, because the head keeps the old dict for the backward pass.
    statistics: Mapping[str, float | paddle.Tensor] = {}

    @abstractmethod
    def __call__(self, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target | paddle.Tensor:
        """Apply the margin to the target cosines.

        Args:
            cos_N: target cosines, float32 [N], in [-1, 1].
            norm_N: the embeddings' norms, float32 [N].

        Returns a Target, or the new cosines alone, float32 [N]. In the second case, autograd computes the
        derivatives.
        """

    def observe(self, norm_N: paddle.Tensor) -> None:  # noqa: B027 (most margins have nothing to do)
        """Update the statistics from the norms of all ranks' embeddings. The head calls this method in each
        training step, before it calls the margin."""

    def observe_targets(self, plain_N: paddle.Tensor) -> None:  # noqa: B027
        """Update the statistics from the target cosines of all ranks' samples, without margin. The head calls
        this method in each training step, before `others`. It does not call it if `others` is not defined."""

    def state_dict(self) -> dict[str, float]:
        """Return the statistics as floats, which a checkpoint stores."""
        return {name: float(number) for name, number in self.statistics.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the statistics from a checkpoint."""
        self.statistics = state


def apply_margin(margin: Margin, cos_N: paddle.Tensor, norm_N: paddle.Tensor) -> Target:
    """Call a margin. If it returns the new cosines alone, compute their derivatives by autograd.

    The result contains the margin's own derivatives. With `HeadSpec.straight_through`, `HeadStep` takes the
    slope as 1 instead.

    Args:
        margin: margin to call.
        cos_N: target cosines, float32 [N].
        norm_N: the embeddings' norms, float32 [N].

    Raises UserError if the result is neither a Target nor cosines, or if autograd cannot differentiate the
    new cosines.
    """
    target = margin(cos_N, norm_N)
    prefix = f"Head.name: {type(margin).__name__} returned"
    wanted = _describe(cos_N)
    found = [target.cosine, target.slope] if isinstance(target, Target) else [target]
    if any(_describe(each) != wanted for each in found):
        raise UserError(
            f"{prefix} {' and '.join(map(_describe, found))}; a margin must return "
            f"the new cosines ({wanted}), or a Target with the new cosines and their derivatives"
        )
    if isinstance(target, Target):
        return target
    # Call the margin again, this time with autograd. A margin that counts its calls would count two per step.
    inputs = [cos_N.detach(), norm_N.detach()]
    for tensor in inputs:
        tensor.stop_gradient = False
    with paddle.enable_grad():
        cosine = margin(*inputs)
        if cosine.stop_gradient:
            raise UserError(
                f"{prefix} cosines that autograd cannot differentiate with respect to the old cosines; "
                "compute the new cosines with Paddle's operators, or return a Target with their derivatives"
            )
        grads = paddle.grad([cosine.sum()], inputs, allow_unused=True)
    # A missing gradient is replaced by zeros, because `norm_slope` must be set on all ranks or on none.
    return Target(cosine.detach(), *(paddle.zeros_like(cos_N) if grad is None else grad for grad in grads))


def check_slopes(margin: Margin) -> None:
    """Raise UserError if a margin changes its arguments, if its result has the wrong type or shape, or if its
    `slope` or `norm_slope` is not the derivative that autograd computes.

    The derivatives are not checked if autograd cannot differentiate the margin's cosines. `build_margin`
    calls this function only for a class that the config names by its import path.
    """
    inputs = [paddle.linspace(-0.9, 0.9, 19), paddle.linspace(15.0, 33.0, 19)]
    copies = [tensor.clone() for tensor in inputs]
    with paddle.no_grad():
        margin(*copies)
    if any((copy != tensor).any() for copy, tensor in zip(copies, inputs)):
        raise UserError(
            f"Head.name: {type(margin).__name__} changes its arguments, which the head still needs; compute "
            "new tensors, for example with cos - 0.3 instead of cos.subtract_"
        )
    for tensor in inputs:
        tensor.stop_gradient = False
    target = apply_margin(margin, *inputs)
    if target.cosine.stop_gradient:  # autograd has computed the slopes, or cannot compute them
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
                f"{type(margin).__name__} returns the {what} {given_N[3].item():.3g} at the {at}, but the "
                f"derivative of its cosines is {slope_N[3].item():.3g}; return the cosines alone, and "
                "autograd computes the derivatives (detach the norms if no gradient should flow "
                "through them)",
                key="Head.name",
            )


def _describe(returned: object) -> str:
    if not paddle.is_tensor(returned):
        return f"a {type(returned).__name__}"
    return f"{str(returned.dtype).removeprefix('paddle.')} {list(returned.shape)}"


def angle(cos: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return theta in [0, pi], and sin(theta). A sine near 0 is replaced by a small positive number, so
    that the caller can divide by it."""
    cos = cos.clip(-1.0, 1.0)
    return cos.acos(), (1.0 - cos * cos).sqrt().clip(min=_SMALLEST_SINE)


class CosFace(Margin):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, equation 4)."""

    def __init__(self, margin: float = 0.35):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(cos_N - self.margin, paddle.ones_like(cos_N))


def add_angle(cos_N: paddle.Tensor, margin: float | paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute cos(theta + m), and its derivative with respect to cos(theta).

    If theta + m is larger than pi, the cosine would increase with theta. The result is then
    cos(theta) - m sin(m), as in the code of ArcFace's authors.

    Args:
        cos_N: cosines of theta, float32 [N].
        margin: angle m in radians, a float or a tensor [N].

    Returns the new cosines [N], and their derivatives with respect to the old cosines [N].
    """
    cos_N = cos_N.clip(-1.0, 1.0)
    sin_N = paddle.scale(cos_N * cos_N, -1.0, 1.0).sqrt()
    cot_N = cos_N / sin_N.clip(min=_SMALLEST_SINE)
    if isinstance(margin, float):  # needs fewer operations than a tensor
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
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, equation 3). The value decreases with theta even if
    theta + m is larger than pi (see add_angle)."""

    def __init__(self, margin: float = 0.5):
        self.margin = margin

    def __call__(self, cos_N, norm_N):
        return Target(*add_angle(cos_N, self.margin))


class CombinedMargin(Margin):
    """cos(m1 theta + m2) - m3 (Deng et al., ArcFace, CVPR 2019, equation 4).

    If m1 theta + m2 is in [k pi, (k + 1) pi], the value is (-1)^k cos(m1 theta + m2) - 2 k - m3. The value
    therefore decreases with theta everywhere, as psi does in SphereFace.
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
        if self.margin2 == 0:  # at theta = 0, the limit is m1^2, but sin_N was replaced
            slope_N = paddle.where(cos_N >= 1.0, paddle.full_like(slope_N, self.margin1**2), slope_N)
        return Target(sign_N * phi_N.cos() - 2.0 * k_N - self.margin3, slope_N)


class SphereFace(CombinedMargin):
    """psi(theta) = (-1)^k cos(m theta) - 2 k for theta in [k pi / m, (k + 1) pi / m] (Liu et al., SphereFace,
    CVPR 2017, equation 7), with normalised embeddings."""

    def __init__(self, margin: float = 1.7):
        super().__init__(margin, 0.0, 0.0)
