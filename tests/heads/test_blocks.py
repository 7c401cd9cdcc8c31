"""A block of classes: how large it may be, its logits and its gradients."""

import pytest

from plsc.heads.blocks import plan_blocks
from tests.heads.autograd import D, assert_equal_to_dense, head_of, samples
from tests.heads.ways import without_kernels


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


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("sub_centres", [2, 3])
def test_sub_centres(kind, sub_centres):
    head = head_of(kind, sub_centres=sub_centres)
    assert head.bank.state()["centres"].shape == (37, sub_centres * D)
    assert_equal_to_dense(kind, head, *samples(), sub_centres=sub_centres)
