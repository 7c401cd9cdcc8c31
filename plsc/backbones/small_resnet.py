"""A residual network for small pictures (glyphs, characters): few multiplications and no slow CPU operator.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, of any length (the head normalises)

A strided convolution opens each stage and residual blocks follow it. There is no PReLU and no depthwise
convolution: on Paddle's CPU path either costs as much as a full 3x3 convolution. Single-device code; it knows
no ranks.
"""

from __future__ import annotations

import paddle
from paddle import nn

from plsc.backbones.layers import Dropout
from plsc.errors import UserError


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2D(inputs, outputs, 3, stride, 1, bias_attr=False, weight_attr=nn.initializer.KaimingNormal()),
        nn.BatchNorm2D(outputs),
    )


class _Residual(nn.Layer):
    def __init__(self, width: int):
        super().__init__()
        self.first = _conv(width, width)
        self.second = _conv(width, width)

    def forward(self, x):
        return nn.functional.relu(x + self.second(nn.functional.relu(self.first(x))))


class SmallResNet(nn.Layer):
    """Computes embeddings by residual blocks on small pictures.

    Args:
        embedding_size: D.
        image_shape: (channels, H, W) of the images, any H and W.
        widths: channels of each stage; a stage halves the picture, rounding up.
        blocks: residual blocks of each stage; UserError unless there are as many as widths.
        dropout: share of the last feature map that is dropped in training.
    """

    def __init__(
        self,
        embedding_size: int = 128,
        image_shape: tuple[int, int, int] = (1, 32, 32),
        widths: list[int] = (16, 32, 64),
        blocks: list[int] = (0, 1, 1),
        dropout: float = 0.0,
    ):
        super().__init__()
        if len(blocks) != len(widths):
            raise UserError(
                f"Model.blocks: must have one number per stage, {len(widths)} as Model.widths has "
                f"(got {list(blocks)})"
            )
        channels, height, width = image_shape
        stages = []
        for outputs, depth in zip(widths, blocks):
            stages += [
                _conv(channels, outputs, stride=2),
                nn.ReLU(),
                *[_Residual(outputs) for _ in range(depth)],
            ]
            channels = outputs
            height = (height + 1) // 2
            width = (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.embed = nn.Sequential(
            nn.Flatten(),
            Dropout(dropout),
            nn.Linear(channels * height * width, embedding_size, bias_attr=False),
            nn.BatchNorm1D(embedding_size),
        )

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        return self.embed(self.stages(images_BCHW))
