"""LeNet for small pictures: two convolutions with average pooling, then a fully connected layer.

    [B, 1, 28, 28] -> 20 @ 26 x 26 -> pool 13 x 13 -> 50 @ 9 x 9 -> pool 4 x 4 -> 800 -> embeddings [B, 128]

Source: LeCun et al., "Gradient-based learning applied to document recognition" (1998), with the sizes and the
ReLUs from "Dive into Deep Learning". That network's last layer, 128 -> 10 classes, is the head `softmax` with
a bias here. The head's [10, 128] centres are the layer's transposed weights. The backbone's six tensors have
127,778 numbers and the head's two have 1,290. Together they are LeNet's eight tensors with 129,068 numbers.

Try it: `plsc train -c configs/fashion_mnist_lenet.yaml`.
"""

import paddle
from paddle import nn

from plsc.backbones.layers import AvgPool2D, Conv2D, ReLU, enter, leave
from plsc.backbones.ranges import Positive
from plsc.errors import UserError

SMALLEST = 14  # pixels. Leaves one number per channel after the second pooling


class LeNet(nn.Layer):
    """Computes embeddings by two convolutions and a fully connected layer.

    Args:
        embedding_size: D, the fully connected layer's outputs. The embedding is their ReLU, so
            it has no negative numbers.
        image_shape: the images' (channels, H, W). UserError below 14 x 14.
        init_std: the initial weights' standard deviation. The biases start at 0.
    """

    def __init__(
        self,
        embedding_size: int = 128,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        init_std: Positive = 0.01,
    ):
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < SMALLEST:
            raise UserError(
                f"LeNet needs images of at least {SMALLEST} x {SMALLEST} pixels (got {height} x {width})",
                key="Model.name",
            )
        height, width = (((side - 2) // 2 - 4) // 2 for side in (height, width))
        parameters = {
            "weight_attr": nn.initializer.Normal(0.0, init_std),
            "bias_attr": nn.initializer.Constant(0.0),
        }
        self.layers = nn.Sequential(
            Conv2D(channels, 20, 3, **parameters),
            ReLU(),
            AvgPool2D(2),
            Conv2D(20, 50, 5, **parameters),
            ReLU(),
            AvgPool2D(2),
            nn.Flatten(),
            nn.Linear(50 * height * width, embedding_size, **parameters),
            nn.ReLU(),
        )

    def forward(self, images_BCHW: paddle.Tensor) -> paddle.Tensor:
        x = leave(self.layers[:6](enter(images_BCHW)))
        return self.layers[6:](x)
