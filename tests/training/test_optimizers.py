"""Ten steps with each backbone optimizer against its formula in float64."""

import math

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc.config import load
from plsc.training.optim import build_optimizer
from tests.helpers.bounds import assert_within, perturbed

RATES = (0.05, 0.05, 0.04, 0.04, 0.03, 0.03, 0.02, 0.02, 0.01, 0.01)


class Net(nn.Layer):
    """Two matrices, a bias, a norm's gain and shift, and slopes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1D(4)
        self.slope = nn.PReLU(4)
        self.last = nn.Linear(4, 2, bias_attr=False)


def made(number, *shape):
    return np.random.default_rng(number).normal(1.0, 0.5, shape)


def net():
    network = Net()
    for number, parameter in enumerate(network.parameters()):
        parameter.set_value(made(number, *parameter.shape).astype("float32"))
    return network


def gradients(values):
    """Half the squared distance to points, for each parameter."""
    return {
        name: value - made(100 + number, *value.shape) for number, (name, value) in enumerate(values.items())
    }


def run(optimizer, network, rates):
    for rate in rates:
        parameters = trained(network)
        wanted = gradients({name: p.numpy() for name, p in parameters.items()})
        sum(
            (p * paddle.to_tensor(wanted[name], "float32")).sum() for name, p in parameters.items()
        ).backward()
        optimizer.step(rate)
        optimizer.clear_grad()
    return {name: p.numpy() for name, p in network.named_parameters()}


def trained(network):
    """Without the running statistics, which Paddle lists among the parameters."""
    return {name: p for name, p in network.named_parameters() if not p.stop_gradient}


def momentum(w, g, state, rate, decay, step, mu=0.9, nesterov=False):
    g = g + decay * w
    v = state["v"] = mu * state.get("v", 0.0) + g
    return w - rate * (g + mu * v if nesterov else v)


def nesterov(*args):
    return momentum(*args, mu=0.8, nesterov=True)


def adamw(w, g, state, rate, decay, step, epsilon=1e-6):
    beta1, beta2 = state["ones"] * (0.8, 0.95)
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g**2
    adam = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + epsilon)
    return w - rate * decay * w - rate * adam


def lars(w, g, state, rate, decay, step, coefficient=0.02, epsilon=1e-3):
    norm = np.linalg.norm(w)
    if decay:
        rate = rate * coefficient * norm / (np.linalg.norm(g) + decay * norm + epsilon)
    v = state["v"] = 0.9 * state.get("v", 0.0) + rate * (g + decay * w)
    return w - v


OWN = {"name": "paddle.optimizer:AdamW", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1}
OWN["head"] = {"name": "LARS"}
CASES = {
    "momentum": ({"name": "Momentum"}, momentum, 5e-4),
    "nesterov": ({"name": "Momentum", "momentum": 0.8, "nesterov": True}, nesterov, 5e-4),
    "adamw": ({"name": "AdamW", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}, adamw, 0.1),
    "lars": ({"name": "LARS", "coefficient": 0.02, "epsilon": 1e-3}, lars, 5e-4),
    "own": (OWN, adamw, 0.1),
}


@pytest.mark.parametrize("clip", [None, 1.5])
@pytest.mark.parametrize("case", CASES)
def test_ten_steps_follow_the_formula(case, clip):
    """Biases, gains and slopes are not decayed. One norm clips all."""
    keys, rule, decay = CASES[case]
    network = net()
    names, starts = zip(*((name, p.numpy()) for name, p in trained(network).items()))
    cfg = load({"Optimizer": {"clip_norm": clip, **keys}}).Optimizer
    found = run(build_optimizer(cfg, network), network, RATES)

    def reference(ones, *starts):
        """`ones` are off where the bound is taken: so are Adam's betas in float32, and 1 - 0.999 is much more
        so."""
        values = dict(zip(names, starts))
        states = {name: {"ones": ones} for name in values}
        for step, rate in enumerate(RATES, 1):
            grads = gradients(values)
            norm = math.sqrt(sum((grad**2).sum() for grad in grads.values()))
            share = min(1.0, clip / norm) if clip else 1.0
            for name, value in values.items():
                of = 0.0 if value.ndim == 1 else decay
                values[name] = rule(value, share * grads[name], states[name], rate, of, step)
        return values

    want, bound = perturbed(reference, np.ones(2), *starts)
    assert_within({name: found[name] for name in want}, want, bound)
