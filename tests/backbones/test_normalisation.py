"""Batch norm, sum and activation in one: against Paddle's layers, in numbers, gradients and running
statistics."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import normalise, normalise_beside
from tests.helpers.bounds import EPS, HALF_EPS, assert_within, growth, perturbed
from tests.helpers.kernel_paths import path, two_threads  # noqa: F401

ACTIVE = {
    "none": lambda channels: None,
    "relu": lambda channels: nn.ReLU(),
    "prelu": nn.PReLU,
    "one slope": lambda channels: nn.PReLU(1),
}


KINDS = [*((active, False) for active in ACTIVE), ("none", True), ("relu", True)]


@pytest.fixture(autouse=True)
def kernels(path):  # noqa: F811
    """Run each test at each instruction set. "plain" means Paddle's layers on [N, C, H, W]."""
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


def run(norm, active, arrays, last, dtype=None):
    """Run forward and backward -> output, gradients and running statistics, pictures as [N, C, H, W].

    dtype: the pictures' dtype. None: the arrays'.
    """
    turn = (lambda array: np.moveaxis(array, 1, -1)) if last else np.asarray
    back = (lambda array: np.moveaxis(array, -1, 1)) if last else np.asarray
    x, skip, dy = (
        None
        if array is None
        else paddle.to_tensor(np.ascontiguousarray(turn(array))).astype(dtype or array.dtype)
        for array in arrays
    )
    inputs = [tensor for tensor in (x, skip) if tensor is not None]
    for tensor in inputs:
        tensor.stop_gradient = False
    y = normalise(norm, x, active, skip)
    y.backward(dy)
    pictures = [y, *(tensor.grad for tensor in inputs)]
    if dtype:
        assert {picture.dtype for picture in pictures} == {getattr(paddle, dtype)}
        pictures = [picture.astype("float32") for picture in pictures]
    pictures = [back(picture.numpy()) for picture in pictures]
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


def reference(make, arrays, half_eps=0.0):
    """Return what `run` gives in float64, by Paddle's layers on [N, C, H, W], and its bounds.

    half_eps: bounds for a few roundings by this much, instead of float32's.
    """

    def compute(state, *arrays):
        layers = nn.LayerList([layer for layer in make() if layer])
        layers.to(dtype="float64")
        layers.set_state_dict(state)
        return run(layers[0], layers[1] if len(layers) > 1 else None, arrays, last=False)

    state = nn.LayerList([layer for layer in make() if layer]).state_dict()
    state = {name: value.numpy() for name, value in state.items()}
    channels = arrays[0].shape[1]
    bounds = {"terms": 1, "eps": half_eps} if half_eps else {"terms": arrays[0].size / channels}
    want, bound = perturbed(compute, state, *arrays, **bounds)
    if getattr(make()[1], "_num_parameters", 0) == 1:
        bound[-3] = bound[-3] * channels**0.5  # a slope's gradient has terms of all channels
    return want, bound


@pytest.mark.parametrize("active, skip", KINDS)
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (8, 16, 6, 6), (4, 130, 3, 3), (2, 64, 2, 2), (3, 300, 9, 9)]
)
def test_against_paddle(kernels, two_threads, active, skip, shape):  # noqa: F811
    arrays = draw(shape, skip)
    make = lambda: layers(active, shape[1])
    assert_within(run(*make(), arrays, last=kernels != "plain"), *reference(make, arrays))


@pytest.mark.parametrize("active, skip", KINDS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (8, 16, 6, 6), (4, 130, 3, 3)])
def test_pictures_of_bfloat16(kernels, two_threads, active, skip, shape):  # noqa: F811
    """Computed in float32: what is written is rounded once, and so is a sum's gradient on its way to x's
    gradient."""
    if kernels == "plain":
        pytest.skip("Paddle has no such operators for CPUs")
    arrays = [
        None if array is None else paddle.to_tensor(array).astype("bfloat16").astype("float32").numpy()
        for array in draw(shape, skip)
    ]
    make = lambda: layers(active, shape[1])
    got = run(*make(), arrays, last=True, dtype="bfloat16")
    again = run(*make(), arrays, last=True, dtype="bfloat16")
    assert [each.tobytes() for each in got] == [each.tobytes() for each in again]
    want, bound = reference(make, arrays)
    _, of_halves = reference(make, arrays, HALF_EPS / 8)
    pictures = 2 + skip
    assert_within(got[:pictures], want[:pictures], of_halves[:pictures])
    assert_within(got[pictures:], want[pictures:], bound[pictures:])


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("samples, size", [(2, 5), (37, 128), (256, 3)])
def test_rows_without_pixels(kernels, active, samples, size):
    arrays = draw((samples, size), skip=False)
    make = lambda: layers(active, size, nn.BatchNorm1D)
    want, bound = reference(make, arrays)
    # With two samples, y is the sign of their difference, and the gradient is what remains when terms cancel.
    x, dy = (array.astype(np.float64) for array in arrays[::2])
    norm, activation = make()
    deviation = np.sqrt(x.var(axis=0) + norm._epsilon)
    slope = np.abs(activation._weight.numpy()).max() if isinstance(activation, nn.PReLU) else 1
    z, dz = np.abs(x - x.mean(axis=0)) / deviation, np.abs(dy) * max(1, slope)
    terms = (dz + dz.mean(axis=0) + z * (dz * z).mean(axis=0)) * np.abs(norm.weight.numpy()) / deviation
    bound[1] = bound[1] + (growth(samples) + 8) * EPS * terms
    assert_within(run(*make(), arrays, last=False), want, bound)


