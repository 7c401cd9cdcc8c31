"""Tests of plsc/apps/plan/activations.py."""

import paddle
from paddle import nn

from plsc.apps.plan.activations import build, counted, kept_bytes
from plsc.config import load
from plsc.native import onednn
from tests.backbones.test_bfloat16 import computes
from tests.helpers.tiny_runs import IMAGE_SHAPE, TINY


class Small(nn.Layer):
    """Keeps of an image of 6 pixels: the image, which the first layer multiplies, and the 5 outputs of
    relu."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 3)

    def forward(self, images):
        return self.second(nn.functional.relu(self.first(images.flatten(1))))


def test_activations_are_what_the_backward_pass_needs_without_parameters():
    assert kept_bytes(Small(), (1, 2, 3)) == 4 * (6 + 5)


def test_a_wider_layer_keeps_more():
    wide = nn.Sequential(nn.Flatten(), nn.Linear(6, 50), nn.Tanh())
    assert kept_bytes(wide, (6,)) == 4 * (6 + 50)
    assert paddle.is_grad_enabled()


def test_what_is_frozen_has_no_gradient_and_keeps_nothing():
    whole = counted(load(TINY), IMAGE_SHAPE)
    found = counted(load(TINY, ["Optimizer.groups=[{match: ^stages, freeze: true}]"]), IMAGE_SHAPE)
    assert whole["frozen"] == 0 < found["frozen"]
    assert found["parameters"] + found["frozen"] == whole["parameters"]
    growth, of_whole = found["kept"], whole["kept"]
    kept = 4 * (54 + 8 + 8)  # the last map, and what its matrix and its norm give
    assert kept <= growth <= kept + 4 * 4 * 8 < of_whole  # statistics of the norm are of all images


def test_a_gradient_is_computed_beside_the_sum_that_it_is_added_to():
    found = counted(load(TINY), IMAGE_SHAPE)
    backbone, _ = build(load(TINY), IMAGE_SHAPE)
    largest = max(parameter.size for parameter in backbone.parameters())
    ((images, seconds, peak),) = found["backbone"]
    assert (images, seconds) == (1, None)
    assert peak == found["kept"] + 4 * (2 * found["parameters"] + largest)


def test_of_recomputed_layers_the_inputs_are_kept_and_the_largest_layer():
    """The last layer is not recomputed: it keeps its input, 7 numbers."""
    first, second = nn.Sequential(nn.Linear(6, 50), nn.Tanh()), nn.Sequential(nn.Linear(50, 7), nn.Tanh())
    net = nn.Sequential(nn.Flatten(), first, second, nn.Linear(7, 3))
    assert kept_bytes(net, (6,)) == 4 * (6 + 50 + 7)
    assert kept_bytes(net, (6,), [first, second]) == 4 * (6 + 50 + 7 + max(6 + 50, 50 + 7))
    assert "forward" not in vars(first) and not first._forward_pre_hooks


def test_in_bfloat16_maps_take_half(monkeypatch):
    """But for statistics of the norms, and what follows the last map, which stay float32."""
    config = load(TINY, ["Model={name: SmallResNet, embedding_size: 8}", "Global.amp={dtype: bfloat16}"])
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: False)
    whole = counted(config, (1, 32, 32))
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: True)
    if not computes():
        assert counted(load(TINY), IMAGE_SHAPE)["dtype"] == whole["dtype"] == "float32"
        return
    half = counted(config, (1, 32, 32))
    assert (whole["dtype"], half["dtype"]) == ("float32", "bfloat16")
    assert 0.5 < half["kept"] / whole["kept"] < 0.6
