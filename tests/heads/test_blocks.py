"""A block of classes: how large it may be, its logits and its gradients."""

import numpy as np
import paddle
import pytest

from plsc.cli.selftest.parts import relative
from plsc.heads import blocks
from plsc.heads.blocks import (
    bytes_per_class,
    plan_blocks,
    rounded_left,
    unit_rows,
    unit_rows_gradient,
)
from tests.heads.autograd import D, assert_equal_to_dense, head_of, samples
from tests.heads.ways import without_kernels
from tests.helpers.bounds import assert_within, perturbed, sums


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


@without_kernels
def test_rounded_products_take_more_of_the_budget():
    plain, rounded = (bytes_per_class(256, 512, 2, dtype) for dtype in ("float32", "float16"))
    assert rounded - plain == 4 * (2 * 256 * 2 + 2 * 512)
    assert plan_blocks(256, 10_000, 512, 2, 8 << 20, "float16") == (8 * 2**20 // rounded, False)


def product(a, b, dtype, transpose_a=False, transpose_b=False):
    left = rounded_left(a, dtype, 0 if transpose_a else 1)
    return blocks.product(left, blocks.rounded(b, dtype), transpose_a, transpose_b)


def rounded(x, dtype):
    return paddle.to_tensor(x, dtype="float32").astype(dtype).astype("float32").numpy().astype(np.float64)


@without_kernels
@pytest.mark.parametrize("transpose_a,transpose_b", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_product_is_that_of_the_rounded_numbers(dtype, transpose_a, transpose_b):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 40)), rng.standard_normal((40, 7))
    given_a, given_b = a.T if transpose_a else a, b.T if transpose_b else b
    got = product(
        *(paddle.to_tensor(x, "float32") for x in (given_a, given_b)), dtype, transpose_a, transpose_b
    )
    assert got.dtype == paddle.float32
    factors = rounded(a, dtype), rounded(b, dtype)
    want = np.matmul(*factors)
    assert_within(got.numpy(), want, sums(np.matmul, *factors))
    assert dtype == "float32" or relative(want, a @ b) > 1e-4


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1e12])
def test_float16_multiplies_numbers_beyond_its_range(size):
    """Probabilities of a million classes, or logits without a margin: float16 alone would have 0 or inf."""
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.1, 1.0, (6, 4096)) * size
    probability[:, 0] = 1e3 * size  # the target's
    x = rng.standard_normal((4096, 5)) * 1e7
    for a, b in ((probability, x), (probability.T, probability)):
        tensors = paddle.to_tensor(a.T, "float32"), paddle.to_tensor(b, "float32")
        # Paddle 2.6 cuts the digits off on a CPU, which makes up to 2^-10 for either factor.
        bound = 2.01 * 2**-10 * np.abs(a) @ np.abs(b) + sums(np.matmul, a, b)
        assert_within(product(*tensors, "float16", True).numpy(), a @ b, bound)


@pytest.mark.usefixtures("without_views")
def test_float16_needs_no_views():
    test_float16_multiplies_numbers_beyond_its_range(1e12)
    test_float16_keeps_zeros_and_what_is_not_finite()


def test_float16_keeps_zeros_and_what_is_not_finite():
    a, b = paddle.ones([2, 3]), paddle.ones([3, 2])
    assert (
        not product(a * 0.0, b, "float16").numpy().any() and not product(a, b * 0.0, "float16").numpy().any()
    )
    for bad in (float("nan"), float("inf")):
        assert not np.isfinite(product(a * bad, b, "float16").numpy()).any()
        assert not np.isfinite(product(a, b * bad, "float16").numpy()).any()


def test_the_gradient_of_unit_rows_is_autograds():
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32")
    grad = paddle.to_tensor(rng.standard_normal((5, 7)), dtype="float32")
    unit, scale = unit_rows(x)

    def by_autograd(x, grad):
        x = paddle.to_tensor(x, stop_gradient=False)
        (x / paddle.norm(x, axis=1, keepdim=True) * paddle.to_tensor(grad)).sum().backward()
        return [x.grad.numpy(), np.ones(5)]

    found = [
        unit_rows_gradient(grad, unit, scale).numpy(),
        np.linalg.norm(unit.numpy().astype(np.float64), axis=1),
    ]
    assert_within(found, *perturbed(by_autograd, x.numpy(), grad.numpy(), terms=7))


def test_a_zero_row_stays_zero_and_gets_no_gradient():
    unit, scale = unit_rows(paddle.zeros([1, 3]))
    assert not unit.numpy().any() and not unit_rows_gradient(paddle.ones([1, 3]), unit, scale).numpy().any()


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("sub_centres", [2, 3])
def test_sub_centres(kind, sub_centres):
    head = head_of(kind, sub_centres=sub_centres)
    assert head.bank.state()["centres"].shape == (37, sub_centres * D)
    assert_equal_to_dense(kind, head, *samples(), sub_centres=sub_centres)
