"""Layers of the backbones, which on CPUs compute by oneDNN; see `plsc.backbones.layers.layout`."""

from plsc.backbones.layers.addresses import Addresses, Dropout, random_scores
from plsc.backbones.layers.convolution import Conv2D
from plsc.backbones.layers.layout import by_onednn, enter, leave
from plsc.backbones.layers.normalisation import normalise

__all__ = ["Addresses", "Conv2D", "Dropout", "by_onednn", "enter", "leave", "normalise", "random_scores"]
