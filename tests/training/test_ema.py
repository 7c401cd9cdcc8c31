"""Averaged weights: the numbers against a float64 loop, and what is evaluated, saved, exported and loaded.

Resumed runs are in tests/test_resume.py, killed ones in tests/distributed/test_restart.py, skipped steps in
test_skipped_steps.py.
"""

import numpy as np
import paddle
import pytest

from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.entry import Entry
from plsc.training.ema import Ema
from plsc.training.load_weights import load_network
from plsc.utils.logging import setup_logging
from tests.helpers.bounds import EPS, assert_within
from tests.helpers.tiny_runs import TINY, arrays, checkpoint, make_trainer, part_of, rows, train

EMA = "Global.ema=0.9"


def small_net():
    net = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4))
    net.register_buffer("count", paddle.to_tensor(0))
    return net


@pytest.mark.parametrize("decay", [0.5, 0.0, 0.999])
def test_the_average_is_that_of_a_float64_loop(decay):
    net, rng = small_net(), np.random.default_rng(1)
    ema = Ema(net, decay)
    expected, bounds = None, None
    for updates in range(60):
        values = rng.standard_normal((3, 4)), rng.random(4)
        for tensor, value in zip((net[0].weight, net[1]._variance), values):
            tensor.set_value(value.astype(np.float32))
        net.count.set_value(paddle.to_tensor(updates + 1))
        ema.update(None)
        keep = min(decay, updates / (updates + 9)) if updates else 0.0
        earlier = expected or values
        sizes = [keep * np.abs(e) + (1 - keep) * np.abs(v) for e, v in zip(earlier, values)]
        # e + (1 - keep) * (v - e) has five roundings. Among them are those of `v` and `1 - keep`.
        added = [5 * EPS / 2 * (np.abs(e) + size) for e, size in zip(earlier, sizes)]
        bounds = [keep * bound + more for bound, more in zip(bounds or [0.0, 0.0], added)]
        expected = [keep * e + (1 - keep) * v for e, v in zip(earlier, values)]
    found = ema.state_dict().get("arrays")
    assert found.keys() == net.state_dict().keys() and found["count"] == 60
    assert_within([found["0.weight"], found["1._variance"]], expected, bounds)


def bits(arrays):
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


def test_weights_are_exchanged_and_come_back_with_their_bits():
    net = small_net()
    net.tied = paddle.nn.Linear(3, 4)
    net.tied.weight = net[0].weight  # under two names
    ema = Ema(net, 0.5)
    with ema.in_place_of_weights():  # before the first update there is nothing to exchange
        pass
    for _ in range(3):
        net[0].weight.set_value(net[0].weight.numpy() + 0.1)
        ema.update(None)
    own = bits(net.state_dict())
    average = bits(ema.state_dict()["arrays"])
    assert own["0.weight"] != average["0.weight"]
    with pytest.raises(ValueError), ema.in_place_of_weights():
        assert bits(net.state_dict()) == average
        raise ValueError
    assert bits(net.state_dict()) == own and bits(ema.state_dict()["arrays"]) == average


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run with an average and one without: their folders."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "ema", EMA, "Checkpoint.keep=9")
    train(folder / "plain", "Checkpoint.keep=9")
    return folder / "ema", folder / "plain"


def test_training_is_the_same_and_the_average_is_evaluated(averaged):
    ema, plain = (arrays(checkpoint(folder)) for folder in averaged)
    assert [name for name in plain if ema[name].tobytes() != plain[name].tobytes()] == []
    names = {name.removeprefix("ema: ") for name in ema.keys() - plain.keys()}
    assert names == {name.removeprefix("backbone: ") for name in plain if name.startswith("backbone: ")}
    assert not np.array_equal(ema["ema: embed.2.weight"], ema["backbone: embed.2.weight"])
    assert not np.array_equal(ema["ema: embed.3._mean"], ema["backbone: embed.3._mean"])
    assert Checkpoint.open(checkpoint(averaged[0])).plain("ema") == {"steps": 12}


def test_test_predict_and_init_from_take_the_average(averaged, tmp_path):
    saved = Checkpoint.open(checkpoint(averaged[0]))
    backbone = load_network(saved, load(TINY))  # of test, predict and export
    found = arrays(saved.path)
    for name, tensor in backbone.state_dict().items():
        assert tensor.numpy().tobytes() == found[f"ema: {name}"].tobytes(), name
    tested = Entry(TINY, [f"Global.output_dir={averaged[0]}"]).evaluate()
    (row,) = rows(averaged[0], evaluations=True)
    assert {key: row[key] for key in tested} == tested, "training has evaluated other weights"
    overrides = [f"Global.init_from={saved.path}", f"Global.output_dir={tmp_path}", "Global.max_steps=1", EMA]
    Entry(TINY, [*overrides, "LRScheduler.learning_rate=1e-30"]).train()
    begun = arrays(checkpoint(tmp_path, 1))
    name = "embed.2.weight"
    assert begun[f"backbone: {name}"].tobytes() == found[f"ema: {name}"].tobytes(), (
        "a step too small for float32"
    )


def test_resuming_with_it_and_without(averaged, tmp_path, capsys):
    setup_logging()
    trainer = make_trainer(tmp_path, EMA)
    trainer.resume(checkpoint(averaged[1], 4))
    line = "WARNING the checkpoint has no averaged weights: Global.ema begins with its weights"
    assert line in capsys.readouterr().out
    assert part_of(trainer, "ema").state_dict() == {"steps": 0}
    make_trainer(tmp_path).resume(checkpoint(averaged[0], 4))
    assert "WARNING the state of 'ema' in " in capsys.readouterr().out
