"""A residual network for small pictures, such as characters. It needs few multiplications.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, not normalised

Each stage begins with a strided convolution, and residual blocks follow. There is no PReLU and no depthwise
convolution, because each costs as much as a full 3x3 convolution with Paddle's CPU operators.
"""

import paddle
from paddle import nn

from plsc.backbones.layers import Conv2D, Dropout, enter, leave, normalise
from plsc.backbones.ranges import Depths, Share, Widths
from plsc.errors import UserError


class _Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        start = nn.initializer.KaimingNormal()
        conv = Conv2D(inputs, outputs, 3, stride, 1, bias_attr=False, weight_attr=start)
        super().__init__(conv, nn.BatchNorm2D(outputs), nn.ReLU())

    def forward(self, x, skip=None):
        conv, norm, relu = self
        return normalise(norm, conv(x), relu, skip)


class _Residual(nn.Layer):
    def __init__(self, width: int):
        super().__init__()
        self.first = _Conv(width, width)
        self.second = _Conv(width, width)

    def forward(self, x):
        return self.second(self.first(x), skip=x)


class SmallResNet(nn.Layer):
    """Computes embeddings by residual blocks on small pictures.

    Args:
        embedding_size: D.
        image_shape: the images' (channels, H, W). H and W may be any.
        widths: channels in each stage. A stage halves the picture, rounding up.
        blocks: residual blocks in each stage. UserError if it differs in length from `widths`.
        dropout: how much of the last feature map is dropped in training.
    """

    def __init__(
        self,
        embedding_size: int = 128,
        image_shape: tuple[int, int, int] = (1, 32, 32),
        widths: Widths = (16, 32, 64),
        blocks: Depths = (0, 1, 1),
        dropout: Share = 0.0,
    ):
        super().__init__()
        if len(blocks) != len(widths):
            raise UserError(
                f"must have one number per stage, like Model.widths with its {len(widths)} (got "
                f"{list(blocks)})",
                key="Model.blocks",
            )
        channels, height, width = image_shape
        stages = []
        for outputs, depth in zip(widths, blocks):
            # The Identity replaces an earlier ReLU layer. Weights are named by the layers' numbers,
            # so removing it would rename them.
            stages += [_Conv(channels, outputs, stride=2), nn.Identity()]
            stages += [_Residual(outputs) for _ in range(depth)]
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
        flatten, dropout, linear, norm = self.embed
        x = leave(self.stages(enter(images_BCHW)))
        return normalise(norm, linear(dropout(flatten(x))))
