"""Recompute layers in the backward pass instead of keeping what they computed, by Paddle's `recompute`.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute


@contextlib.contextmanager
def recomputing(layers: Sequence[paddle.nn.Layer]) -> Iterator[None]:
    """Run forward passes inside the block in which `layers` keep their inputs only.

    The backward pass, which may come after the block, runs each of them again with the same numbers from
    Paddle's generator, and under the same autocast. What a layer changes by the way, such as BatchNorm's
    running statistics, it changes twice: the caller restores it.
    """
    for layer in layers:
        layer.forward = partial(_run, layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's is there again


def _run(layer: paddle.nn.Layer, forward: Callable, *inputs: Any) -> Any:
    """Run the `forward` of a layer so that its backward pass recomputes it, where there will be one."""
    of_inputs = not all(x.stop_gradient for x in inputs if isinstance(x, paddle.Tensor))
    of_parameters = not all(p.stop_gradient for p in layer.parameters())
    if not (paddle.is_grad_enabled() and (of_inputs or of_parameters)):
        return forward(*inputs)
    if not of_inputs:
        # As with images: Paddle would take the layer's output, too, for one without gradient.
        inputs = [_with_gradient(x) if isinstance(x, paddle.Tensor) else x for x in inputs]
    return recompute(forward, *inputs)


def _with_gradient(x: paddle.Tensor) -> paddle.Tensor:
    x = x.detach()
    x.stop_gradient = not x.is_floating_point()
    return x
