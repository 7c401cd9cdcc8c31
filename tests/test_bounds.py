"""The float32 bounds hold for sums in any order, and not if one term has an error."""

from functools import partial

import numpy as np
import paddle
import pytest

from tests.helpers.bounds import assert_within, perturbed, rounded, sums

draw = np.random.default_rng(0)
A, B = (draw.standard_normal(shape).astype(np.float32) for shape in ((5, 3000), (3000, 4)))


def one_by_one(a, b):
    """The product with one accumulator, the worst of orders."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for place in range(a.shape[1]):
        total += np.outer(a[:, place], b[place])
    return total


@pytest.mark.parametrize("product", [np.matmul, one_by_one])
def test_a_product_of_float32(product):
    want, bound = A.astype(np.float64) @ B, sums(np.matmul, A, B)
    assert_within(product(A, B), want, bound)
    for missing in (A[:, :-1], np.where(np.arange(3000) == 7, A * np.float32(1.2), A)):
        with pytest.raises(AssertionError, match="times its bound"):
            assert_within(product(missing, B[: missing.shape[1]]), want, bound)


def network(dtype="float32"):
    paddle.seed(0)
    net = paddle.nn.Sequential(
        paddle.nn.Linear(40, 60), paddle.nn.BatchNorm1D(60), paddle.nn.ReLU(), paddle.nn.Linear(60, 8)
    )
    net.to(dtype=dtype)
    return net


def step(net):
    """Return the output, the gradients and the running statistics."""
    net.clear_gradients()
    weight = net[0].weight
    out = net(paddle.to_tensor(A[:, :40], weight.dtype))
    out.square().sum().backward()
    return {
        "out": out.numpy(),
        **{p.name.split(".")[1]: p.grad.numpy() for p in net[0].parameters()},
        "mean": net[1]._mean.numpy(),
    }


def test_a_network_its_gradients_and_statistics():
    exact = network("float64")
    want, bound = rounded(exact, lambda: step(exact))
    assert bound["mean"].max() < 1e-4 and exact[1]._mean.numpy().max() == 0  # as before
    assert_within(step(network()), want, bound)
    wrong = network()
    off = np.ones((40, 60), np.float32)
    off[3, 4] = 1.001
    wrong[0].weight.set_value(wrong[0].weight * paddle.to_tensor(off))
    with pytest.raises(AssertionError, match="times its bound"):
        assert_within(step(wrong), want, bound)


def test_what_rounding_grows_to_over_steps():
    """In a chaotic map 1e-7 is 1e-7 * 2**10 after ten steps, and so is the bound."""

    def steps(x, count):
        for _ in range(count):
            x = 4 * x * (1 - x)
        return [x]

    start = draw.random(50).astype(np.float32)
    (few,), (many,) = (perturbed(partial(steps, count=count), start)[1] for count in (1, 10))
    assert 100 * few.max() < many.max()
    want, bound = perturbed(partial(steps, count=10), start)
    assert_within(steps(start, 10), want, bound)


def test_a_nan_and_another_shape_are_never_within():
    for got in ([np.nan], [1.0, 1.0]):
        with pytest.raises(AssertionError):
            assert_within(np.array(got), np.ones(1), 1)
