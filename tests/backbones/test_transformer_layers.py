"""Layers of vision transformers by oneDNN: results and gradients of Paddle's ops, and the same bits again."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.face_vit import FaceViT
from plsc.backbones.layers import Addresses, Dropout
from plsc.backbones.layers.transformer import LayerNorm, Linear, add_branch, add_positions, attention
from plsc.distributed.recompute import recomputing
from plsc.native import onednn
from tests.helpers.bounds import assert_within, perturbed, rounded

pytestmark = pytest.mark.skipif(onednn.library() is None, reason="this build of Paddle has no oneDNN")


class SmallViT(FaceViT):
    width, depth = 32, 3


def gradients(function, inputs, parameters=(), grad=None):
    """Return the output of a function of tensors and all gradients, for an output gradient of its own."""
    inputs = [x.detach() for x in inputs]
    for x in inputs:
        x.stop_gradient = False
    for parameter in parameters:
        parameter.clear_gradient()
    out = function(*inputs)
    out.backward(output_gradient(out) if grad is None else grad)
    grads = [tensor.grad for tensor in (*inputs, *parameters) if not tensor.stop_gradient]
    return [out.numpy(), *(grad.numpy() for grad in grads)]


def output_gradient(out):
    return paddle.to_tensor(np.random.default_rng(1).normal(size=out.shape).astype(np.float32))


def exact(function, inputs, layer):
    """Return what `gradients` gives in float64, and its bounds."""
    parameters = layer.parameters()
    arrays = [x.numpy() for x in (*inputs, *parameters, output_gradient(function(*inputs)))]
    layer.to(dtype="float64")

    def compute(*arrays):
        *tensors, grad = map(paddle.to_tensor, arrays)
        for parameter, value in zip(parameters, tensors[len(inputs) :]):
            parameter.set_value(value)
        return gradients(function, tensors[: len(inputs)], parameters, grad)

    found = perturbed(compute, *arrays)
    for parameter, value in zip(parameters, arrays[len(inputs) :]):
        parameter.set_value(value.astype(np.float64))
    layer.to(dtype="float32")
    return found


def operations(monkeypatch, run) -> int:
    """Count the operations of oneDNN in a run."""
    ran, execute = [], onednn.Operation.__call__
    with monkeypatch.context() as patch:
        patch.setattr(onednn.Operation, "__call__", lambda *args: ran.append(args) or execute(*args))
        run()
    return len(ran)


def assert_as_twin(monkeypatch, function, inputs, layer):
    """Compare with Paddle's ops in float64, and the bits of a second time with those of the first."""
    found, again = (gradients(function, inputs, layer.parameters()) for _ in range(2))
    assert [x.tobytes() for x in found] == [x.tobytes() for x in again]
    assert operations(monkeypatch, lambda: function(*inputs)) > 0
    with monkeypatch.context() as patch:
        patch.setenv("PLSC_KERNELS", "0")
        assert_within(found, *exact(function, inputs, layer))


@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24)])
@pytest.mark.parametrize("bias, limited", [(None, False), (None, True), (False, False), (False, True)])
def test_linear(monkeypatch, shape, bias, limited):
    layer = Linear(24, 35, bias_attr=bias, limited=limited)
    assert_as_twin(monkeypatch, layer, [4 * paddle.randn(shape)], layer)


def test_layer_norm(monkeypatch):
    layer = LayerNorm(40)
    layer.weight.set_value(paddle.randn([40]))
    layer.bias.set_value(paddle.randn([40]))
    assert_as_twin(monkeypatch, layer, [3 + 2 * paddle.randn([3, 7, 40])], layer)


@pytest.mark.parametrize("images, tokens, size, heads", [(3, 7, 4, 8), (2, 129, 32, 8), (1, 33, 5, 2)])
def test_attention(monkeypatch, images, tokens, size, heads):
    qkv = 2 * paddle.randn([images, tokens, 3 * heads * size])
    assert_as_twin(monkeypatch, lambda x: attention(x, heads), [qkv], nn.Identity())


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("addressed", [True, False])
def test_branch(monkeypatch, rate, addressed):
    drop = Dropout(rate, axis=0)
    inputs = [paddle.randn([9, 3, 8]), paddle.randn([9, 3, 8])]

    def run(x, branch):
        paddle.seed(3)
        if not addressed:
            return nn.functional.gelu(add_branch(x, branch, drop) + x)
        with Addresses(drop, 0).of(0, 0, 9):
            return nn.functional.gelu(add_branch(x, branch, drop) + x)

    assert_as_twin(monkeypatch, run, inputs, drop)


def test_positions(monkeypatch):
    # x is used twice: the gradient that is handed on as it is must not be added to in place
    inputs = [paddle.randn([5, 7, 8]), paddle.randn([1, 7, 8])]
    assert_as_twin(
        monkeypatch, lambda x, p: nn.functional.gelu(add_positions(x, p)) * x, inputs, nn.Identity()
    )


def test_frozen_parameters_get_no_gradient():
    linear, norm = Linear(6, 6), LayerNorm(6)
    for parameter in (linear.weight, norm.bias):
        parameter.stop_gradient = True
    norm(linear(paddle.randn([2, 6]))).sum().backward()
    assert linear.weight.grad is None and norm.bias.grad is None
    assert linear.bias.grad is not None and norm.weight.grad is not None


def build(**options):
    paddle.seed(0)
    net = SmallViT(8, (3, 36, 36), **options)
    for parameter in net.parameters():  # away from weights that make a branch nothing
        if parameter.ndim == 2:
            parameter.set_value(8 * parameter)
    return net


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.2, "drop_path": 0.5, "mask_ratio": 0.4}, {"drop_path": 0.0, "mask_ratio": 0.0}],
)
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_network(monkeypatch, options, recomputed):
    net = build(**options)
    weights = paddle.randn([5, 8])
    images = paddle.randn([5, 3, 36, 36])

    def run(net):
        net.clear_gradients()
        wide = net.pos_embed.dtype
        with Addresses(net, 0).of(4, 0, 5), recomputing(list(net.blocks) if recomputed else []):
            out = net(images.astype(wide))
            out.backward(weights.astype(wide))
        return [out.numpy(), *(p.grad.numpy() for p in net.parameters() if not p.stop_gradient)]

    found, again = run(net), run(net)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in again]
    exact = build(**options)
    exact.to(dtype="float64")
    assert_within(found, *rounded(exact, lambda: run(exact)))
