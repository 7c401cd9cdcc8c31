"""A margin on the target and on the other classes that are most like a sample. The interface of a margin:
margins.py."""

from __future__ import annotations

import math
from typing import Annotated

import paddle
from pydantic import Field

from plsc.heads.margins import ArcFace, angle
from plsc.utils.ranges import MarginSize


class InterTopK(ArcFace):
    """The target as in ArcFace; the `top` largest cosines of a sample with other classes become cos(theta -
    penalty) (Zhao et al., Multi-Query Multi-Head Attention Pooling and Inter-TopK Penalty for Speaker
    Verification, ICASSP 2022).

    Where theta is less than the penalty it is cos(theta) + 1 - cos(penalty), which goes on rising as theta
    falls. Classes that are as far as the last of `top` count with it. No gradient flows through the choice.
    """

    has_others = True

    def __init__(
        self,
        margin: MarginSize = 0.2,
        top: Annotated[int, Field(ge=1, le=1000)] = 5,
        penalty: Annotated[float, Field(ge=0, le=1)] = 0.06,
    ):
        super().__init__(margin)
        self.hardest = top
        self.penalty_angle = penalty

    def others(self, cos_Nb, plain_N1, target_N1, hardest_N1):
        theta_Nb, sin_Nb = angle(cos_Nb)
        hard_Nb = cos_Nb >= hardest_N1
        less_Nb = theta_Nb - self.penalty_angle
        outside_Nb = less_Nb >= 0
        moved_Nb = paddle.where(outside_Nb, less_Nb.cos(), cos_Nb + (1.0 - math.cos(self.penalty_angle)))
        slope_Nb = paddle.where(outside_Nb, less_Nb.sin() / sin_Nb, paddle.ones_like(cos_Nb))
        return (
            paddle.where(hard_Nb, moved_Nb, cos_Nb),
            paddle.where(hard_Nb, slope_Nb, paddle.ones_like(cos_Nb)),
        )
