"""Recompute layers in the backward pass instead of keeping their activations, by Paddle's `recompute`.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute


@contextlib.contextmanager
def recomputing(layers: Sequence[paddle.nn.Layer]) -> Iterator[None]:
    """Run forward passes inside the block. In these passes `layers` keep their inputs only.

    The backward pass may follow the block. It runs each layer again, with the same numbers from
    Paddle's generator and under the same autocast. A layer changes its statistics, such as BatchNorm's
    running mean, in both passes, so the caller restores them.
    """
    for layer in layers:
        layer.forward = partial(_run, layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # which uncovers the class's own


def _run(layer: paddle.nn.Layer, forward: Callable, *inputs: Any, **named: Any) -> Any:
    """Run a layer's `forward`. If a backward pass will follow, let it recompute the layer."""
    bound = inspect.signature(forward).bind(*inputs, **named)
    # Paddle refuses a function that takes arguments by name alone, so it gets one that takes all by position.
    inputs, names, count = [*bound.args, *bound.kwargs.values()], [*bound.kwargs], len(bound.args)
    by_position = lambda *given: forward(*given[:count], **dict(zip(names, given[count:])))
    inputs_have_gradients = not all(x.stop_gradient for x in inputs if isinstance(x, paddle.Tensor))
    parameters_have_gradients = not all(p.stop_gradient for p in layer.parameters())
    if not (paddle.is_grad_enabled() and (inputs_have_gradients or parameters_have_gradients)):
        return by_position(*inputs)
    if not inputs_have_gradients:
        # Images have none. Paddle would then give the layer's output no gradient either.
        inputs = [_with_gradient(x) if isinstance(x, paddle.Tensor) else x for x in inputs]
    return recompute(by_position, *inputs)


def _with_gradient(x: paddle.Tensor) -> paddle.Tensor:
    x = x.detach()
    x.stop_gradient = not x.is_floating_point()
    return x
