"""A block of classes: how large it may be, its logits and its gradients."""

import numpy as np
import paddle
import pytest

from plsc.cli.commands.selftest.parts import relative
from plsc.heads.blocks import plan_blocks, unit_rows, unit_rows_gradient
from tests.heads.autograd import D, assert_equal_to_dense, head_of, samples


@pytest.mark.parametrize(
    "num_samples,size,width,budget",
    [(256, 100_000, 512, 64 << 20), (256, 10_000, 128, 64 << 20), (8, 3, 16, 1)],
)
def test_plan_stays_within_the_budget(num_samples, size, width, budget):
    block, keep = plan_blocks(num_samples, size, width, 1, budget)
    assert 1 <= block <= size
    need = 4 * block * (3 * num_samples + 4 * width) + keep * 4 * num_samples * size
    assert need <= budget or block == 1  # less than one class at a time does not go


def test_the_gradient_of_unit_rows_is_autograds():
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32", stop_gradient=False)
    grad = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32")
    unit, scale = unit_rows(x.detach())
    (x / paddle.norm(x, axis=1, keepdim=True) * grad).sum().backward()
    assert relative(unit_rows_gradient(grad, unit, scale).numpy(), x.grad.numpy()) < 1e-6
    assert np.allclose(paddle.norm(unit, axis=1).numpy(), 1)


def test_a_zero_row_stays_zero_and_gets_no_gradient():
    unit, scale = unit_rows(paddle.zeros([1, 3]))
    assert not unit.numpy().any() and not unit_rows_gradient(paddle.ones([1, 3]), unit, scale).numpy().any()


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("sub_centres", [2, 3])
def test_sub_centres(kind, sub_centres):
    head = head_of(kind, sub_centres=sub_centres)
    assert head.bank.state()["centres"].shape == (37, sub_centres * D)
    assert_equal_to_dense(kind, head, *samples(), sub_centres=sub_centres)
