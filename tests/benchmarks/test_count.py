"""Counting a network's parameters and products, against numbers worked out by hand."""

from paddle import nn

from benchmarks.count import count
from plsc.backbones.face_vit import FaceViT
from plsc.backbones.lenet import LeNet


def test_lenet_by_hand():
    macs = 26 * 26 * 20 * 9 + 9 * 9 * 50 * 20 * 25 + 800 * 128
    assert count(LeNet(), (1, 28, 28)) == (127_778, macs)


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
