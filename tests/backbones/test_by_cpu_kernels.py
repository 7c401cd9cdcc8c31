"""Whole networks by oneDNN against the same by Paddle's operators in float64: embeddings, all gradients,
running statistics."""

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.backbones.layers import by_cpu_kernels
from plsc.backbones.lenet import LeNet
from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.backbones.small_resnet import SmallResNet
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.small_networks import SmallIResNet, SmallResNet50

pytestmark = pytest.mark.skipif(not by_cpu_kernels(paddle.zeros([1])), reason="no oneDNN, or no kernels")


NETWORKS = {
    "IResNet": (lambda: SmallIResNet(8, (3, 13, 10)), (3, 13, 10)),
    "ResNet": (lambda: SmallResNet50(8, (3, 11, 10), dropout=0.0), (3, 11, 10)),
    "LeNet": (lambda: LeNet(8, (1, 19, 18), init_std=0.1), (1, 19, 18)),
    "SmallResNet": (lambda: SmallResNet(8, (1, 11, 9), blocks=[1, 0, 2]), (1, 11, 9)),
    "MobileFaceNet": (lambda: MobileFaceNet(8, (3, 16, 19), scale=1, blocks=[2, 1, 1, 1]), (3, 16, 19)),
}


def run(net, images, training):
    """Return the embeddings, and by name the gradients and buffers."""
    net.train() if training else net.eval()
    net.clear_gradients()
    out = net(images)
    grad = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    out.backward(paddle.to_tensor(grad, out.dtype))
    found = {name: p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None}
    found.update({name: b.numpy() for name, b in net.named_buffers()}, embeddings=out.numpy())
    return found


def with_a_twin(name):
    """Build a network with slopes of 1, and the same in float64. Return both, and the pictures' shape."""
    build, shape = NETWORKS[name]
    paddle.seed(0)
    net, exact = build(), build()
    for layer in net.sublayers():
        if isinstance(layer, nn.PReLU):
            layer._weight.set_value(paddle.ones_like(layer._weight))
    exact.set_state_dict(net.state_dict())
    exact.to(dtype="float64")
    return net, exact, shape


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_the_twin_does(name, training, monkeypatch):
    """The slopes are 1, because a number that rounding carries over a kink changes gradients by some
    hundredths. A layer without a slope gets pictures that are not so close to the kink."""
    net, exact, shape = with_a_twin(name)
    images = paddle.randn([4, *shape])
    got = run(net, images, training)
    monkeypatch.setenv("PLSC_KERNELS", "0")
    wide = images.astype("float64")
    want, bound = rounded(exact, lambda: run(exact, wide, training), terms=4608, times=3)
    assert np.median([bound[key].max() / np.abs(want[key]).max() for key in want]) < (
        0.01 if training else 1e-4
    )
    assert_within(got, want, bound)
