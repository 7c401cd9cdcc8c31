"""Batch norm, sum and activation in one: against Paddle's layers, in numbers, gradients and running statistics."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import normalise
from tests.kernel_paths import path, two_threads  # noqa: F401

ACTIVE = {
    "none": lambda channels: None,
    "relu": lambda channels: nn.ReLU(),
    "prelu": nn.PReLU,
    "one slope": lambda channels: nn.PReLU(1),
}


@pytest.fixture(autouse=True)
def kernels(path):  # noqa: F811
    """Run each test at each instruction set; "plain" is Paddle's layers on [N, C, H, W]."""
    return path


def layers(active, channels, norm=nn.BatchNorm2D, **options):
    """Make a norm and an activation with weights that are not those of the start."""
    norm = norm(channels, **options)
    active = ACTIVE[active](channels)
    draw = np.random.default_rng(1)
    norm.weight.set_value(draw.normal(1, 0.5, channels).astype("float32"))
    norm.bias.set_value(draw.normal(0, 0.5, channels).astype("float32"))
    norm._mean.set_value(draw.normal(0, 0.5, channels).astype("float32"))
    norm._variance.set_value(draw.uniform(0.5, 2, channels).astype("float32"))
    if isinstance(active, nn.PReLU):
        active._weight.set_value(draw.normal(0, 0.5, active._weight.shape).astype("float32"))
    return norm, active


def run(norm, active, arrays, last):
    """Run forward and backward -> output, gradients and running statistics as float64, pictures as [N, C, H, W]."""
    turn = (lambda array: np.moveaxis(array, 1, -1)) if last else np.asarray
    back = (lambda array: np.moveaxis(array, -1, 1)) if last else np.asarray
    x, skip, dy = (
        None if array is None else paddle.to_tensor(np.ascontiguousarray(turn(array))) for array in arrays
    )
    inputs = [tensor for tensor in (x, skip) if tensor is not None]
    for tensor in inputs:
        tensor.stop_gradient = False
    y = normalise(norm, x, active, skip)
    y.backward(dy)
    pictures = [back(each.numpy()) for each in (y, *(tensor.grad for tensor in inputs))]
    parameters = [norm.weight, norm.bias, *([] if active is None else active.parameters())]
    gradients = [np.zeros(p.shape) if p.grad is None else p.grad.numpy() for p in parameters]
    return [*pictures, *gradients, norm._mean.numpy(), norm._variance.numpy()]


def draw(shape, skip, mean=0.0):
    draws = np.random.default_rng(0)
    arrays = [
        draws.normal(mean, 1, shape),
        draws.normal(0, 1, shape) if skip else None,
        draws.normal(0, 1, shape),
    ]
    return [None if array is None else array.astype("float32") for array in arrays]


def reference(norm, active, arrays):
    """Run the same in float64, by Paddle's layers on [N, C, H, W]."""
    for layer in (norm, *([active] if active else [])):
        layer.to(dtype="float64")
    return run(
        norm, active, [None if array is None else array.astype("float64") for array in arrays], last=False
    )


def compare(results, expected):
    for got, want in zip(results, expected):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 1e-5 * max(np.abs(want).max(), 1e-3)


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (8, 16, 6, 6), (4, 130, 3, 3), (2, 64, 2, 2), (3, 300, 9, 9)]
)
def test_against_paddle(kernels, two_threads, active, skip, shape):  # noqa: F811
    arrays = draw(shape, skip)
    results = run(*layers(active, shape[1]), arrays, last=kernels != "plain")
    compare(results, reference(*layers(active, shape[1]), arrays))
