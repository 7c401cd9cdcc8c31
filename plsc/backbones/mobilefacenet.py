"""MobileFaceNet: a network with about two million parameters, for phones and for training on a CPU.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, not normalised

It has inverted residuals with PReLU: a 1x1 convolution widens, a 3x3 depthwise one follows, and a 1x1
one narrows without activation. A depthwise convolution as large as the last map replaces pooling. Source:
Chen et al., "MobileFaceNets" (2018), in InsightFace's arcface_torch variant. Widths, initial weights,
`scale` and the layers' names are that variant's, so that `plsc import` reads its weights.
"""

from typing import Annotated

import paddle
from paddle import nn
from pydantic import Field

from plsc.backbones.layers import Conv2D, Dropout, enter, leave, normalise
from plsc.backbones.ranges import Share

LAST = 512  # channels in the last feature map
Stages = Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=4, max_length=4)]


def _normal_by_outputs(outputs: int, area: int = 1) -> nn.initializer.Normal:
    """Initialise like He et al. (2015) by the output count. As in arcface_torch, groups are not
    counted."""
    return nn.initializer.Normal(0.0, (2 / (outputs * area)) ** 0.5)


class _Layers(nn.Layer):
    def __init__(self, *layers: nn.Layer):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class _Conv(_Layers):
    def forward(self, x, skip=None):
        conv, norm, *active = self.layers
        return normalise(norm, conv(x), *active, skip=skip)


class _Residual(_Layers):
    def forward(self, x):
        widen, depthwise, narrow = self.layers
        return narrow(depthwise(widen(x)), skip=x)


def _conv(
    inputs: int,
    outputs: int,
    kernel: tuple[int, int] = (1, 1),
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    active: bool = True,
) -> _Conv:
    start = _normal_by_outputs(outputs, kernel[0] * kernel[1])
    conv = Conv2D(inputs, outputs, kernel, stride, padding, groups=groups, bias_attr=False, weight_attr=start)
    return _Conv(conv, nn.BatchNorm2D(outputs), *([nn.PReLU(outputs)] if active else []))


def _bottleneck(inputs: int, outputs: int, inside: int, stride: int) -> list[nn.Layer]:
    return [
        _conv(inputs, inside),
        _conv(inside, inside, (3, 3), stride, 1, groups=inside),
        _conv(inside, outputs, active=False),
    ]


def _residuals(width: int, inside: int, count: int) -> _Layers:
    return _Layers(*(_Residual(*_bottleneck(width, width, inside, 1)) for _ in range(count)))


class MobileFaceNet(nn.Layer):
    """Computes embeddings by inverted residuals.

    Args:
        embedding_size: D.
        image_shape: the images' (channels, H, W). H and W may be any. Four layers halve them, rounding up.
        dropout: how much of the last 512 features is dropped in training.
        scale: factor on the paper's widths. arcface_torch's "mbf" has 2, and its "mbf_large" has 4.
        blocks: residuals in each of the four stages. "mbf" has 1, 4, 6, 2, and "mbf_large" has 2,
            8, 12, 4. If the first number is 1, the first stage is one grouped convolution.
    """

    recomputed = ("layers",)

    def __init__(
        self,
        embedding_size: int = 512,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        dropout: Share = 0.0,
        scale: Annotated[int, Field(ge=1, le=1000)] = 2,
        blocks: Stages = (1, 4, 6, 2),
    ):
        super().__init__()
        channels, height, width = image_shape
        narrow, wide = 64 * scale, 128 * scale
        self.layers = nn.LayerList(
            [
                _conv(channels, narrow, (3, 3), 2, 1),
                _conv(narrow, narrow, (3, 3), 1, 1, groups=64)
                if blocks[0] == 1
                else _residuals(narrow, 128, blocks[0]),
                _Layers(*_bottleneck(narrow, narrow, 128, 2)),
                _residuals(narrow, 128, blocks[1]),
                _Layers(*_bottleneck(narrow, wide, 256, 2)),
                _residuals(wide, 256, blocks[2]),
                _Layers(*_bottleneck(wide, wide, 512, 2)),
                _residuals(wide, 256, blocks[3]),
            ]
        )
        self.conv_sep = _conv(wide, LAST)
        last = (-(-height // 16), -(-width // 16))
        start = _normal_by_outputs(embedding_size)
        self.features = _Layers(
            _conv(LAST, LAST, last, groups=LAST, active=False),
            nn.Sequential(nn.Flatten(), Dropout(dropout)),
            nn.Linear(LAST, embedding_size, weight_attr=start, bias_attr=False),
            nn.BatchNorm1D(embedding_size),
        )

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        x = enter(images_BCHW)
        for layer in self.layers:
            x = layer(x)
        conv, flat, linear, norm = self.features.layers
        x = leave(conv(self.conv_sep(x)))
        return normalise(norm, linear(flat(x)))
