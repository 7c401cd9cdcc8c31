"""A block of classes: how large it may be, its logits and its gradients."""

import numpy as np
import paddle
import pytest

from plsc.heads.blocks import Rows, plan_blocks
from tests.heads.autograd import D, assert_equal_to_dense, head_of, samples
from tests.heads.ways import without_kernels
from tests.helpers.bounds import assert_within, perturbed


@without_kernels
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
    x = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32")
    grad = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32")
    rows = Rows(x, cosine=True)

    def by_autograd(x, grad):
        x = paddle.to_tensor(x, stop_gradient=False)
        (x / paddle.norm(x, axis=1, keepdim=True) * paddle.to_tensor(grad)).sum().backward()
        return [x.grad.numpy(), np.ones(5)]

    lengths = np.linalg.norm(rows.values.numpy().astype(np.float64), axis=1)
    with paddle.no_grad():
        found = [rows.gradient(grad).numpy(), lengths]
    assert_within(found, *perturbed(by_autograd, x.numpy(), grad.numpy(), terms=7))


def test_a_zero_row_stays_zero_and_gets_no_gradient():
    rows = Rows(paddle.zeros([1, 3]), cosine=True)
    with paddle.no_grad():
        gradient = rows.gradient(paddle.ones([1, 3]))
    assert not rows.values.numpy().any() and not gradient.numpy().any()


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("sub_centres", [2, 3])
def test_sub_centres(kind, sub_centres):
    head = head_of(kind, sub_centres=sub_centres)
    assert head.bank.state()["centres"].shape == (37, sub_centres * D)
    assert_equal_to_dense(kind, head, *samples(), sub_centres=sub_centres)
