"""The backbones' layers. On CPUs they compute with oneDNN, see `plsc.backbones.layers.layout`."""

from plsc.backbones.layers.addresses import Addresses, Dropout, random_scores
from plsc.backbones.layers.convolution import Conv2D
from plsc.backbones.layers.layout import by_onednn, enter, in_bfloat16, leave
from plsc.backbones.layers.normalisation import normalise, normalise_beside
from plsc.backbones.layers.pointwise import AvgPool2D, ReLU

__all__ = [
    "Addresses",
    "AvgPool2D",
    "Conv2D",
    "Dropout",
    "ReLU",
    "by_onednn",
    "enter",
    "in_bfloat16",
    "leave",
    "normalise",
    "normalise_beside",
    "random_scores",
]