@pytest.mark.parametrize("active, skip", [("relu", False), ("relu", True), ("prelu", False)])
def test_frozen_statistics(kernels, active, skip):
    arrays = draw((4, 20, 5, 5), skip)

    def make():
        norm, activation = layers(active, 20)
        norm.eval()
        return norm, activation

    norm, activation = make()
    before = norm._mean.numpy(), norm._variance.numpy()
    results = run(norm, activation, arrays, last=kernels != "plain")
    assert_within(results, *reference(make, arrays))
    assert np.array_equal(results[-2], before[0]) and np.array_equal(results[-1], before[1])


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance(kernels):
    """Nothing would remain of sum(squares) minus the squared sum."""
    arrays = draw((8, 4, 9, 9), skip=False, mean=1000.0)
    norm, _ = layers("none", 4, momentum=0.0)
    run(norm, None, arrays, last=kernels != "plain")
    want, bound = perturbed(lambda x: x.var(axis=(0, 2, 3)), arrays[0], terms=8 * 9 * 9)
    assert bound.max() < 1e-3 * want.min()
    assert_within(norm._variance.numpy(), want, bound)


def test_parameters_that_are_frozen_get_no_gradient_and_the_others_theirs(kernels):
    if kernels == "plain":
        pytest.skip("Paddle's operator gives the bias no gradient then")
    arrays = draw((4, 6, 3, 3), skip=True)
    expected = run(*layers("relu", 6), arrays, last=kernels != "plain")
    norm, active = layers("relu", 6)
    norm.weight.stop_gradient = True
    results = run(norm, active, arrays, last=kernels != "plain")
    assert norm.weight.grad is None
    for number, (got, want) in enumerate(zip(results, expected)):
        assert number == 3 or np.array_equal(got, want)


def test_a_nan_stays_in_its_channel(kernels):
    if kernels == "plain":
        pytest.skip("Paddle's ReLU makes 0 of it")
    arrays = draw((4, 6, 3, 3), skip=True)
    arrays[0][1, 2, 0, 0] = np.nan
    y, dx, *_ = run(*layers("relu", 6), arrays, last=kernels != "plain")
    assert np.isnan(y[:, 2]).all() and np.isnan(dx[:, 2]).all()
    assert np.isfinite(np.delete(y, 2, axis=1)).all() and np.isfinite(np.delete(dx, 2, axis=1)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (8, 16, 6, 6), (4, 130, 3, 3)])
def test_the_gradient_of_what_is_passed_on_is_added(kernels, dtype, shape):
    if kernels == "plain" and dtype == "bfloat16":
        pytest.skip("Paddle has no such operators for CPUs")
    last = kernels != "plain"
    eps = HALF_EPS if dtype == "bfloat16" else EPS
    x, more, dy = (
        paddle.to_tensor(np.moveaxis(each, 1, -1).copy() if last else each).astype(dtype)
        for each in draw(shape, skip=True)
    )
    found = []
    for beside in (True, False):
        norm, _ = layers("none", shape[1])
        given = x.detach()
        given.stop_gradient = False
        y, again = normalise_beside(norm, given) if beside else (normalise(norm, given), None)
        assert not beside or again.numpy().tobytes() == x.numpy().tobytes()
        if again is given:
            again = given.clone()  # Paddle 2.6 takes no gradient of a tensor that nothing has made
        paddle.autograd.backward([y, again] if beside else [y], [dy, more] if beside else [dy])
        grads = (given.grad, norm.weight.grad, norm.bias.grad)
        found.append([each.astype("float32").numpy() for each in (y, *grads)])
    (y, dx, *others), (plain_y, plain_dx, *plain_others) = found
    assert y.tobytes() == plain_y.tobytes()
    assert [each.tobytes() for each in others] == [each.tobytes() for each in plain_others]
    added = more.astype("float32").numpy()
    assert_within(dx, plain_dx + added, eps * (np.abs(plain_dx) + np.abs(added)))
