"""Margins: what the head does to the target logit, and the exact derivative of it.

One seam: a margin sees the P target cosines that fall into this rank's shard and the norms of their embeddings, at most N
numbers, and answers with the target's new cosine and its slope. The head scales both; all other logits stay as they are.
To write your own, subclass `Margin` and give it to the head (docs/extend.md).

Angles in radians. theta is the angle between an embedding and the centre of its own class.
"""

from __future__ import annotations

import math

import paddle

# Below this sine the derivative of cos(theta + m) by cos(theta) is cut off: it grows as 1 / sin(theta) while the tangent that
# it multiplies, centre minus projection, shrinks as sin(theta), so their product stays right to rounding.
_SMALLEST_SINE = 1e-4


class Margin:
    """The seam. A margin object has no state of its own beyond its constants."""

    def __call__(self, cos_P: paddle.Tensor, norm_P: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Target cosines [P] float32 in [-1, 1] and embedding norms [P] -> (new target cosine [P], its slope [P]).

        The slope is d(new cosine) / d(cosine), exact; the head multiplies it into the gradient.
        """
        raise NotImplementedError


class CosFace(Margin):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, equation 4)."""

    def __init__(self, margin: float = 0.35):
        self.margin = margin

    def __call__(self, cos_P, norm_P):
        return cos_P - self.margin, paddle.ones_like(cos_P)


class ArcFace(Margin):
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, equation 3).

    Where theta + m would pass pi the cosine would rise again; there the target becomes cos(theta) - m sin(m), as in the
    authors' code: still falling with theta.
    """

    def __init__(self, margin: float = 0.5):
        self.margin = margin
        self._cos, self._sin = math.cos(margin), math.sin(margin)

    def __call__(self, cos_P, norm_P):
        cos_P = cos_P.clip(-1.0, 1.0)
        sin_P = (1.0 - cos_P * cos_P).sqrt()
        target_P = cos_P * self._cos - sin_P * self._sin
        slope_P = self._cos + self._sin * cos_P / sin_P.clip(min=_SMALLEST_SINE)
        past_pi = cos_P <= -self._cos  # theta >= pi - m
        return (
            paddle.where(past_pi, cos_P - self.margin * self._sin, target_P),
            paddle.where(past_pi, paddle.ones_like(slope_P), slope_P),
        )
