"""The backbone in a training step: the same gradients as by one graph from the images to the loss."""

import contextlib

import numpy as np
import paddle
import pytest

from plsc.config.schema import AmpCfg
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.training.loss_scaler import LossScaler
from plsc.training.network import Network, check_amp
from tests.tiny_runs import IMAGE_SHAPE, Linear

PREPROCESSING = Preprocessing.of_images(IMAGE_SHAPE)
IMAGES = np.random.default_rng(0).integers(0, 256, (6, *IMAGE_SHAPE), np.uint8)


class Detached(Linear):
    def forward(self, images):
        return super().forward(images).detach()


class Half(Linear):
    """Gives what a network under autocast gives on a GPU."""

    def forward(self, images):
        return super().forward(images).astype("float16")


def gradients(net) -> dict[str, np.ndarray]:
    return {name: parameter.grad.numpy() for name, parameter in net.named_parameters()}


def test_gradients_are_those_of_one_graph():
    net = Linear()
    network = Network(net, PREPROCESSING, 8, seed=0)
    emb_BD = network.forward(IMAGES, 0)
    emb_BD.square().sum().backward()
    assert emb_BD.is_leaf and net.linear.weight.grad is None
    network.backward(emb_BD.grad)
    found = gradients(net)
    net.clear_gradients()
    network.own_backward(emb_BD.grad)
    again = gradients(net)
    net.clear_gradients()
    net(PREPROCESSING(paddle.to_tensor(IMAGES))).square().sum().backward()
    for name, expected in gradients(net).items():
        assert found[name].tobytes() == again[name].tobytes() == expected.tobytes(), name


def test_embeddings_without_a_gradient_are_refused():
    with pytest.raises(UserError, match="embeddings have no gradient"):
        Network(Detached(), PREPROCESSING, 8, seed=0).forward(IMAGES, 0)


def test_gradients_are_scaled_on_their_way_back_only():
    """A gradient of 1e-8 is 0 in float16, and is not with the scale; what comes out has the scale no more."""
    emb_grad = paddle.full([6, 8], 1e-8)
    found = []
    for scaler in (None, LossScaler()):
        net = Half()
        network = Network(net, PREPROCESSING, 8, 0, amp=AmpCfg(dtype="float16"), scaler=scaler)
        emb_BD = network.forward(IMAGES, 0)
        assert emb_BD.dtype == paddle.float32 == net.linear.weight.dtype
        network.backward(emb_grad)
        found.append(net.linear.bias.grad.numpy())
    assert not found[0].any() and np.allclose(found[1], 6e-8, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_step_is_under_autocast_on_a_gpu(dtype, monkeypatch):
    """Paddle's own autocast does nothing on a CPU, so it is replaced; that it is asked at all is what is tested."""
    asked = []

    @contextlib.contextmanager
    def auto_cast(**options):
        asked.append(options)
        yield
        asked.append("out")

    network = Network(Linear(), PREPROCESSING, 8, 0, amp=AmpCfg(dtype=dtype))
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    network.forward(IMAGES, 0)
    assert not asked  # on a CPU Paddle would warn in each step
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    emb_BD = network.forward(IMAGES, 0)
    once = [{"level": "O1", "dtype": dtype}, "out"]
    assert asked == once
    network.own_backward(emb_BD)
    assert asked == 2 * once


def test_a_gpu_without_bfloat16_is_refused_and_a_cpu_warned_of(monkeypatch, caplog):
    check_amp(None)
    assert not caplog.text
    check_amp(AmpCfg(dtype="float16"))
    assert "a CPU computes the backbone in float32" in caplog.text
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.amp, "is_bfloat16_supported", lambda: False)
    check_amp(AmpCfg(dtype="float16"))
    with pytest.raises(UserError, match=r"Global\.amp\.dtype: bfloat16 needs a GPU"):
        check_amp(AmpCfg(dtype="bfloat16"))
