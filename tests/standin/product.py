"""A network of one product, which mixed precision computes in float16."""

import math

import paddle

from plsc.distributed.accelerator import on_device


class Product(paddle.nn.Layer):
    """Multiplies pixels by a matrix; on a CPU, which has no autocast, rounded as a device under autocast rounds."""

    def __init__(self, image_shape: tuple[int, int, int], embedding_size: int = 8):
        super().__init__()
        self.weight = self.create_parameter([math.prod(image_shape), embedding_size])

    def forward(self, images):
        x = images.flatten(1)
        if on_device():
            return paddle.matmul(x, self.weight).astype("float32")
        return _rounded(paddle.matmul(_rounded(x), _rounded(self.weight)))


def _rounded(x: paddle.Tensor) -> paddle.Tensor:
    return x.astype("float16").astype("float32")
