"""Whole networks by oneDNN against the same by Paddle's operators in float64: embeddings, all gradients, running statistics."""

import numpy as np
import paddle
import pytest

from plsc.backbones.iresnet import IResNet
from plsc.backbones.layers import by_onednn
from plsc.backbones.lenet import LeNet
from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.backbones.resnet import ResNet
from plsc.backbones.small_resnet import SmallResNet

pytestmark = pytest.mark.skipif(not by_onednn(paddle.zeros([1])), reason="no oneDNN in Paddle, or no kernels")


class TinyIResNet(IResNet):
    blocks = (2, 1, 1, 1)


class TinyResNet(ResNet):
    blocks = (1, 1, 1, 2)


NETWORKS = {
    "IResNet": (lambda: TinyIResNet(8, (3, 33, 20)), (3, 33, 20)),
    "ResNet": (lambda: TinyResNet(8, (3, 16, 18), dropout=0.0), (3, 16, 18)),
    "LeNet": (lambda: LeNet(8, (1, 29, 28), init_std=0.1), (1, 29, 28)),
    "SmallResNet": (lambda: SmallResNet(8, (1, 19, 17), blocks=[1, 0, 2]), (1, 19, 17)),
    "MobileFaceNet": (lambda: MobileFaceNet(8, (3, 32, 35), scale=1, blocks=[2, 1, 1, 1]), (3, 32, 35)),
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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_the_twin_does(name, training, monkeypatch):
    """A number that rounding carries over an activation's kink changes a gradient by up to some hundredths: that
    every part is there, and in its place, is tested here; tests of the layers are stricter."""
    build, shape = NETWORKS[name]
    paddle.seed(0)
    net = build()
    exact = build()
    exact.set_state_dict(net.state_dict())
    exact.to(dtype="float64")
    images = paddle.randn([6, *shape])
    got = run(net, images, training)
    monkeypatch.setenv("PLSC_KERNELS", "0")
    expected = run(exact, images.astype("float64"), training)
    assert got.keys() == expected.keys()
    largest = max(np.linalg.norm(values) for values in expected.values())
    for key, values in expected.items():
        is_gradient = key != "embeddings" and not key.endswith(("._mean", "._variance"))
        share = np.linalg.norm(got[key] - values) / (np.linalg.norm(values) + 1e-5 * largest)
        assert share < (0.1 if is_gradient else 1e-4), key


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_again(name):
    build, shape = NETWORKS[name]
    paddle.seed(0)
    net = build()
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    images = paddle.randn([5, *shape])
    first = run(net, images, True)
    run(net, images[:3], True)
    net.set_state_dict(state)
    again = run(net, images, True)
    assert {key: a.tobytes() for key, a in first.items()} == {key: a.tobytes() for key, a in again.items()}
