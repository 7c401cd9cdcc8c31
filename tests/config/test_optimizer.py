"""The section Optimizer: what each rule takes, and the class centres' rule."""

import pytest

from plsc.config import ConfigError, load


@pytest.mark.parametrize(
    "override, line",
    [
        ("{beta1: 0.5}", "beta1: has no meaning with Momentum, only with AdamW (got 0.5)"),
        (
            "{name: AdamW, coefficient: 0.1}",
            "coefficient: has no meaning with AdamW, only with LARS (got 0.1)",
        ),
        ("{name: LARS, weight_decay: 0}", "weight_decay: must be greater than 0 (got 0)"),
        ("{name: AdamW, epsilon: 0}", "epsilon: must be greater than 0 (got 0)"),
        ("{name: AdamW, epsilom: 1}", "epsilom: unknown key, did you mean 'epsilon'?"),
        ("{head: {name: AdamW, momentum: 0.5}}", "head.momentum: has no meaning with AdamW"),
        ("{head: {name: Adam}}", "head.name: must be one of 'Momentum', 'AdamW', 'LARS', or your own as "),
        ("{head: {name: 'subprocess:Popen'}}", "Popen must derive from plsc.heads.optimizer.Rule"),
        ("{head: {name: 'tests.heads.errors:Own', mu: 1}}", "head.mu: unknown key (one of name, momentum)"),
        ("{freeze: ['a(']}", "freeze.0: must be a valid regular expression (got 'a(')"),
        (
            "{name: Adma}",
            "name: must be one of 'Momentum', 'AdamW', 'LARS', or your own as package.module:Class",
        ),
        ("{name: 'paddle.optimizer:Adam'}", "head: is required"),
        (
            "{name: 'subprocess:Popen', head: {name: LARS}}",
            "Popen must derive from paddle.optimizer.Optimizer",
        ),
        ("{name: 'paddle.optimizer:Adam', head: {name: LARS}, parameters: [1]}", "parameters: unknown key"),
    ],
)
def test_what_is_refused(override, line):
    with pytest.raises(ConfigError) as raised:
        load(None, [f"Optimizer={override}"])
    assert any(line in error and ": Optimizer" in error for error in str(raised.value).splitlines()), (
        raised.value
    )


@pytest.mark.parametrize(
    "override, numbers",
    [
        ("{momentum: 0.8, nesterov: true}", {"momentum": 0.8, "nesterov": True, "weight_decay": 5e-4}),
        ("{name: AdamW, beta1: 0.8}", {"beta1": 0.8, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}),
        ("{name: AdamW, weight_decay: 0.3, head: {}}", {"momentum": 0.9, "weight_decay": 5e-4}),
        ("{head: {name: 'tests.heads.errors:Own', momentum: 0.5}}", {"momentum": 0.5, "weight_decay": 0.0}),
        (
            "{name: 'paddle.optimizer:Adam', head: {name: LARS, momentum: 0.5}}",
            {"momentum": 0.5, "coefficient": 0.001, "epsilon": 0.0, "weight_decay": 5e-4},
        ),
    ],
)
def test_the_rule_of_the_class_centres(override, numbers):
    rule = load(None, [f"Optimizer={override}"]).Optimizer.build_rule()
    assert {name: getattr(rule, name) for name in numbers} == numbers
