"""An embedder without a network: a random matrix over the pixels. The tests of galleries need no Paddle."""

import numpy as np

from plsc.apps.serving.embedder import Embedder
from plsc.data.preprocessing import Preprocessing

SHAPE = (1, 6, 5)


class FakeEmbedder(Embedder):
    def __init__(self, seed=0, size=8, threshold=0.5, **fields):
        super().__init__(
            f"{seed:064x}", f"run {seed}", Preprocessing.of_images(SHAPE), size, threshold=threshold, **fields
        )
        self._matrix = np.random.default_rng(seed).normal(size=(np.prod(SHAPE), size)).astype(np.float32)

    def _embed(self, samples):
        return (samples.reshape(len(samples), -1).astype(np.float32) / 255) @ self._matrix


class Turned(FakeEmbedder):
    """The embeddings of FakeEmbedder(), turned into a space of `size` dimensions, and a little noise."""

    def __init__(self, size=12, noise=0.0):
        super().__init__(seed=0, size=8)
        self.network, self.described, self.embedding_size = f"{1:064x}", "the new run", size
        self._turn = np.linalg.qr(np.random.default_rng(3).normal(size=(size, 8)))[0].T.astype(np.float32)
        self._noise = noise

    def _embed(self, samples):
        turned = super()._embed(samples) @ self._turn
        scale = self._noise * np.abs(turned).mean()
        return turned + scale * np.random.default_rng(4).standard_normal(turned.shape, np.float32)


def pictures(count, seed=0):
    """Noise, uint8 [count, *SHAPE]."""
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), np.uint8)


def units(count, size=8, seed=0):
    """Random embeddings of length 1."""
    made = np.random.default_rng(seed).standard_normal((count, size), np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)
