"""Pictures to embeddings: a trained backbone over any number of pictures, spread over the ranks.

Used by verification during training, by test, predict and the report. The normalisation of pixels stands here once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle

from plsc import distributed
from plsc.sharding import split


def to_input(images: np.ndarray, contract: dict) -> paddle.Tensor:
    """uint8 pixels [B, C, H, W] -> the backbone's float32 input, normalised on the device: (pixel - mean) * scale."""
    return (paddle.to_tensor(images).astype("float32") - contract["mean"]) * contract["scale"]


@paddle.no_grad()
def embed(
    backbone: paddle.nn.Layer,
    images: Callable[[int, int], np.ndarray],
    count: int,
    contract: dict,
    batch_size: int,
) -> np.ndarray:
    """Embeddings [count, D] float32 of all images, on every rank. Every rank calls it; each takes a contiguous share.

    Args:
        backbone: the bare layer, not its data parallel wrapper. It is put into evaluation mode and back into its own.
        images: (start, stop) -> uint8 [stop - start, C, H, W].
        contract: the preprocessing, see plsc.data.dataset.preprocessing.
    """
    share = split(count, distributed.world_size())
    start, stop = share[distributed.rank()]
    training = backbone.training
    backbone.eval()
    try:
        parts = []
        for first in range(start, stop, batch_size):
            last = min(first + batch_size, stop)
            parts.append(backbone(to_input(images(first, last), contract)).flatten(1).numpy())
    finally:
        if training:
            backbone.train()
    return np.concatenate(
        [part for parts_of_rank in distributed.gather_objects(parts) for part in parts_of_rank]
    )
