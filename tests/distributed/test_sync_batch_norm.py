"""Synchronised batch norm: layers by run_sync_batch_norm.py, a training on two ranks against the same on one,
and what is refused."""

import copy
import itertools
from pathlib import Path

import numpy as np
import paddle
import pytest

from plsc.distributed.sync_batch_norm import SyncBatchNorm, synchronise
from plsc.errors import UserError
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.launch import launch
from tests.helpers.tiny_runs import arrays, checkpoint, columns, make_trainer, rows, train

pytestmark = pytest.mark.slow


class Wide(paddle.nn.Layer):
    """A small network in float64: in float32 the rounding of ten steps already grows to more than 1e-6, as
    much as after a change of the initial weights in their last bit."""

    def __init__(self):
        super().__init__()
        paddle.seed(0)
        self.rounds = paddle.nn.Identity()  # what it gives is float32
        self.layers = paddle.nn.Sequential(
            paddle.nn.Conv2D(1, 4, 3, 2, 1),
            paddle.nn.BatchNorm2D(4),
            paddle.nn.ReLU(),
            paddle.nn.Flatten(),
            paddle.nn.Linear(4 * 6 * 5, 8),
            paddle.nn.BatchNorm1D(8, weight_attr=False, bias_attr=False),
        )
        self.to(dtype="float64")

    def forward(self, images):
        return self.rounds(self.layers(images.astype("float64")).astype("float32"))


def train_wide(output, *overrides, net=None):
    """Ten steps, of which the last has fewer samples, and on two ranks not the same number."""
    few = ["DataLoader.Eval.dataset=null", "Global.max_steps=10", "LRScheduler.learning_rate=0.01"]
    train(output, *few, "Checkpoint.every_steps=10", *overrides, backbone=net or Wide())


def test_two_ranks_train_as_one_with_the_whole_batch(tmp_path):
    script = Path(__file__).with_name("run_sync_batch_norm.py")
    assert launch(script, 2, tmp_path, tmp_path).stdout.count("synchronised batch norm ok") == 2
    net, runs = Wide(), itertools.count()

    def found(name):
        return columns(rows(tmp_path / name)), arrays(checkpoint(tmp_path / name, 10))

    def alone():
        name = f"one-{next(runs)}"
        train_wide(tmp_path / name, net=copy.deepcopy(net))
        return found(name)

    one, bound = rounded(net.rounds, alone)
    for name in ("sync", "recomputed"):
        assert_within(found(name), one, bound, paths=2)
    assert len(rows(tmp_path / "accumulated")) == 10, (
        "a step of two batches has statistics of its own, and no rank waits for ever"
    )
    name = "backbone: layers.4.weight"
    of_plain = np.abs(found("plain")[1][name] - one[1][name])
    assert of_plain.max() > 1e-3 > 100 * bound[1][name].max(), "without synchronising it is another network"


def test_one_rank_keeps_its_layers():
    net = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
    assert synchronise(net) is net and not isinstance(net[0], SyncBatchNorm)


class Own(paddle.nn.BatchNorm1D):
    """Does something else, for all that is known."""


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (paddle.nn.Linear(2, 2), "Linear has no batch normalisation layer; set it to false"),
        (paddle.nn.Sequential(Own(2)), "'0' is a Own, which cannot be synchronised"),
        (paddle.nn.Sequential(paddle.nn.BatchNorm(2)), "'0' is a BatchNorm, which cannot be synchronised"),
    ],
)
def test_what_cannot_be_synchronised_is_refused(net, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_trainer(tmp_path, "Model.sync_batchnorm=true", backbone=net)
