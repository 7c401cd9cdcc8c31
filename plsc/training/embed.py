"""Define an image's embedding, and embed any number of images with all ranks.

Evaluations, `plsc predict`, a run's galleries, `plsc doctor --trained` (without the mirror image) and
exported graphs all use `with_mirror`, so that they share one definition. Galleries with SFace or another
program's ONNX network do not use it. plsc.utils.preprocessing turns samples into the network's input.

Try it: `plsc predict images/ -c output/faces`.
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
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.sharding import split


def to_input(samples: np.ndarray | paddle.Tensor, preprocessing: Preprocessing) -> paddle.Tensor:
    """Turn samples into the backbone's input.

    Args:
        samples: samples [B, *shape]. An array is copied to the device. A tensor is there already.
        preprocessing: these samples' preprocessing.

    Returns the input, float32, on the device.
    """
    if isinstance(samples, np.ndarray):
        samples = to_device(samples) if takes_device_path() else paddle.to_tensor(samples)
    return preprocessing(samples)


def check_output(out: object, count: int, size: int | None = None) -> None:
    """Check a backbone's output. Raises UserError if it is not a float32 tensor [count, D].

    Further axes are allowed if their length is 1.

    Args:
        out: what the backbone returned.
        count: how many images the backbone was given.
        size: the required D. None allows any.
    """
    tensor = isinstance(out, paddle.Tensor)
    if not tensor or out.ndim < 2 or out.shape[0] != count or size not in (None, math.prod(out.shape[1:])):
        got = list(out.shape) if tensor else type(out).__name__
        remedy = "; Model.embedding_size says how long they are" if tensor and size else ""
        raise UserError(
            f"the backbone must give embeddings [{count}, {size or 'D'}] for {count} images, it gave "
            f"{got}{remedy}"
        )
    if out.dtype != paddle.float32:
        raise UserError(
            "the backbone must give float32 embeddings, it gave "
            f"{str(out.dtype).removeprefix('paddle.')}; end it with .astype('float32')"
        )


def with_mirror(
    backbone: Callable[[paddle.Tensor], paddle.Tensor], x: paddle.Tensor, flip: bool
) -> paddle.Tensor:
    """Compute the embeddings [B, D] of the input x.

    If `flip` is true (`DataLoader.Eval.flip`), the embedding of an image is the sum of two outputs of the
    network: for the image and for its mirror image. InsightFace's evaluation does the same. Neither the
    outputs nor the sum are normalised here.

    A change to this definition must increase plsc.checkpoint.saved.EMBEDDING.

    Args:
        backbone: computes the outputs [B, D].
        x: input [B, channels, height, width].
        flip: whether to add the output for the mirror image.
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
    """Compute all images' embeddings. Every rank calls it, and computes a contiguous share.

    A thread reads the next batch while the network runs. An image without a pixel above
    `preprocessing.darkest` gets a zero embedding, as in an exported graph.

    Raises UserError, the same on every rank, if one rank fails, for example if it cannot read an image.

    Args:
        backbone: the layer, without a data parallel wrapper. It runs in evaluation mode, and its mode is
            restored afterwards.
        images: (start, stop) -> samples uint8 [stop - start, *shape].
        count: image count.
        preprocessing: these samples' preprocessing.
        batch_size: images per batch.
        flip: whether to add the mirror image's embedding, see `with_mirror`.

    Returns the embeddings [count, D], float32 and not normalised, on every rank.
    """
    if not paddle.in_dynamic_mode():  # see distributed.init, which a gallery's threads have not called
        paddle.disable_static()
    start, stop = split(count, distributed.world_size())[distributed.rank()]
    training = backbone.training
    backbone.eval()

    def read(first: int, last: int) -> np.ndarray:
        pixels = images(first, last)
        wanted = (last - first, *preprocessing.shape)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != wanted:
            is_array = isinstance(pixels, np.ndarray)
            got = f"{pixels.dtype} {[*pixels.shape]}" if is_array else type(pixels).__name__
            raise UserError(f"images({first}, {last}) gave {got}; it must give uint8 {[*wanted]}")
        return pixels

    def through(pixels: np.ndarray) -> np.ndarray:
        rows = with_mirror(checked, to_input(pixels, preprocessing), flip).numpy()
        if preprocessing.darkest is not None:
            rows[pixels.reshape(len(pixels), -1).max(1) <= preprocessing.darkest] = 0
        return rows

    def checked(x: paddle.Tensor) -> paddle.Tensor:
        out = backbone(x)
        check_output(out, x.shape[0])
        return out.flatten(1)

    def share() -> np.ndarray:
        if start == stop:  # more ranks than images: embed one image anyway, to find D
            return through(read(0, 1))[:0]
        parts = []
        with Bar("embedding", stop - start, "images") as bar:
            for pixels in ahead(read, start, stop, batch_size):
                parts.append(through(pixels))
                bar.update(len(pixels))
        return np.concatenate(parts)

    try:
        return distributed.gather_array(distributed.run_on_all_ranks(share))
    finally:
        if training:
            backbone.train()


def ahead(read: Callable[[int, int], Any], start: int, stop: int, batch_size: int) -> Iterator[Any]:
    """Yield `read(first, last)` for each batch of [start, stop), and read the next batch meanwhile.

    Args:
        read: (first, last) -> a batch.
        start: first index.
        stop: index after the last one. It must be above `start`.
        batch_size: indices per batch.
    """
    bounds = [(first, min(first + batch_size, stop)) for first in range(start, stop, batch_size)]
    with ThreadPoolExecutor(1, thread_name_prefix="plsc-embed") as pool:
        coming = pool.submit(read, *bounds[0])
        for following in [*bounds[1:], None]:
            batch = coming.result()
            if following:
                coming = pool.submit(read, *following)
            yield batch
