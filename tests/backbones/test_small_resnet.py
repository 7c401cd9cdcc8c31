"""SmallResNet: shapes for any picture, what its options change, and that every parameter learns."""

import numpy as np
import paddle
import pytest

from plsc.backbones.layers import enter, leave
from plsc.backbones.small_resnet import SmallResNet
from tests.helpers.refusals import refusal


def build(**options):
    paddle.seed(0)
    return SmallResNet(**{"embedding_size": 8, "widths": [4, 6], "blocks": [0, 1], **options})


@pytest.mark.parametrize("image_shape", [(1, 32, 32), (3, 16, 12), (1, 17, 23), (2, 1, 5)])
def test_any_picture_becomes_an_embedding(image_shape):
    net = build(image_shape=image_shape)
    embeddings = net(paddle.randn([3, *image_shape]))
    assert embeddings.shape == [3, 8] and embeddings.dtype == paddle.float32
    assert np.isfinite(embeddings.numpy()).all()


@pytest.mark.parametrize(
    "widths, blocks, side", [([4], [0], 16), ([4, 4], [2, 0], 8), ([4, 4, 5], [0, 0, 1], 4)]
)
def test_a_stage_halves_the_picture_and_has_its_blocks(widths, blocks, side):
    net = build(image_shape=(1, 32, 32), widths=widths, blocks=blocks)
    assert leave(net.stages(enter(paddle.randn([2, 1, 32, 32])))).shape == [2, widths[-1], side, side]
    kernels = [parameter for parameter in net.parameters() if parameter.ndim == 4]
    assert len(kernels) == len(widths) + 2 * sum(blocks)


@pytest.mark.parametrize("blocks", [[1], [0, 1, 1]])
def test_as_many_blocks_as_widths(blocks):
    assert refusal(build, widths=[4, 6], blocks=blocks) == (
        f"Model.blocks: must have one number per stage, like Model.widths with its 2 (got {blocks})"
    )
