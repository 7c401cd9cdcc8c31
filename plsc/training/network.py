"""Run the backbone in a training step: embeddings forward, then their gradients backward.

`forward` gives the embeddings as a leaf, cut off from the backbone's graph, so that the head works on the
samples of the whole step at once; `backward` takes their gradient on through the backbone. Only there are
gradients of the backbone computed, and averaged over the ranks.

Try it: `pytest tests/training/test_network.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import paddle

from plsc import distributed
from plsc.config.schema import AmpCfg
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.training.embed import check_output, to_input
from plsc.training.loss_scaler import LossScaler
from plsc.utils.logging import warn
from plsc.utils.timing import timer


def check_amp(amp: AmpCfg | None) -> None:
    """Refuse by UserError mixed precision that this GPU lacks; warn that on a CPU it does not mix."""
    if amp is None:
        return
    if paddle.get_device().startswith("cpu"):
        warn(
            f"Global.amp: a CPU computes the backbone in float32, so nothing is saved; only the head's products are rounded to {amp.dtype}"
        )
    elif amp.dtype == "bfloat16" and not paddle.amp.is_bfloat16_supported():
        raise UserError(
            "Global.amp.dtype: bfloat16 needs a GPU of compute capability 8.0 (A100) or later, which this one is not; set float16"
        )


class Network:
    """Runs a backbone on this rank's samples. Every rank makes one.

    Args:
        backbone: the bare layer.
        preprocessing: of the samples.
        embedding_size: D that the backbone must give.
        seed: of the random numbers in a forward pass, together with step and rank.
        still: layers of it that are in evaluation mode in training, too: frozen norms.
        amp: computes in 16 bits on GPUs; a CPU computes in float32 all the same. Parameters, their gradients
            and the embeddings that `forward` gives are float32 either way.
        scaler: of the gradients, for float16.
    """

    def __init__(
        self,
        backbone: paddle.nn.Layer,
        preprocessing: Preprocessing,
        embedding_size: int,
        seed: int,
        still: Sequence[paddle.nn.Layer] = (),
        amp: AmpCfg | None = None,
        scaler: LossScaler | None = None,
    ):
        self.backbone = backbone
        self._preprocessing = preprocessing
        self._embedding_size = embedding_size
        self._seed = seed
        self._still = still
        self._amp = amp
        self._scaler = scaler
        self._model = backbone
        self._embed_again: Callable[[], paddle.Tensor] | None = None  # by the bare backbone
        self._out: paddle.Tensor | None = None  # of the last forward pass, with its graph

    def start(self) -> None:
        """Replicate the backbone: rank 0's parameters on every rank. Every rank calls it, before the first
        step."""
        self._model = distributed.data_parallel(self.backbone)

    def forward(self, images: np.ndarray, step: int) -> paddle.Tensor:
        """Compute the embeddings of this rank's samples [B, *shape] in step `step` (from 0): float32 [B, D],
        a leaf whose gradient `backward` takes."""
        with timer.part("forward"):
            self._out = self._embed(self._model, images, step)
        self._embed_again = lambda: self._embed(self.backbone, images, step)
        emb_BD = self._out.detach()
        emb_BD.stop_gradient = False
        return emb_BD

    def backward(self, grad_BD: paddle.Tensor) -> None:
        """Compute the parameters' gradients, averaged over the ranks, from that of the last embeddings. Every
        rank calls it. With a scaler some may be inf or NaN because its scale is too large."""
        out, self._out = self._out, None
        with timer.part("backward"):
            if self._scaler is None:
                out.backward(grad_BD)
            else:
                out.backward(grad_BD * self._scaler.scale)
                self._scaler.unscale(self.backbone.parameters())

    def own_backward(self, grad_BD: paddle.Tensor) -> None:
        """Compute this rank's own gradients anew in place of the averages, by running the last forward pass
        again with the same random numbers. Every rank calls it."""
        for parameter in self.backbone.parameters():
            parameter.clear_gradient()
        self._embed_again().backward(grad_BD)

    def _autocast(self) -> AbstractContextManager:
        """Let Paddle choose the dtype of each op; on a CPU it would warn, and change nothing."""
        if self._amp is None or paddle.get_device().startswith("cpu"):
            return nullcontext()
        return paddle.amp.auto_cast(level=self._amp.level, dtype=self._amp.dtype)

    def _embed(self, model: paddle.nn.Layer, images: np.ndarray, step: int) -> paddle.Tensor:
        paddle.seed(hash((self._seed, step, distributed.rank())) & 0x7FFFFFFF)
        model.train()
        for layer in self._still:
            layer.eval()
        with self._autocast():
            out = model(to_input(images, self._preprocessing))
        if self._amp and isinstance(out, paddle.Tensor):
            out = out.astype("float32")
        check_output(out, len(images), self._embedding_size)
        if out.stop_gradient:
            raise UserError(
                "the backbone's embeddings have no gradient, so nothing of it would be trained; leave out detach() and no_grad()"
            )
        return out
