"""A network of one product, which mixed precision computes in 16 bits."""

import math

import paddle

from plsc.distributed.device import on_device


class Product(paddle.nn.Layer):
    """Multiplies pixels by a matrix; on a CPU, which has no autocast, rounded as a device under autocast
    rounds."""

    def __init__(self, image_shape: tuple[int, int, int], embedding_size: int = 8, dtype: str = "float16"):
        super().__init__()
        self.dtype = dtype
        self.weight = self.create_parameter([math.prod(image_shape), embedding_size])

    def forward(self, images):
        x = images.flatten(1)
        if on_device():
            return paddle.matmul(x, self.weight).astype("float32")
        return self._rounded(paddle.matmul(self._rounded(x), self._rounded(self.weight)))

    def _rounded(self, x: paddle.Tensor) -> paddle.Tensor:
        return x.astype(self.dtype).astype("float32")
