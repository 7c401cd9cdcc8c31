"""Counting by hooks, against numbers worked out by hand."""

import paddle
import pytest
from paddle import nn

from plsc.backbones.count import count
from plsc.backbones.face_vit import FaceViT
from plsc.backbones.lenet import LeNet


def test_lenet_by_hand():
    macs = 26 * 26 * 20 * 9 + 9 * 9 * 50 * 20 * 25 + 800 * 128
    assert count(LeNet(), (1, 28, 28)) == (127_778, macs)


def test_a_grouped_convolution_and_a_batch_norm_by_hand():
    """Neither the running statistics nor the norm's multiplications count."""
    net = nn.Sequential(nn.Conv2D(6, 4, (3, 1), 2, (1, 0), groups=2, bias_attr=False), nn.BatchNorm2D(4))
    assert count(net, (6, 9, 8)) == (4 * 3 * 3 + 8, 5 * 4 * 4 * 9)


def test_a_layer_that_is_used_twice_counts_twice_and_is_there_once():
    layer = nn.Linear(5, 5)
    net = nn.Sequential(nn.Flatten(), layer, layer)
    assert count(net, (1, 1, 5)) == (30, 50)


def test_attention_by_hand():
    class Tiny(FaceViT):
        width, depth = 16, 2

    tokens, width = 6, 16
    block = tokens * width * (3 + 1 + 4 + 4) * width + 2 * tokens * tokens * width
    macs = tokens * width * 243 + 2 * block + tokens * width * width + width * 8
    assert count(Tiny(8, (3, 20, 29)), (3, 20, 29)).macs == macs


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    net = LeNet()
    net.train() if training else net.eval()
    count(net, (1, 28, 28))
    assert net.training == training and not any(layer._forward_post_hooks for layer in net.sublayers())
    assert net(paddle.zeros([1, 1, 28, 28])).shape == [1, 128]
