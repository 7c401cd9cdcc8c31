"""The backbone in a training step: micro-batches, recomputed layers, mixed precision. That the gradients are
those of the loss is shown in test_trainer.py."""

import contextlib

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc import native
from plsc.backbones.layers import Dropout
from plsc.backbones.mobilefacenet import MobileFaceNet
from plsc.backbones.small_resnet import SmallResNet
from plsc.errors import UserError
from plsc.native import onednn
from plsc.training.amp import LossScale, check_amp
from plsc.training.freeze import statistics_of
from plsc.training.parallel_backbone import ParallelBackbone, layers_to_recompute
from plsc.utils.preprocessing import Preprocessing
from tests.backbones.test_transformer_layers import no_bfloat16
from tests.helpers.bounds import EPS, assert_within, rounded
from tests.helpers.refusals import refusal
from tests.helpers.small_networks import SmallFaceViT, SmallIResNet
from tests.helpers.tiny_runs import IMAGE_SHAPE, Linear

PREPROCESSING = Preprocessing(IMAGE_SHAPE)
IMAGES = np.random.default_rng(0).integers(0, 256, (12, *IMAGE_SHAPE), np.uint8)
GRAD = paddle.to_tensor(np.random.default_rng(1).normal(size=(12, 8)).astype(np.float32))


class Detached(Linear):
    def forward(self, images):
        return super().forward(images).detach()


class Half(Linear):
    """Gives what a network under autocast gives on a GPU."""

    def forward(self, images):
        return super().forward(images).astype("float16")


class Dropping(Linear):
    """Without batch norm. Its masks depend on the samples' addresses."""

    def __init__(self):
        super().__init__()
        self.drops, self.last = Dropout(0.3), nn.Linear(8, 8)

    def forward(self, images):
        return self.last(self.drops(nn.functional.relu(super().forward(images))))


class Normed(Linear):
    """With batch norm, and a dropout that draws from Paddle's generator. It keeps what it computed."""

    def __init__(self):
        super().__init__()
        self.norm, self.drops, self.outs = nn.BatchNorm1D(8), nn.Dropout(0.3), []

    def forward(self, images):
        out = self.drops(self.norm(super().forward(images)))
        self.outs.append(out.numpy())
        return out


class SmallPatches(SmallFaceViT):
    side = 4


def make(net, batch_size=12, recomputed=(), **more) -> ParallelBackbone:
    return ParallelBackbone(
        net,
        PREPROCESSING,
        8,
        seed=0,
        batch_size=batch_size,
        shares=lambda step: [(0, 12)],
        statistics=statistics_of(net),
        recomputed=recomputed,
        **more,
    )


def gradients(net) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None}


def step(network, number=4) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Embeddings, gradients, and the state that has none."""
    emb_BD = network.forward(IMAGES, number)
    network.backward(GRAD)
    found = gradients(network.backbone)
    network.backbone.clear_gradients()
    state = {name: x.numpy() for name, x in network.backbone.state_dict().items() if x.stop_gradient}
    return emb_BD.numpy(), found, state


def test_embeddings_without_a_gradient_are_refused():
    for batch_size in (12, 4):
        network = make(Detached(), batch_size)
        with pytest.raises(UserError, match="embeddings have no gradient"):
            network.forward(IMAGES, 0)
            network.backward(GRAD)


@pytest.mark.parametrize("batch_size", [3, 5])
def test_micro_batches_give_what_the_whole_batch_gives(batch_size):
    net = Dropping()
    (emb, grads), bound = rounded(net, lambda: step(make(net))[:2])
    parts = make(net, batch_size)
    assert_within(step(parts)[:2], [emb, grads], bound, paths=2)
    assert not np.allclose(step(parts, 5)[0], emb, atol=1e-2), "the masks of another step"


def test_the_second_pass_is_the_first_one_again():
    """With a user's own dropout, too. Batch norm counts each micro-batch once."""
    paddle.seed(0)
    net, alone = Normed(), Normed()
    alone.set_state_dict(net.state_dict())
    emb, _, state = step(make(net, 4))
    first, second = net.outs[:3], net.outs[3:]
    assert [a.tobytes() for a in first] == [b.tobytes() for b in second]
    assert np.concatenate(first).tobytes() == emb.tobytes()
    with paddle.no_grad():
        for start in (0, 4, 8):
            alone(PREPROCESSING(paddle.to_tensor(IMAGES[start : start + 4])))
    for name, value in state.items():
        assert value.tobytes() == alone.state_dict()[name].numpy().tobytes(), name


@pytest.mark.parametrize("batch_size", [12, 4])
@pytest.mark.parametrize("amp", [None, pytest.param("bfloat16", marks=no_bfloat16)])
@pytest.mark.parametrize(
    "build, asked",
    [
        (lambda: SmallIResNet(8, IMAGE_SHAPE, dropout=0.3), True),
        (lambda: SmallIResNet(8, IMAGE_SHAPE, dropout=0.3), ["layer1", "layer2.1", "conv1"]),
        (lambda: SmallPatches(8, IMAGE_SHAPE, dropout=0.2, drop_path=0.5, mask_ratio=0.4), True),
        # The first of them lets the images enter.
        (
            lambda: SmallPatches(8, IMAGE_SHAPE, dropout=0.2, drop_path=0.5, mask_ratio=0.4),
            ["patch_embed", "blocks"],
        ),
        (lambda: MobileFaceNet(8, IMAGE_SHAPE, dropout=0.2, scale=1), True),
        (lambda: SmallResNet(8, IMAGE_SHAPE, dropout=0.2), ["stages", "embed"]),
    ],
)
def test_recomputing_changes_no_bit(build, asked, amp, batch_size):
    paddle.seed(0)
    net = build()
    names, before = list(net.state_dict()), {k: v.numpy() for k, v in net.state_dict().items()}
    plain = step(make(net, batch_size, amp=amp))
    net.set_state_dict(before)
    layers = layers_to_recompute(asked, net)
    inner = next(layer for layer in layers[0].sublayers() if isinstance(layer, (nn.Conv2D, nn.Linear)))
    calls = []
    inner.register_forward_post_hook(lambda *args: calls.append(1))
    again = step(make(net, batch_size, layers, amp=amp))
    assert len(calls) == (2 if batch_size == 12 else 3 * 3), "it was not recomputed"
    assert list(net.state_dict()) == names and "forward" not in vars(layers[0])
    assert plain[0].tobytes() == again[0].tobytes()
    for one, other in zip(plain[1:], again[1:]):
        assert one.keys() == other.keys()
        assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]


