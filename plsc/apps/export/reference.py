"""Compute what an export must give: the embeddings of the training graph in eval mode, on the CPU."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle import nn

from plsc.distributed.device import on_device


@contextlib.contextmanager
def on_cpu(model: nn.Layer) -> Iterator[None]:
    """Compute inside the block on the CPU, as the exported graphs are run: a GPU's products may have fewer
    digits."""
    if not on_device():
        yield
        return
    device = paddle.get_device()
    paddle.set_device("cpu")
    model.to(device="cpu")
    try:
        yield
    finally:
        paddle.set_device(device)
        model.to(device=device)


@contextlib.contextmanager
def untouched(model: nn.Layer) -> Iterator[None]:
    """Restore all layers' attributes: train or eval mode, and what to_static leaves (on 2.6 a `forward`)."""
    before = [(layer, dict(vars(layer))) for layer in model.sublayers(include_self=True)]
    for layer, attributes in before:
        layer._original_funcs = copy.copy(attributes["_original_funcs"])  # to_static changes it in place
    try:
        yield
    finally:
        for layer, attributes in before:
            vars(layer).clear()
            vars(layer).update(attributes)


def example(model: nn.Layer, preprocessing: Any, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Make random samples, float32, and the embeddings of length 1 that the training graph makes of them."""
    samples = random_samples(preprocessing, batch).astype(np.float32)
    return samples, embed(model, preprocessing, samples)


def random_samples(preprocessing: Any, batch: int) -> np.ndarray:
    """Draw samples of the data set's dtype: pixels, small whole numbers, or normally distributed ones."""
    draws, shape = np.random.default_rng(0), (batch, *preprocessing.shape)
    dtype = np.dtype(preprocessing.dtype)
    if dtype.kind == "f":
        return draws.normal(size=shape).astype(dtype)
    return draws.integers(0, 256 if preprocessing.is_image else 100, shape).astype(dtype)


def embed(model: nn.Layer, preprocessing: Any, samples: np.ndarray) -> np.ndarray:
    """Compute the training graph's embeddings of length 1, float64 [B, D]."""
    with paddle.no_grad():
        embedding = model(preprocessing(paddle.to_tensor(samples)))
    embedding = embedding.numpy().astype(np.float64)
    return embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)
