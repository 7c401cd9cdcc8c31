"""Apply margins that depend on more than the target's angle: on norms, on other logits, or on running
statistics.

Each margin sees the whole global batch, and therefore keeps the same statistics on every rank. The checkpoint
stores them. margins.py has the interface of a margin, the symbols and the plain margins.
"""

import math
from collections.abc import Mapping

import paddle

from plsc.distributed.device import takes_device_path
from plsc.heads.margins import ArcFace, Margin, Target, add_angle, angle


def _running(before: Mapping, keep: float, **seen: paddle.Tensor) -> dict[str, float | paddle.Tensor]:
    """Update running means. The results are floats, or float64 scalars on the device if reading would wait.

    Args:
        before: running means so far, by name.
        keep: share that a running mean keeps.
        seen: new values by name, scalar tensors.
    """
    if takes_device_path():
        # Multiply tensors only. Paddle 2.6 rounds a float to float32, and a resumed run begins with floats.
        share, rest = _tensor(keep), _tensor(1 - keep)
        return {name: share * _tensor(before[name]) + rest * seen[name].astype("float64") for name in seen}
    return {name: keep * before[name] + (1 - keep) * seen[name].item() for name in seen}


def _tensor(statistic: float | paddle.Tensor) -> paddle.Tensor:
    """Return a statistic as a float64 scalar on the device."""
    return statistic if paddle.is_tensor(statistic) else paddle.full([], statistic, "float64")


def _factor(statistic: float | paddle.Tensor) -> float | paddle.Tensor:
    """Return a statistic as a factor for float32 tensors."""
    return statistic.astype("float32") if paddle.is_tensor(statistic) else statistic


class AdaFace(Margin):
    """cos(theta + g_angle) - g_add with g_angle = -m z, g_add = m z + m (Kim et al., AdaFace, CVPR 2022,
    equation 14).

    z = clip((norm - mean) / (deviation / h), -1, 1) estimates the image's quality from the norms' running
    statistics. As in the paper, no gradient flows through z. As in the authors' code, theta + g_angle is
    clipped to [0.001, pi - 0.001].
    """

    EDGE = 1e-3

    def __init__(self, margin: float = 0.4, h: float = 0.333, momentum: float = 0.99):
        self.margin = margin
        self.h = h
        self.momentum = momentum
        self.statistics = {"mean": 20.0, "deviation": 100.0}

    def observe(self, norm_N):
        norm_N = norm_N.clip(self.EDGE, 100.0)
        if len(norm_N) < 2:
            return  # one sample has no deviation
        mean = norm_N.mean()
        off_N = norm_N - mean
        deviation = ((off_N * off_N).sum() / (len(norm_N) - 1)).sqrt()  # Tensor.std would wait for the device
        self.statistics = _running(self.statistics, self.momentum, mean=mean, deviation=deviation)

    def __call__(self, cos_N, norm_N):
        norm_N = norm_N.detach()
        mean = _factor(self.statistics["mean"])
        deviation = _factor(self.statistics["deviation"])
        z_N = ((norm_N.clip(self.EDGE, 100.0) - mean) / (deviation + self.EDGE) * self.h).clip(-1.0, 1.0)
        theta_N, sin_N = angle(cos_N)
        raw_N = theta_N - self.margin * z_N
        moved_N = raw_N.clip(self.EDGE, math.pi - self.EDGE)
        inside_N = (raw_N == moved_N).astype("float32")
        return Target(moved_N.cos() - self.margin * (z_N + 1.0), inside_N * moved_N.sin() / sin_N)


class MagFace(Margin):
    """cos(theta + m(a)), with a margin m that depends on the norm a (Meng et al., MagFace, CVPR 2021,
    equations 5 and 6).

    m rises linearly from `low_margin` at a = `low` to `high_margin` at a = `high`. A penalty weight *
    (a / high^2 + 1 / a) pulls norms upwards. Norms are clipped to [low, high]. As in the authors' code, no
    gradient flows through a norm outside this range.
    """

    def __init__(
        self,
        low: float = 10.0,
        high: float = 110.0,
        low_margin: float = 0.45,
        high_margin: float = 0.8,
        weight: float = 35.0,
    ):
        self.low = low
        self.high = high
        self.low_margin = low_margin
        self.weight = weight
        self.rise = (high_margin - low_margin) / (high - low)

    def _inside(self, norm):
        return ((norm >= self.low) & (norm <= self.high)).astype("float32")

    def __call__(self, cos_N, norm_N):
        margin_N = self.low_margin + self.rise * (norm_N.clip(self.low, self.high) - self.low)
        value_N, slope_N = add_angle(cos_N, margin_N)
        cos_N = cos_N.clip(-1.0, 1.0)
        sin_N = (1.0 - cos_N * cos_N).sqrt()
        past_pi = cos_N <= -margin_N.cos()
        by_margin_N = paddle.where(
            past_pi,
            -(margin_N.sin() + margin_N * margin_N.cos()),
            -(cos_N * margin_N.sin() + sin_N * margin_N.cos()),
        )
        return Target(value_N, slope_N, by_margin_N * self.rise * self._inside(norm_N))

    def penalty(self, norm_N):
        a_N = norm_N.clip(self.low, self.high)
        value_N = self.weight * (a_N / self.high**2 + 1.0 / a_N)
        return value_N, self.weight * (1.0 / self.high**2 - 1.0 / (a_N * a_N)) * self._inside(norm_N)


class CurricularFace(ArcFace):
    """ArcFace that also changes hard other classes' cosines (Huang et al., CurricularFace, CVPR 2020,
    equations 5, 6 and 8).

    If another class's cosine c is above the target's cosine with margin, c becomes c (t + c). t is the
    running mean of the target cosines without margin. No gradient flows through t or the comparison.
    """

    def __init__(self, margin: float = 0.5, momentum: float = 0.99):
        super().__init__(margin)
        self.momentum = momentum
        self.statistics = {"t": 0.0}

    def observe_targets(self, plain_N):
        self.statistics = _running(self.statistics, self.momentum, t=plain_N.mean())

    def others(self, cos_Nb, plain_N1, target_N1):
        hard_Nb = cos_Nb > target_N1
        t = _factor(self.statistics["t"])
        return (
            paddle.where(hard_Nb, cos_Nb * (t + cos_Nb), cos_Nb),
            paddle.where(hard_Nb, t + 2.0 * cos_Nb, paddle.ones_like(cos_Nb)),
        )
