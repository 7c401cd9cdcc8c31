"""Layers of vision transformers by oneDNN, in float32 and bfloat16, against Paddle's ops, and the same bits
again."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import Addresses, Conv2D, Dropout, by_cpu_kernels, enter, in_bfloat16, leave
from plsc.backbones.layers.transformer import LayerNorm, Linear, add_branch, add_positions, attention
from plsc.native import onednn
from tests.helpers.bounds import HALF_EPS, assert_within, perturbed, rounded
from tests.helpers.small_networks import SmallFaceViT

pytestmark = pytest.mark.skipif(onednn.library() is None, reason="this build of Paddle has no oneDNN")


def computes_bfloat16() -> bool:
    """Whether oneDNN computes bfloat16 here: by the processor's instructions, or slowly by those of
    float32."""
    if not by_cpu_kernels(paddle.zeros([1])):
        return False
    try:
        with in_bfloat16():
            leave(Conv2D(8, 8, 3)(enter(paddle.zeros([1, 8, 5, 5]))))
    except AssertionError:  # as with what is not implemented
        return False
    return True


no_bfloat16 = pytest.mark.skipif(
    not computes_bfloat16(), reason="no bfloat16 by oneDNN on this processor, or no kernels"
)
both_dtypes = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=no_bfloat16)])


def half(array) -> np.ndarray:
    """Round to numbers that bfloat16 has, as float32."""
    return paddle.to_tensor(array, "float32").astype("bfloat16").astype("float32").numpy()


def randn(*shape, seed=0, scale=1.0):
    return half(scale * np.random.default_rng(seed).normal(size=shape))


def gradients(function, inputs, parameters, grad, dtype):
    """Return output and gradients of a function on tensors, which are rounded to `dtype`."""
    inputs = [paddle.to_tensor(x).astype(dtype) for x in inputs]
    for x in inputs:
        x.stop_gradient = False
    for parameter in parameters:
        parameter.clear_gradient()
    out = function(*inputs)
    out.backward(paddle.to_tensor(grad).astype(dtype))
    found = [out, *(x.grad for x in (*inputs, *parameters))]
    assert {x.dtype for x in found[: 1 + len(inputs)]} == {getattr(paddle, dtype)}
    return [x.astype("float64").numpy() for x in found]


def assert_near_float64(monkeypatch, dtype, function, inputs, layer=None, out_shape=None):
    """Compare with Paddle's ops in float64 on the same inputs, and the bits of a second time with those of
    the first. In bfloat16 all inputs may be off by roundings to it."""
    parameters = layer.parameters() if layer else []
    grad = randn(*(out_shape or inputs[0].shape), seed=1)
    got, again = (gradients(function, inputs, parameters, grad, dtype) for _ in range(2))
    assert [x.tobytes() for x in got] == [x.tobytes() for x in again]
    values = [parameter.numpy() for parameter in parameters]

    def compute(*arrays):
        *tensors, grad = arrays
        for parameter, value in zip(parameters, tensors[len(inputs) :]):
            parameter.set_value(value)
        return gradients(function, tensors[: len(inputs)], parameters, grad, "float64")

    monkeypatch.setenv("PLSC_KERNELS", "0")
    if layer:
        layer.to(dtype="float64")
    off = {} if dtype == "float32" else {"terms": 1, "eps": HALF_EPS}
    assert_within(got, *perturbed(compute, *inputs, *values, grad, **off))


@both_dtypes
@pytest.mark.parametrize("bias, limited", [(None, False), (None, True), (False, False), (False, True)])
def test_linear(monkeypatch, bias, limited, dtype):
    layer = Linear(24, 35, bias_attr=bias, limited=limited)
    assert_near_float64(monkeypatch, dtype, layer, [randn(3, 5, 24, scale=4)], layer, (3, 5, 35))


@both_dtypes
@pytest.mark.parametrize("rows, inputs, outputs", [(5, 33, 1), (1, 1, 16), (5, 1, 16), (1, 33, 1), (1, 1, 1)])
def test_linear_with_a_single_input_or_output(monkeypatch, rows, inputs, outputs, dtype):
    layer = Linear(inputs, outputs)
    assert_near_float64(monkeypatch, dtype, layer, [randn(1, rows, inputs)], layer, (1, rows, outputs))


@both_dtypes
def test_layer_norm(monkeypatch, dtype):
    layer = LayerNorm(40)
    layer.weight.set_value(randn(40, seed=2))
    layer.bias.set_value(randn(40, seed=3))
    assert_near_float64(monkeypatch, dtype, layer, [half(3 + randn(3, 7, 40, scale=2))], layer)


@both_dtypes
@pytest.mark.parametrize("images, tokens, size, heads", [(3, 7, 4, 8), (2, 65, 32, 8), (1, 33, 5, 2)])
def test_attention(monkeypatch, images, tokens, size, heads, dtype):
    qkv = randn(images, tokens, 3 * heads * size)
    shape = (images, tokens, heads * size)
    assert_near_float64(monkeypatch, dtype, lambda x: attention(x, heads), [qkv], out_shape=shape)


@both_dtypes
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_branch(monkeypatch, rate, dtype):
    drop = Dropout(rate, axis=0)

    def run(x, branch):
        with Addresses(drop, 0).use(0, 0, 9):
            return add_branch(x, branch, drop)

    assert_near_float64(monkeypatch, dtype, run, [randn(9, 3, 8), randn(9, 3, 8, seed=4)])


def test_positions(monkeypatch):
    """x is used twice: the gradient that is handed on as it is must not be added to in place."""
    run = lambda x, positions: nn.functional.gelu(add_positions(x, positions)) * x
    assert_near_float64(monkeypatch, "float32", run, [randn(5, 7, 8), randn(1, 7, 8, seed=4)])


def test_frozen_parameters_get_no_gradient():
    linear, norm = Linear(6, 6), LayerNorm(6)
    for parameter in (linear.weight, norm.bias):
        parameter.stop_gradient = True
    norm(linear(paddle.randn([2, 6]))).sum().backward()
    assert linear.weight.grad is None and norm.bias.grad is None
    assert linear.bias.grad is not None and norm.weight.grad is not None


def build(**options):
    paddle.seed(0)
    net = SmallFaceViT(8, (3, 36, 36), **options)
    for parameter in net.parameters():  # away from weights that make a branch nothing
        if parameter.ndim == 2:
            parameter.set_value(8 * parameter)
    return net


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.2, "drop_path": 0.5, "mask_ratio": 0.4}, {"drop_path": 0.0, "mask_ratio": 0.0}],
)
def test_a_network(options):
    net = build(**options)
    weights = paddle.randn([5, 8])
    images = paddle.randn([5, 3, 36, 36])

    def run(net):
        net.clear_gradients()
        wide = net.pos_embed.dtype
        with Addresses(net, 0).use(4, 0, 5):
            out = net(images.astype(wide))
            out.backward(weights.astype(wide))
        return [out.numpy(), *(p.grad.numpy() for p in net.parameters() if not p.stop_gradient)]

    found, again = run(net), run(net)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in again]
    exact = build(**options)
    exact.to(dtype="float64")
    assert_within(found, *rounded(exact, lambda: run(exact)))
