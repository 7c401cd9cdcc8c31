"""ResNet50, ResNet100, ResNet101 and ResNet152 from PLSC 0.1 and 0.2. They are not ImageNet's networks.

    images [B, channels, H, W] float32, normalised -> embeddings [B, D] float32, not normalised

PLSC 0.2's plsc/models/resnet.py builds IResNet's blocks, stem and fully connected layer, not bottlenecks, so
its ResNet100 is IResNet100. It differs in these points: a PReLU has one slope for all channels, the batch
norms have epsilon 2e-5, the last batch norm's gain is trained, the initial weights depend on the output
count, and dropout is 0.4. Use these networks for runs from that time, and IResNet for new ones.
"""

from paddle import nn

from plsc.backbones.iresnet import IResNet, IResNet50, IResNet100, Style
from plsc.backbones.ranges import Share


class ResNet(IResNet):
    """Base class for the four depths. Its arguments are IResNet's."""

    style = Style(
        conv_std=lambda outputs, kernel: (2 / (outputs * kernel * kernel)) ** 0.5,
        epsilon=2e-5,
        one_slope=True,
    )

    def __init__(
        self,
        embedding_size: int = 512,
        image_shape: tuple[int, int, int] = (3, 112, 112),
        dropout: Share = 0.4,
    ):
        super().__init__(embedding_size, image_shape, dropout)

    def last(self, inputs: int, outputs: int) -> tuple[nn.Linear, nn.BatchNorm1D]:
        start = nn.initializer.Normal(0.0, (2 / outputs) ** 0.5)
        linear = nn.Linear(inputs, outputs, weight_attr=start, bias_attr=nn.initializer.Constant(0.0))
        return linear, nn.BatchNorm1D(outputs, epsilon=self.style.epsilon)


class ResNet50(ResNet):
    """ResNet with 3, 4, 14, 3 blocks."""

    blocks = IResNet50.blocks


class ResNet100(ResNet):
    """ResNet with 3, 13, 30, 3 blocks."""

    blocks = IResNet100.blocks


class ResNet101(ResNet):
    """ResNet with 3, 4, 23, 3 blocks."""

    blocks = (3, 4, 23, 3)


class ResNet152(ResNet):
    """ResNet with 3, 8, 36, 3 blocks."""

    blocks = (3, 8, 36, 3)
