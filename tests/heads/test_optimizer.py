"""Optimizers for the class centres: whole heads against dense float64. tests/distributed/run_head.py does it
on several ranks. Paddle's own follow the same formulas: tests/training/test_optimizers.py."""

import paddle
import pytest

from plsc.errors import UserError
from plsc.heads.optimizer import LARS, Momentum, Update, check_rule
from tests.heads.cases import optimizer_cases, rounding
from tests.heads.errors import OPTIMIZERS, D, Own, head_errors
from tests.helpers.bounds import EPS


def test_ten_steps_equal_the_dense_reference(tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.heads.banks.bank.UPDATE_ROWS", 20)
    monkeypatch.setattr("plsc.heads.banks.bank._DEVICE_NUMBERS", 20 * D)
    sampled = 0
    for case in optimizer_cases([9], str(tmp_path)):
        errors, bounds = head_errors(**case), rounding(**case)
        sampled += "bytes of rows that were not sampled" in errors
        for key, error in errors.items():
            assert error <= bounds.get(key, 0), (case, key, error, bounds)
    assert sampled == 15


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


def test_a_rule_with_another_update_than_its_base_has_no_kernel():
    assert Momentum.kernel and type("Mine", (Momentum,), {"update_rows": Own.update_rows}).kernel is None
