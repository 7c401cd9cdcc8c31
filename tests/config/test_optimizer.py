"""The section Optimizer: which keys go together, what null stands for, and the class centres' part of it."""

import pytest

from plsc.config import ConfigError, load
from plsc.config.optimizer import HeadOptimizerCfg, OptimizerCfg
from plsc.training.build_head import build_rule


@pytest.mark.parametrize(
    "override, line",
    [
        (
            "{beta1: 0.5}",
            "beta1: has no meaning with Momentum, only with AdamW, and classes that take it (got 0.5)",
        ),
        ("{name: AdamW, nesterov: true}", "nesterov: has no meaning with AdamW, only with Momentum"),
        ("{name: AdamW, coefficient: 0.1}", "coefficient: has no meaning with AdamW, only with LARS"),
        ("{name: LARS, weight_decay: 0}", "weight_decay: must be above 0 with LARS"),
        ("{name: AdamW, epsilom: 1}", "epsilom: unknown key, did you mean 'epsilon'?"),
        ("{head: {}}", "head: names nothing that differs from the backbone's; leave it out"),
        ("{head: {beta1: 0.5}}", "head: beta1 has no meaning with Momentum"),
        ("{head: {name: AdamW, momentum: 0.5}}", "head.momentum: has no meaning with AdamW"),
        ("{head: {name: Adam}}", "head.name: must be one of Momentum, AdamW, LARS or null (got 'Adam')"),
        ("{groups: [{freeze: true}]}", "groups.0.match: is required"),
        ("{groups: [{match: 'a('}]}", "groups.0.match: is no regular expression: missing ), unterminated"),
        ("{groups: [{match: 'ab[', freeze: true}]}", "unterminated character set at position 2 (got 'ab[')"),
        (
            "{groups: [{match: a}]}",
            "groups.0: changes nothing; give it lr_scale, weight_decay or freeze: true",
        ),
        (
            "{groups: [{match: a, freeze: true, lr_scale: 2}]}",
            "groups.0: freezes its parameters, so lr_scale",
        ),
        ("{groups: [{match: a, freez: true}]}", "groups.0.freez: unknown key, did you mean 'freeze'?"),
        # classes of paddle.optimizer
        (
            "{name: Adma, head: {name: LARS}}",
            "name: optimizer 'paddle.optimizer:Adma': module paddle.optimizer has no",
        ),
        ("{name: LBFGS, head: {name: LARS}}", "name: optimizer 'LBFGS': its step() needs a closure"),
        (
            "{name: 'subprocess:Popen', head: {name: LARS}}",
            "Popen must derive from paddle.optimizer.Optimizer",
        ),
        ("{name: Adam}", "head: must name the class centres' optimizer, such as {name: Momentum}"),
        (
            "{name: Adam, head: {name: LARS}, nesterov: true}",
            "nesterov: has no meaning with Adam, whose class takes no",
        ),
        (
            "{name: Adam, head: {name: LARS}, parameters: [1]}",
            "parameters: comes from the backbone, set that",
        ),
        ("{name: RMSProp, head: {name: LARS}, rho: '0.9'}", "rho: must be a number (got '0.9')"),
    ],
)
def test_what_does_not_go_together(override, line):
    with pytest.raises(ConfigError) as raised:
        load(None, [f"Optimizer={override}"])
    assert any(line in error and ": Optimizer." in error for error in raised.value.errors), raised.value


def of_head(override):
    return load(None, [f"Optimizer={override}"]).Optimizer.of_head


def test_the_class_centres_take_over_what_they_do_not_say():
    assert of_head("{momentum: 0.8, nesterov: true, weight_decay: 0.1}") == HeadOptimizerCfg(
        name="Momentum", momentum=0.8, nesterov=True, weight_decay=0.1
    )
    found = of_head("{name: AdamW, beta1: 0.8, head: {beta2: 0.9, lr_scale: 0.1}}")
    assert found == HeadOptimizerCfg(
        name="AdamW", beta1=0.8, beta2=0.9, epsilon=1e-8, weight_decay=0.1, lr_scale=0.1
    )
    # another rule: its own defaults, not the backbone's values
    found = of_head("{name: AdamW, weight_decay: 0.3, head: {name: Momentum}}")
    assert (found.name, found.momentum, found.weight_decay) == ("Momentum", 0.9, 5e-4)
    found = of_head("{name: Adam, beta1: 0.5, head: {name: LARS, coefficient: 0.01}}")
    assert (found.coefficient, found.epsilon, found.weight_decay) == (0.01, 0.0, 5e-4)


@pytest.mark.parametrize(
    "override, numbers",
    [
        ("{momentum: 0.8, nesterov: true}", {"mu": 0.8, "nesterov": True, "weight_decay": 5e-4}),
        (
            "{name: AdamW, head: {beta1: 0.8, weight_decay: 0.0}}",
            {"beta1": 0.8, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0},
        ),
        (
            "{name: Adam, head: {name: LARS, momentum: 0.5}}",
            {"mu": 0.5, "coefficient": 0.001, "epsilon": 0.0, "weight_decay": 5e-4},
        ),
    ],
)
def test_the_rule_of_the_class_centres_has_the_numbers(override, numbers):
    rule = build_rule(load(None, [f"Optimizer={override}"]).Optimizer)
    assert {name: getattr(rule, name) for name in numbers} == numbers


@pytest.mark.parametrize(
    "override",
    [
        "{name: AdamW, head: {name: Momentum, lr_scale: 0.1}, groups: [{match: ^a, freeze: true}, {match: b, lr_scale: 2}]}",
        "{name: Adam, beta1: 0.5, lazy_mode: false, head: {name: LARS}}",
        "{name: LARS, epsilon: 0.1, freeze_norms: true, layer_decay: 0.7}",
    ],
)
def test_the_resolved_config_loads_to_the_same(tmp_path, override):
    cfg = load(None, [f"Optimizer={override}"])
    (tmp_path / "again.yaml").write_text(cfg.to_yaml())
    assert load(tmp_path / "again.yaml") == cfg


def test_the_keywords_of_a_class_are_those_that_are_written():
    cfg = load(None, ["Optimizer={name: RMSProp, rho: 0.9, momentum: 0.5, head: {name: Momentum}}"]).Optimizer
    assert cfg.keywords == {"rho": 0.9, "momentum": 0.5} and cfg.number("weight_decay") is None


def test_a_name_on_the_command_line_drops_the_keys_of_another(write):
    path = write("Optimizer: {momentum: 0.8, nesterov: true}")
    assert load(path, ["Optimizer.name=AdamW"]).Optimizer == OptimizerCfg(name="AdamW")
