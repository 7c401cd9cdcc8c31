"""Margins that depend on more than the target's angle: on its norm, the other logits, or the run so far.

Each keeps the same numbers on every rank, because it sees the whole global batch, and gives them to the
checkpoint. The interface of a margin, the symbols and the plain margins are in margins.py.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import paddle
from pydantic import Field

from plsc.distributed.device import asynchronous
from plsc.errors import UserError
from plsc.heads.margins import Margin, Target, Wrapped, add_angle, angle
from plsc.utils.ranges import MarginSize, Positive, Share


def _running(before: float | paddle.Tensor, keep: float, observed: paddle.Tensor) -> float | paddle.Tensor:
    """Average a new number in: a float, or a float64 scalar that stays on the device where reading waits."""
    if asynchronous():
        # No float times a tensor: Paddle 2.6 rounds the float to float32, and a resumed run begins with one.
        before, share, rest = map(_tensor, (before, keep, 1 - keep))
        return share * before + rest * observed.astype("float64")
    return keep * before + (1 - keep) * observed.item()


def _tensor(statistic: float | paddle.Tensor) -> paddle.Tensor:
    """Make a number a float64 scalar on the device, if it is none."""
    return statistic if paddle.is_tensor(statistic) else paddle.full([], statistic, "float64")


def _factor(statistic: float | paddle.Tensor) -> float | paddle.Tensor:
    """Turn a statistic into what float32 tensors are computed with."""
    return statistic.astype("float32") if paddle.is_tensor(statistic) else statistic


class AdaFace(Margin):
    """cos(theta + g_angle) - g_add with g_angle = -m z, g_add = m z + m (Kim et al., AdaFace, CVPR 2022,
    equation 14).

    z = clip((norm - mean) / (deviation / h), -1, 1) estimates the image's quality from running statistics of
    the norms. As in the paper no gradient flows through z. theta + g_angle is kept inside [0.001, pi -
    0.001], as in the authors' code.
    """

    EDGE = 1e-3

    def __init__(self, margin: float = 0.4, h: Positive = 0.333, momentum: Share = 0.99):
        self.margin = margin
        self.h = h
        self.momentum = momentum
        self.mean = 20.0
        self.deviation = 100.0

    def observe(self, norm_N):
        norm_N = norm_N.clip(self.EDGE, 100.0)
        if len(norm_N) < 2:
            return  # one sample has no deviation
        mean = norm_N.mean()
        off_N = norm_N - mean
        deviation = ((off_N * off_N).sum() / (len(norm_N) - 1)).sqrt()  # Tensor.std would wait for the device
        self.mean = _running(self.mean, self.momentum, mean)
        self.deviation = _running(self.deviation, self.momentum, deviation)

    def __call__(self, cos_P, norm_P):
        mean = _factor(self.mean)
        deviation = _factor(self.deviation)
        z_P = ((norm_P.clip(self.EDGE, 100.0) - mean) / (deviation + self.EDGE) * self.h).clip(-1.0, 1.0)
        theta_P, sin_P = angle(cos_P)
        raw_P = theta_P - self.margin * z_P
        moved_P = raw_P.clip(self.EDGE, math.pi - self.EDGE)
        inside_P = (raw_P == moved_P).astype("float32")
        return Target(moved_P.cos() - self.margin * (z_P + 1.0), inside_P * moved_P.sin() / sin_P)

    def state_dict(self):
        return {"mean": float(self.mean), "deviation": float(self.deviation)}

    def load_state_dict(self, state):
        self.mean = state["mean"]
        self.deviation = state["deviation"]

    def remember(self):
        return partial(self.load_state_dict, {"mean": self.mean, "deviation": self.deviation})


class MagFace(Margin):
    """cos(theta + m(a)), m linear from `low_margin` at norm a = `low` to `high_margin` at `high`, and a
    penalty weight * (a / high^2 + 1 / a) that pulls norms upwards (Meng et al., MagFace, CVPR 2021, equations
    5 and 6).

    Norms are clipped to [low, high]; outside, no gradient flows through them, as in the authors' code.
    """

    trains_norm = True

    def __init__(
        self,
        low: Positive = 10.0,
        high: Positive = 110.0,
        low_margin: MarginSize = 0.45,
        high_margin: MarginSize = 0.8,
        weight: Annotated[float, Field(ge=0, le=10_000)] = 35.0,
    ):
        if not 0 < low < high:
            raise UserError(f"magface: low and high must be 0 < low < high (got {low:g} and {high:g})")
        self.low = low
        self.high = high
        self.low_margin = low_margin
        self.weight = weight
        self.rise = (high_margin - low_margin) / (high - low)

    def _inside(self, norm):
        return ((norm >= self.low) & (norm <= self.high)).astype("float32")

    def __call__(self, cos_P, norm_P):
        margin_P = self.low_margin + self.rise * (norm_P.clip(self.low, self.high) - self.low)
        value_P, slope_P = add_angle(cos_P, margin_P)
        cos_P = cos_P.clip(-1.0, 1.0)
        sin_P = (1.0 - cos_P * cos_P).sqrt()
        past_pi = cos_P <= -margin_P.cos()
        by_margin_P = paddle.where(
            past_pi,
            -(margin_P.sin() + margin_P * margin_P.cos()),
            -(cos_P * margin_P.sin() + sin_P * margin_P.cos()),
        )
        return Target(value_P, slope_P, by_margin_P * self.rise * self._inside(norm_P))

    def penalty(self, norm_B):
        a_B = norm_B.clip(self.low, self.high)
        value_B = self.weight * (a_B / self.high**2 + 1.0 / a_B)
        return value_B, self.weight * (1.0 / self.high**2 - 1.0 / (a_B * a_B)) * self._inside(norm_B)


class CurricularFace(Margin):
    """The target as in ArcFace; another class's cosine c above the target's becomes c (t + c), t the running
    mean of the plain target cosines (Huang et al., CurricularFace, CVPR 2020, equations 5, 6 and 8).

    No gradient flows through t, nor through the comparison.
    """

    has_others = True

    def __init__(self, margin: float = 0.5, momentum: Share = 0.99):
        self.margin = margin
        self.momentum = momentum
        self.t = 0.0

    def __call__(self, cos_P, norm_P):
        return Target(*add_angle(cos_P, self.margin))

    def observe_targets(self, plain_N):
        self.t = _running(self.t, self.momentum, plain_N.mean())

    def others(self, cos_Nb, plain_N1, target_N1):
        hard_Nb = cos_Nb > target_N1
        t = _factor(self.t)
        return (
            paddle.where(hard_Nb, cos_Nb * (t + cos_Nb), cos_Nb),
            paddle.where(hard_Nb, t + 2.0 * cos_Nb, paddle.ones_like(cos_Nb)),
        )

    def state_dict(self):
        return {"t": float(self.t)}

    def load_state_dict(self, state):
        self.t = state["t"]

    def remember(self):
        return partial(self.load_state_dict, {"t": self.t})


class InterClassFilter(Wrapped):
    """Sets the cosines of other classes above `threshold` to 0, beside another margin: they are likely the
    same person under two names (An et al., Partial FC, CVPR 2022, section 3.3, and the authors' code). No
    gradient flows where it is set."""

    def __init__(self, inner: Margin, threshold: float):
        assert not inner.has_others, "one margin at a time changes the other classes"
        super().__init__(inner)
        self.has_others = True
        self.threshold = threshold
        self.others = self._filter

    def _filter(self, cos_Nb, plain_N1, target_N1):
        stays_Nb = (cos_Nb <= self.threshold).astype("float32")
        return cos_Nb * stays_Nb, stays_Nb