def test_a_frozen_part_is_not_recomputed():
    """It has no backward pass. What comes after it has one."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(120, 16), nn.Sequential(nn.Linear(16, 8), nn.Tanh()))
    for parameter in net[1].parameters():
        parameter.stop_gradient = True
    plain = step(make(net))
    calls = []
    net[2][0].register_forward_post_hook(lambda *args: calls.append(1))
    found = step(make(net, recomputed=[net[1], net[2]]))
    assert len(calls) == 2 and found[1].keys() == {"2.0.weight", "2.0.bias"}
    assert not [name for name in plain[1] if plain[1][name].tobytes() != found[1][name].tobytes()]


def test_a_recomputed_layer_takes_arguments_by_name():
    class Scaled(nn.Linear):
        def forward(self, x, gain=1.0, *, shift=0.0):
            return super().forward(x) * gain + shift

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(120, 8), Scaled(8, 8)

        def forward(self, x):
            out = self.first(x.flatten(1))
            return self.second(out, gain=out.mean(), shift=out.tanh())

    net = Net()
    plain, found = step(make(net)), step(make(net, recomputed=[net.second]))
    assert plain[0].tobytes() == found[0].tobytes()
    for name, gradient in plain[1].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-5, atol=1e-7)


def test_what_cannot_be_recomputed_is_refused():
    net = SmallResNet(8, IMAGE_SHAPE)
    said = refusal(layers_to_recompute, True, net)
    assert said.startswith("Model.recompute: SmallResNet does not say ") and "[stages, embed]" in said
    said = refusal(layers_to_recompute, ["stagse"], net)
    assert "'stagse' is not a layer of SmallResNet, " in said and "did you mean 'stages'?" in said
    assert layers_to_recompute(False, net) == [] == layers_to_recompute([], net)


def test_gradients_are_scaled_on_their_way_back_only():
    """A gradient of 1e-8 is 0 in float16, but not with the scale. The result is no longer scaled."""
    emb_grad = paddle.full([12, 8], 1e-8)
    found = []
    for scaler in (None, LossScale()):
        net = Half()
        network = make(net, amp="float16", loss_scale=scaler)
        emb_BD = network.forward(IMAGES, 0)
        assert emb_BD.dtype == paddle.float32 == net.linear.weight.dtype
        network.backward(emb_grad)
        found.append(net.linear.bias.grad.numpy())
    assert not found[0].any()
    # Each of the 12 is rounded to float16, which has 11 bits, and they are summed in float32.
    assert_within(found[1], np.full(8, 12e-8), 12e-8 * (2**-11 + 14 * EPS))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_step_is_under_autocast_on_a_gpu(dtype, monkeypatch):
    """Paddle's own autocast does nothing on a CPU, so it is replaced. The test shows that it is called."""
    asked = []

    @contextlib.contextmanager
    def auto_cast(**options):
        asked.append(options)
        yield
        asked.append("out")

    network = make(Linear(), amp=dtype)
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    network.forward(IMAGES, 0)
    assert not asked  # on a CPU Paddle would warn in each step
    monkeypatch.setattr(paddle, "CUDAPinnedPlace", paddle.CPUPlace)  # copies as on a CPU
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    network.forward(IMAGES, 0)
    assert asked == [{"level": "O1", "dtype": dtype}, "out"]


def test_what_a_cpu_cannot_is_refused_or_reported(monkeypatch, caplog):
    monkeypatch.delenv("PLSC_KERNELS", raising=False)
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: True)
    for amp in (None, "bfloat16"):
        check_amp(amp)
    if native.library() is None:
        pytest.skip("no kernels")
    assert not caplog.text
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: False)
    check_amp("bfloat16")
    assert (
        "the backbone computes in float32, because this CPU has no instructions for bfloat16 that oneDNN uses"
        in caplog.text
    )
    said = refusal(check_amp, "float16")
    assert said.startswith("Global.amp: float16 is for GPUs, a CPU trains in bfloat16 or")
    monkeypatch.setenv("PLSC_KERNELS", "0")
    check_amp("float16")
    assert "in float32, because there are no compiled kernels (PLSC_KERNELS=0, or not built)" in caplog.text


@pytest.mark.parametrize("batch_size", [12, 5])
def test_images_sent_ahead_give_the_same_numbers(monkeypatch, batch_size):
    network = make(Dropping(), batch_size)
    monkeypatch.setenv("PLSC_KERNELS", "1")
    expected = step(network)
    monkeypatch.setenv("PLSC_KERNELS", "0")  # the way of a GPU
    for _ in range(4):  # more than there are buffers
        for got, want in zip(step(network)[:2], expected[:2]):
            np.testing.assert_equal(got, want)
