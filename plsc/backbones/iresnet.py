"""IResNet: the residual network that ArcFace is usually trained with, in five depths.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, not normalised

A 3x3 stem keeps the size, and four stages halve it. A residual block begins and ends with a batch norm, and
its shortcut has no activation. A fully connected layer between batch norms replaces pooling. Source: Deng et
al., "ArcFace" (2019), section 3.1, after Han et al., "Deep Pyramidal Residual Networks" (2017). The layers
have the same names as in InsightFace's arcface_torch, whose weights `plsc import` reads.
"""

from collections.abc import Callable
from typing import NamedTuple

import paddle
from paddle import nn

from plsc.backbones.layers import Conv2D, Dropout, enter, leave, normalise, normalise_beside
from plsc.backbones.ranges import Share

WIDTHS = (64, 128, 256, 512)  # channels in the four stages


class Style(NamedTuple):
    """How a block builds its layers. plsc/backbones/resnet.py has another style.

    conv_std: gives a convolution's initial standard deviation from its outputs and kernel
        side.
    epsilon: the batch norms' epsilon.
    one_slope: whether a PReLU has one slope for all channels instead of one per channel.
    """

    conv_std: Callable[[int, int], float] = lambda outputs, kernel: 0.1
    epsilon: float = 1e-5
    one_slope: bool = False

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Conv2D:
        start = nn.initializer.Normal(0.0, self.conv_std(outputs, kernel))
        return Conv2D(inputs, outputs, kernel, stride, kernel // 2, bias_attr=False, weight_attr=start)

    def norm(self, width: int) -> nn.BatchNorm2D:
        return nn.BatchNorm2D(width, epsilon=self.epsilon)

    def prelu(self, width: int) -> nn.PReLU:
        return nn.PReLU(1 if self.one_slope else width)


class _Block(nn.Layer):
    def __init__(self, style: Style, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = style.norm(inputs)
        self.conv1 = style.conv(inputs, outputs, 3)
        self.bn2 = style.norm(outputs)
        self.prelu = style.prelu(outputs)
        self.conv2 = style.conv(outputs, outputs, 3, stride)
        self.bn3 = style.norm(outputs)
        shortcut = [style.conv(inputs, outputs, 1, stride), style.norm(outputs)] if stride != 1 else []
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x):
        out, x = normalise_beside(self.bn1, x)
        out = normalise(self.bn2, self.conv1(out), self.prelu)
        shortcut = normalise(self.downsample[1], self.downsample[0](x)) if len(self.downsample) else x
        return normalise(self.bn3, self.conv2(out), skip=shortcut)


class _Features(nn.BatchNorm1D):
    """Batch norm with a gain fixed at 1 and a bias that is trained.

    In training, gain and bias are applied outside Paddle's operator, because that operator gives the bias no
    gradient if the gain has none. Without a gain the operator would also read 16-bit numbers as float32, so
    it gets float32.
    """

    def __init__(self, width: int):
        super().__init__(width)
        self.weight.stop_gradient = True

    def forward(self, x):
        if not self.training:
            return nn.BatchNorm1D.forward(self, x)  # no super(): Paddle 2.6 cannot trace it
        x = nn.functional.batch_norm(x.astype("float32"), self._mean, self._variance, training=True)
        return x * self.weight + self.bias


class IResNet(nn.Layer):
    """Base class for the five depths.

    Args:
        embedding_size: D.
        image_shape: the images' (channels, H, W). H and W may be any. A stage halves them, rounding up.
        dropout: how much of the last feature map is dropped in training.
    """

    blocks: tuple[int, int, int, int]  # blocks in each stage
    style = Style()

    def __init__(
        self,
        embedding_size: int = 512,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        dropout: Share = 0.0,
    ):
        super().__init__()
        channels, height, width = image_shape
        style = self.style
        inputs = WIDTHS[0]
        self.conv1 = style.conv(channels, inputs, 3)
        self.bn1 = style.norm(inputs)
        self.prelu = style.prelu(inputs)
        for number, (outputs, depth) in enumerate(zip(WIDTHS, self.blocks), 1):
            others = [_Block(style, outputs, outputs, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{number}", nn.Sequential(_Block(style, inputs, outputs, 2), *others))
            inputs = outputs
            height = (height + 1) // 2
            width = (width + 1) // 2
        self.recomputed = [
            f"layer{number}.{block}" for number, depth in enumerate(self.blocks, 1) for block in range(depth)
        ]
        self.bn2 = style.norm(inputs)
        self.dropout = Dropout(dropout)
        self.fc, self.features = self.last(inputs * height * width, embedding_size)

    def last(self, inputs: int, outputs: int) -> tuple[nn.Linear, nn.BatchNorm1D]:
        """Build the layers that compute the embedding."""
        start = nn.initializer.Uniform(-(inputs**-0.5), inputs**-0.5)
        return nn.Linear(inputs, outputs, weight_attr=start, bias_attr=start), _Features(outputs)

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        x = normalise(self.bn1, self.conv1(enter(images_BCHW)), self.prelu)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = leave(normalise(self.bn2, x))
        return self.features(self.fc(self.dropout(x.flatten(1))))


class IResNet18(IResNet):
    """IResNet with 2, 2, 2, 2 blocks."""

    blocks = (2, 2, 2, 2)


class IResNet34(IResNet):
    """IResNet with 3, 4, 6, 3 blocks."""

    blocks = (3, 4, 6, 3)


class IResNet50(IResNet):
    """IResNet with 3, 4, 14, 3 blocks."""

    blocks = (3, 4, 14, 3)


class IResNet100(IResNet):
    """IResNet with 3, 13, 30, 3 blocks."""

    blocks = (3, 13, 30, 3)


class IResNet200(IResNet):
    """IResNet with 6, 26, 60, 6 blocks."""

    blocks = (6, 26, 60, 6)
