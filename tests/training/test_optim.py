"""Schedules by formula at their edges, and what one optimizer step does to each kind of parameter."""

import math
from typing import ClassVar

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.config import load
from plsc.config.optimizer import MomentumOptimizerCfg
from plsc.config.schedule import Schedule
from plsc.errors import UserError
from plsc.training.optim import build_optimizer
from tests.helpers.tiny_runs import NO_PAIRS, train


def rates(steps_per_epoch=10, total=40, **keys):
    schedule = load({"LRScheduler": keys}).LRScheduler
    return [schedule.rate(step, steps_per_epoch, total) for step in range(total)]


def halfway(factor):
    """Cosine's value at a share of the way, from 1 down to 0."""
    return 0.5 * (1 + math.cos(math.pi * factor))


@pytest.mark.parametrize(
    "keys, expected",  # step -> share of the learning rate
    [
        ({"name": "constant"}, {0: 1, 39: 1}),
        ({"name": "step", "milestones": [1.5, 3.0]}, {0: 1, 14: 1, 15: 0.1, 29: 0.1, 30: 0.01, 39: 0.01}),
        ({"name": "step", "milestones": [0.3, 0.4], "gamma": 0.5}, {2: 1, 3: 0.5, 4: 0.25, 39: 0.25}),
        ({"name": "poly", "power": 3.0}, {0: 1, 20: 0.5**3, 39: (1 / 40) ** 3}),
        ({"name": "poly", "power": 1.0, "min_factor": 0.2}, {0: 1, 20: 0.6, 39: 0.2 + 0.8 / 40}),
        ({"name": "cosine"}, {0: 1, 10: halfway(1 / 4), 20: 0.5, 39: halfway(39 / 40)}),
        ({"name": "cosine", "min_factor": 0.5}, {0: 1, 20: 0.75, 39: 0.5 + 0.5 * halfway(39 / 40)}),
        # the warm-up's first and last step, the first at the full rate, and the rest over what remains
        ({"name": "constant", "warmup_epochs": 0.4}, {0: 1 / 5, 3: 4 / 5, 4: 1, 39: 1}),
        ({"name": "poly", "warmup_epochs": 2, "power": 2.0}, {19: 20 / 21, 20: 1, 30: 1 / 4}),
        ({"name": "cosine", "warmup_epochs": 2.0}, {19: 20 / 21, 20: 1, 30: 0.5}),
        ({"name": "cosine", "warmup_epochs": 0.25}, {0: 1 / 3, 1: 2 / 3, 2: 1}),  # 2.5 steps are 2
        ({"name": "step", "milestones": [0.2], "warmup_epochs": 0.4}, {3: 4 / 5, 4: 0.1}),
        # a run that ends before its warm-up, or with it
        ({"name": "constant", "warmup_epochs": 0.5, "total": 1}, {0: 1 / 6}),
        ({"name": "poly", "warmup_epochs": 0.5, "total": 1}, {0: 1 / 6}),
        ({"name": "cosine", "warmup_epochs": 0.5, "total": 1}, {0: 1 / 6}),
        ({"name": "poly", "warmup_epochs": 0.5, "total": 4}, {0: 1 / 6, 3: 4 / 6}),
        ({"name": "cosine", "warmup_epochs": 0.5, "total": 4}, {0: 1 / 6, 3: 4 / 6}),
        ({"name": "constant", "warmup_epochs": 0.5, "total": 5}, {0: 1 / 6, 4: 5 / 6}),
        ({"name": "poly", "warmup_epochs": 0.5, "total": 5}, {0: 1 / 6, 4: 5 / 6}),
        ({"name": "cosine", "warmup_epochs": 0.5, "total": 5}, {0: 1 / 6, 4: 5 / 6}),
    ],
)
def test_a_schedule_is_its_formula(keys, expected):
    found = rates(learning_rate=0.4, **keys)
    for step, share in expected.items():
        assert found[step] == pytest.approx(0.4 * share, rel=1e-12), step


class Given(Schedule):
    """A schedule of one's own, whose factor is what a test says."""

    def factor(self, *_):
        return self.value


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), math.nan, -1.0, None, paddle.ones([2])])
def test_a_factor_is_a_number_from_0_up(value, monkeypatch):
    monkeypatch.setattr(Given, "value", value, raising=False)
    own = {"name": "tests.training.test_optim:Given", "total": 1, "learning_rate": 1.0}
    if isinstance(value, float | np.float32) and value > 0:
        assert rates(**own) == [0.5] and type(rates(**own)[0]) is float
        return
    with pytest.raises(UserError, match="^LRScheduler.name: gave '.*' in step 1; a factor is"):
        rates(**own)


def test_an_error_in_a_schedule_is_one_line(monkeypatch):
    monkeypatch.setattr(Given, "value", property(lambda _: {}["warmth"]), raising=False)
    line = "^LRScheduler.name: step 1: KeyError in .*: 'warmth'$"
    with pytest.raises(UserError, match=line):
        rates(name="tests.training.test_optim:Given", total=1)


class Counted(Given):
    value = 0.5
    made: ClassVar[list] = []

    def __init__(self):
        self.made.append(self)


def test_a_schedule_of_ones_own_is_built_once(tmp_path, monkeypatch):
    """Not for each rate: it may read a file, or have a state."""
    monkeypatch.setattr(Counted, "made", [])
    assert rates(name="tests.training.test_optim:Counted", total=1000) == [0.05] * 1000
    assert len(Counted.made) == 1
    own = 'LRScheduler={name: "tests.training.test_optim:Counted"}'
    train(tmp_path, NO_PAIRS, own)
    assert len(Counted.made) == 2


@pytest.mark.parametrize("nesterov", [False, True])
def test_one_launch_updates_as_one_for_each_parameter_does(nesterov):
    """Bit for bit. If a parameter has no gradient in a step, it does not change."""
    optimizers = []
    for merged in (True, False):
        paddle.seed(0)
        net = nn.Sequential(nn.Linear(6, 4), nn.PReLU(4), nn.Linear(4, 3))
        cfg = MomentumOptimizerCfg(name="Momentum", momentum=0.9, nesterov=nesterov, weight_decay=0.01)
        optimizer = build_optimizer(cfg, net)
        if not merged:
            optimizer._slices = [each._replace(merged=False) for each in optimizer._slices]
            for each in optimizer._slices:
                each.optimizer._use_multi_tensor = False
        for step in range(5):
            x = paddle.to_tensor(np.random.default_rng(step).normal(size=(8, 6)).astype("float32"))
            last = 1 if step in (0, 3) else 3
            net[:last](x).square().mean().backward()
            kept = net[2].weight.numpy()
            optimizer.step(0.1 / (step + 1))
            optimizer.clear_grad()
            assert (net[2].weight.numpy() == kept).all() == (last == 1)
        optimizers.append([parameter.numpy().tobytes() for parameter in net.parameters()])
    assert optimizers[0] == optimizers[1]
