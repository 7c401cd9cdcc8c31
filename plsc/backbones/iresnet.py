"""IResNet: the residual network that ArcFace is usually trained with, at five depths.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, of any length (the head normalises)

Residual blocks that begin with a batch norm and end with one, and no activation on the shortcut; a 3x3 stem that keeps the size;
four stages that halve it; a fully connected layer between batch norms in place of pooling. Deng et al., "ArcFace" (2019), section
3.1, after Han et al., "Deep Pyramidal Residual Networks" (2017). Its layers have the names of InsightFace's arcface_torch, whose
weights `plsc-import` reads. Single-device code; it knows no ranks. Try it: `plsc-train -c configs/ -o Model.name=IResNet18`.
"""

from __future__ import annotations

import paddle
from paddle import nn

WIDTHS = (64, 128, 256, 512)  # channels of the four stages


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2D:
    start = nn.initializer.Normal(0.0, 0.1)
    return nn.Conv2D(inputs, outputs, kernel, stride, kernel // 2, bias_attr=False, weight_attr=start)


class _Block(nn.Layer):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2D(inputs)
        self.conv1 = _conv(inputs, outputs, 3)
        self.bn2 = nn.BatchNorm2D(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = _conv(outputs, outputs, 3, stride)
        self.bn3 = nn.BatchNorm2D(outputs)
        shortcut = [_conv(inputs, outputs, 1, stride), nn.BatchNorm2D(outputs)] if stride != 1 else []
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x):
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + self.downsample(x)


class _Features(nn.BatchNorm1D):
    """Batch norm whose gain stays what it is, 1; its bias is trained.

    In training they stand outside of Paddle's operator, which gives the bias no gradient when the gain takes none.
    """

    def __init__(self, width: int):
        super().__init__(width)
        self.weight.stop_gradient = True

    def forward(self, x):
        if not self.training:
            return nn.BatchNorm1D.forward(self, x)  # no super(): Paddle 2.6 cannot trace it
        x = nn.functional.batch_norm(x, self._mean, self._variance, training=True)
        return x * self.weight + self.bias


class IResNet(nn.Layer):
    """What the five have in common.

    Args:
        embedding_size: D.
        image_shape: (channels, H, W) of the images, any H and W; a stage halves them, rounding up.
        dropout: share of the last feature map that is dropped in training.
    """

    blocks: tuple[int, int, int, int]  # of each stage

    def __init__(
        self,
        embedding_size: int = 512,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        dropout: float = 0.0,
    ):
        super().__init__()
        channels, height, width = image_shape
        inputs = WIDTHS[0]
        self.conv1 = _conv(channels, inputs, 3)
        self.bn1 = nn.BatchNorm2D(inputs)
        self.prelu = nn.PReLU(inputs)
        for number, (outputs, depth) in enumerate(zip(WIDTHS, self.blocks), 1):
            others = [_Block(outputs, outputs, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{number}", nn.Sequential(_Block(inputs, outputs, 2), *others))
            inputs, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.bn2 = nn.BatchNorm2D(inputs)
        self.dropout = nn.Dropout(dropout)
        flat = inputs * height * width
        start = nn.initializer.Uniform(-(flat**-0.5), flat**-0.5)
        self.fc = nn.Linear(flat, embedding_size, weight_attr=start, bias_attr=start)
        self.features = _Features(embedding_size)

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        x = self.prelu(self.bn1(self.conv1(images_BCHW)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.features(self.fc(self.dropout(self.bn2(x).flatten(1))))


class IResNet18(IResNet):
    """IResNet of 2, 2, 2, 2 blocks."""

    blocks = (2, 2, 2, 2)


class IResNet34(IResNet):
    """IResNet of 3, 4, 6, 3 blocks."""

    blocks = (3, 4, 6, 3)


class IResNet50(IResNet):
    """IResNet of 3, 4, 14, 3 blocks."""

    blocks = (3, 4, 14, 3)


class IResNet100(IResNet):
    """IResNet of 3, 13, 30, 3 blocks."""

    blocks = (3, 13, 30, 3)


class IResNet200(IResNet):
    """IResNet of 6, 26, 60, 6 blocks."""

    blocks = (6, 26, 60, 6)
