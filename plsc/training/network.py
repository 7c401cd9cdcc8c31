"""Run the backbone in a training step: embeddings forward, then their gradients backward.

`forward` gives the embeddings as a leaf, cut off from the backbone's graph, so that the head works on the
samples of the whole step at once; `backward` takes their gradient on through the backbone. Only there are
gradients of the backbone computed, and averaged over the ranks.

Try it: `pytest tests/training/test_network.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import paddle

from plsc import distributed
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.training.embed import check_output, to_input
from plsc.utils.timing import timer


class Network:
    """Runs a backbone on this rank's samples. Every rank makes one.

    Args:
        backbone: the bare layer.
        preprocessing: of the samples.
        embedding_size: D that the backbone must give.
        seed: of the random numbers in a forward pass, together with step and rank.
        still: layers of it that are in evaluation mode in training, too: frozen norms.
    """

    def __init__(
        self,
        backbone: paddle.nn.Layer,
        preprocessing: Preprocessing,
        embedding_size: int,
        seed: int,
        still: Sequence[paddle.nn.Layer] = (),
    ):
        self.backbone = backbone
        self._preprocessing = preprocessing
        self._embedding_size = embedding_size
        self._seed = seed
        self._still = still
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
        rank calls it."""
        out, self._out = self._out, None
        with timer.part("backward"):
            out.backward(grad_BD)

    def own_backward(self, grad_BD: paddle.Tensor) -> None:
        """Compute this rank's own gradients anew in place of the averages, by running the last forward pass
        again with the same random numbers. Every rank calls it."""
        for parameter in self.backbone.parameters():
            parameter.clear_gradient()
        self._embed_again().backward(grad_BD)

    def _embed(self, model: paddle.nn.Layer, images: np.ndarray, step: int) -> paddle.Tensor:
        paddle.seed(hash((self._seed, step, distributed.rank())) & 0x7FFFFFFF)
        model.train()
        for layer in self._still:
            layer.eval()
        out = model(to_input(images, self._preprocessing))
        check_output(out, len(images), self._embedding_size)
        if out.stop_gradient:
            raise UserError(
                "the backbone's embeddings have no gradient, so nothing of it would be trained; leave out detach() and no_grad()"
            )
        return out
