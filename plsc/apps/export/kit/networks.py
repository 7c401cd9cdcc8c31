"""Change a network for a while as converters do: with numbers of fewer bits, and with batch norms that have
lost their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import paddle
from paddle import nn

Rounding = Callable[[np.ndarray, tuple[int, ...] | None], np.ndarray]
"""(numbers, axes that share a step; None: all) -> the same, rounded"""

FLOAT16 = 65504.0  # the largest number in float16


def to_float16(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Round to float16; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def cut_to_float16(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Round to float16; what is too large becomes the largest number."""
    return to_float16(np.clip(x, -FLOAT16, FLOAT16), axes)


def cut_ranges(share: float) -> Rounding:
    """Return what cuts what layers are given, not their weights, at a share of the extremes: a quantizer's
    ranges of other pictures."""

    def rounded(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
        return x if axes else np.clip(x, share * x.min(), share * x.max())

    return rounded


def to_bits(bits: int) -> Rounding:
    """Return what rounds numbers to multiples of one step, so that their extremes are `bits` bits apart."""

    def rounded(x: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
        low = np.minimum(x.min(axis=axes, keepdims=True), 0)
        high = np.maximum(x.max(axis=axes, keepdims=True), 0)
        step = np.maximum((high - low) / (2**bits - 1), 1e-30)
        return np.round(x / step) * step

    return rounded


@contextlib.contextmanager
def rounding(model: nn.Layer, rounded: Rounding) -> Iterator[None]:
    """Round weights, those of each output apart, and what layers with weights are given, inside the block."""
    layers = [layer for layer in model.sublayers(include_self=True) if _has_weights(layer)]
    hooks = [layer.register_forward_pre_hook(_round_input(rounded)) for layer in layers]
    with _restored([layer.weight for layer in layers]):
        for layer in layers:
            # A matrix is [inputs, outputs], a convolution's weights are [outputs, inputs, ...].
            axes = (0,) if layer.weight.ndim == 2 else tuple(range(1, layer.weight.ndim))
            layer.weight.set_value(rounded(layer.weight.numpy(), axes))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _has_weights(layer: nn.Layer) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(weight, paddle.Tensor) and weight.ndim > 1


def _round_input(rounded: Rounding):
    def hook(layer, inputs):
        given = inputs[0].numpy()
        if given.dtype != np.float32:  # indices
            return inputs
        return (paddle.to_tensor(rounded(given, None)), *inputs[1:])

    return hook


@contextlib.contextmanager
def _restored(tensors: Sequence[paddle.Tensor]) -> Iterator[None]:
    before = [tensor.numpy() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, before):
            tensor.set_value(value)


def faulty_norms(model: nn.Layer) -> Iterator[tuple[str, Callable[[], contextlib.AbstractContextManager]]]:
    """Yield (the cause and what happened, what makes it so inside a block) for faults of the batch norms;
    nothing without any."""
    norms = [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "_variance")]
    if not norms:
        return
    means, variances, affine = {"_mean": 0.0}, {"_variance": 1.0}, {"weight": 1.0, "bias": 0.0}
    yield "BatchNorm: means are lost, 0", lambda: _filled(norms, means)
    yield "BatchNorm: variances are lost, 1", lambda: _filled(norms, variances)
    yield "BatchNorm: means and variances are lost, 0 and 1", lambda: _filled(norms, {**means, **variances})
    yield "BatchNorm: gains and biases are lost, 1 and 0", lambda: _filled(norms, affine)
    yield "BatchNorm: all its values are lost", lambda: _filled(norms, {**means, **variances, **affine})
    yield "BatchNorm: it takes means and variances of the batch, as in training", lambda: _training(norms)


@contextlib.contextmanager
def _filled(norms: list[nn.Layer], values: dict[str, float]) -> Iterator[None]:
    known = [
        (getattr(norm, name), value)
        for norm in norms
        for name, value in values.items()
        if getattr(norm, name) is not None
    ]
    with _restored([tensor for tensor, _ in known]):
        for tensor, value in known:
            tensor.set_value(np.full(tensor.shape, value, np.float32))
        yield


@contextlib.contextmanager
def _training(norms: list[nn.Layer]) -> Iterator[None]:
    with _restored([tensor for norm in norms for tensor in (norm._mean, norm._variance)]):
        for norm in norms:
            norm.train()
        try:
            yield
        finally:
            for norm in norms:
                norm.eval()


def largest_number(model: nn.Layer, compute: Callable[[], np.ndarray]) -> float:
    """Find the largest number that layers are given or give while `compute` makes embeddings [n, D], and of
    their squared lengths."""
    seen = [0.0]

    def hook(layer, inputs, output):
        for tensor in (*inputs, output):
            if isinstance(tensor, paddle.Tensor):
                seen.append(float(tensor.abs().max()))

    hooks = [layer.register_forward_post_hook(hook) for layer in model.sublayers(include_self=True)]
    try:
        embeddings = compute()
    finally:
        for of_layer in hooks:
            of_layer.remove()
    return max(*seen, float(np.max(np.sum(np.square(embeddings, dtype=np.float64), axis=1))))
