"""Define the embedding of an image, and embed any number of images, spread over the ranks.

Evaluations, `plsc predict`, galleries of a run and exported graphs all use `with_mirror`, so that they agree
on what an embedding is. plsc.utils.preprocessing turns samples into the network's input.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.distributed.device import takes_device_path, to_device
from plsc.errors import UserError
from plsc.utils.bar import Bar
from plsc.utils.preprocessing import DARKEST, Preprocessing
from plsc.utils.sharding import split


def to_input(samples: np.ndarray | paddle.Tensor, preprocessing: Preprocessing) -> paddle.Tensor:
    """Turn samples [B, *shape], there already if they are a tensor, into the backbone's float32 input on the
    device."""
    if isinstance(samples, np.ndarray):
        samples = to_device(samples) if takes_device_path() else paddle.to_tensor(samples)
    return preprocessing(samples)


def check_output(out: object, count: int, size: int | None = None) -> None:
    """Refuse a backbone's output for `count` images unless it is a tensor [count, D], axes of 1 aside.

    With `size` D must be that. Raises UserError.
    """
    tensor = isinstance(out, paddle.Tensor)
    if not tensor or out.ndim < 2 or out.shape[0] != count or size not in (None, math.prod(out.shape[1:])):
        got = list(out.shape) if tensor else type(out).__name__
        remedy = "; Model.embedding_size says how long they are" if tensor and size else ""
        raise UserError(
            f"the backbone must give embeddings [{count}, {size or 'D'}] of {count} images, it gave "
            f"{got}{remedy}"
        )
    if out.dtype != paddle.float32:
        raise UserError(
            "the backbone must give embeddings of float32, it gave "
            f"{str(out.dtype).removeprefix('paddle.')}; end it with .astype('float32')"
        )


def with_mirror(
    backbone: Callable[[paddle.Tensor], paddle.Tensor], x: paddle.Tensor, flip: bool
) -> paddle.Tensor:
    """Compute the embeddings [B, D] of the input x [B, C, H, W].

    With `flip` the embedding of an image is the sum of the network's outputs for the image and for its mirror
    image, as in InsightFace's evaluation. It is divided by its length afterwards, the two outputs are not.
    Whoever changes this definition raises plsc.checkpoint.saved.EMBEDDING.
    """
    out = backbone(x)
    return out + backbone(paddle.flip(x, [3])) if flip else out


@paddle.no_grad()
def embed(
    backbone: paddle.nn.Layer,
    images: Callable[[int, int], np.ndarray],
    count: int,
    preprocessing: Preprocessing,
    batch_size: int,
    flip: bool = False,
) -> np.ndarray:
    """Compute the embeddings [count, D] float32 of all images, of any length, on every rank.

    Every rank calls it, and computes a contiguous share. A thread reads the next batch while the network
    runs. An image without a pixel above DARKEST has an embedding of zeros, as in an exported graph.
    UserError, the same on every rank, if one rank fails, such as in reading an image.

    Args:
        backbone: the bare layer, not its data parallel wrapper. It is put into evaluation mode and back into
            its own.
        images: (start, stop) -> samples uint8 [stop - start, *shape].
        preprocessing: of these samples.
        flip: add the embedding of the mirror image, see `with_mirror`.
    """
    if not paddle.in_dynamic_mode():  # see distributed.init; a gallery's threads have not called it
        paddle.disable_static()
    start, stop = split(count, distributed.world_size())[distributed.rank()]
    training = backbone.training
    backbone.eval()

    def through(pixels: np.ndarray) -> np.ndarray:
        rows = with_mirror(checked, to_input(pixels, preprocessing), flip).numpy()
        rows[pixels.reshape(len(pixels), -1).max(1) <= DARKEST] = 0
        return rows

    def checked(x: paddle.Tensor) -> paddle.Tensor:
        out = backbone(x)
        check_output(out, x.shape[0])
        return out.flatten(1)

    def share() -> np.ndarray:
        if start == stop:  # more ranks than images: one goes through all the same, to know D
            return through(images(0, 1))[:0]
        parts = []
        with Bar("embedding", stop - start, "images") as bar:
            for pixels in ahead(images, start, stop, batch_size):
                parts.append(through(pixels))
                bar.update(len(pixels))
        return np.concatenate(parts)

    try:
        return distributed.gather_array(distributed.run_on_all_ranks(share))
    finally:
        if training:
            backbone.train()


def ahead(read: Callable[[int, int], Any], start: int, stop: int, batch_size: int) -> Iterator[Any]:
    """Yield `read(start, stop)` for each batch of [start, stop), not empty, reading the next one while one is
    in use."""
    bounds = [(first, min(first + batch_size, stop)) for first in range(start, stop, batch_size)]
    with ThreadPoolExecutor(1, thread_name_prefix="plsc-embed") as pool:
        coming = pool.submit(read, *bounds[0])
        for following in [*bounds[1:], None]:
            batch = coming.result()
            if following:
                coming = pool.submit(read, *following)
            yield batch
