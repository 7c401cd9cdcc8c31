"""Parameters in Python containers, which Paddle neither trains nor saves."""

import paddle
import pytest
from paddle import nn

from plsc.config import load
from plsc.training.build import build_trainer
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import IMAGE_SHAPE, TINY


class Net(nn.Layer):
    def __init__(self, make, inside=False):
        super().__init__()
        self.last = nn.Linear(IMAGE_SHAPE[1] * IMAGE_SHAPE[2], 8)
        owner = self
        if inside:
            owner = self.inner = nn.Sequential()
        owner.blocks = make(nn.Linear(8, 8))
        owner.more = owner.blocks


def build(tmp_path, net):
    build_trainer(load(TINY, [f"Global.output_dir={tmp_path}"]), net, planned_ranks=1)


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda layer: [layer], "list"),
        (lambda layer: (None, layer), "tuple"),
        (lambda layer: {"a": layer}, "dict"),
        (lambda layer: [layer.weight], "list"),
    ],
)
@pytest.mark.parametrize("inside, path", [(False, "blocks"), (True, "inner.blocks")])
def test_hidden_parameters_are_refused(tmp_path, make, kind, inside, path):
    line = refusal(build, tmp_path, Net(make, inside))
    assert f"Model.name: its attribute {path} is a Python {kind} with parameters" in line


def frozen(layer):
    layer.weight.stop_gradient = layer.bias.stop_gradient = True
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: nn.LayerList([layer]),
        lambda layer: [frozen(layer)],  # such as a teacher, which is not to be saved
        lambda layer: [layer(paddle.ones([1, 8]))],
        lambda layer: [1, "a", None],
    ],
)
def test_what_paddle_sees_or_nobody_trains_is_accepted(tmp_path, make):
    build(tmp_path, Net(make))


def test_a_list_beside_the_attributes_is_accepted(tmp_path):
    net = Net(lambda layer: layer)
    net.listed = [net.blocks]
    build(tmp_path, net)
