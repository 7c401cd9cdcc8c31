"""Optimizers of the class centres: whole heads against dense float64 (on several ranks:
tests/distributed/run_head.py), and single arrays against Paddle's own optimizers."""

import numpy as np
import paddle
import pytest

from plsc.errors import UserError
from plsc.heads.banks.device import DeviceBank
from plsc.heads.optimizer import LARS, Update, check_rule
from plsc.utils.sharding import ClassShard
from tests.heads.cases import optimizer_cases, rounding
from tests.heads.errors import OPTIMIZERS, Own, head_errors
from tests.helpers.bounds import EPS, assert_within, perturbed


def test_ten_steps_equal_the_dense_reference(tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.heads.banks.bank.UPDATE_ROWS", 20)
    sampled = 0
    for case in optimizer_cases([9], str(tmp_path)):
        errors, bounds = head_errors(**case), rounding(**case)
        sampled += "bytes of rows that were not sampled" in errors
        for key, error in errors.items():
            assert error <= bounds.get(key, 0), (case, key, error, bounds)
    assert sampled == 15


@pytest.mark.parametrize("optimizer", ["Nesterov", "AdamW"])
def test_it_is_the_optimizer_of_paddle(optimizer):
    rule, dense = OPTIMIZERS[optimizer]
    bank = DeviceBank(ClassShard.whole(7), 5, bias=False, rule=rule, std=1.0, seed=0)
    parameter = paddle.create_parameter([7, 5], "float32")
    parameter.set_value(bank.state()["centres"].copy())
    made = {
        "Nesterov": lambda of: paddle.optimizer.Momentum(0.1, 0.9, of, True, weight_decay=5e-4),
        "AdamW": lambda of: paddle.optimizer.AdamW(0.1, 0.9, 0.999, 1e-8, of, weight_decay=0.1),
    }[optimizer]([parameter])
    grads = list(np.random.default_rng(0).standard_normal((5, 7, 5)).astype(np.float32))

    def updates(value, *grads):
        moments = [np.zeros_like(value) for _ in rule.moments]
        for number, grad in enumerate(grads, 1):
            value, *moments = dense.step(value, grad, *moments, 0.1, number, dense.decay)
        return value

    want, bound = perturbed(updates, parameter.numpy(), *grads, terms=1)
    for grad in map(paddle.to_tensor, grads):
        bank.set_gradient("centres", 0, 7, grad)
        bank.update(0.1)
        (parameter * grad).sum().backward()
        made.step()
        made.clear_grad()
    assert_within(bank.state()["centres"], want, bound)
    # Paddle keeps beta2**t in float32: 1 - beta2**t, 0.001 t, is off by up to EPS / 2 each t; five steps of
    # up to 0.1 by its root.
    of_power = 5 * 0.1 * EPS / 2 / 0.001 / 2 if optimizer == "AdamW" else 0
    assert_within(parameter.numpy(), want, bound + of_power)


def test_lars_without_decay_or_of_zeros_has_the_plain_rate():
    """As Paddle's."""
    for rule, norms, name in [
        (LARS(0.9, 0.0, 0.001, 0.0), (3.0, 4.0), "centres"),
        (LARS(0.9, 0.1, 0.001, 0.0), (0.0, 4.0), "centres"),
        (LARS(0.9, 0.1, 0.001, 0.0), (3.0, 0.0), "centres"),
        (LARS(0.9, 0.1, 0.001, 0.0), (3.0, 4.0), "bias"),
    ]:
        value, velocity = paddle.ones([3]), paddle.zeros([3])
        rule.update_rows(name, value, [velocity], paddle.full([3], 2.0), Update(0.1, 1, norms))
        want = 0.1 * (2.0 + (rule.weight_decay if name == "centres" else 0.0))
        assert velocity.numpy() == pytest.approx([want] * 3, rel=4 * EPS)
        assert value.numpy() == pytest.approx([1 - want] * 3, rel=4 * EPS)


def test_a_rule_that_changes_no_row_is_refused():
    class Idle(Own):
        def update_rows(self, name, value, moments, grad, update):
            value = value - update.lr * grad

    for rule, _ in OPTIMIZERS.values():
        check_rule(rule)
    with pytest.raises(UserError, match="^Optimizer.head.name: Idle changes no row; write into `value`"):
        check_rule(Idle())
