"""The backbones' layers.

On CPUs, most compute with oneDNN or plsc's compiled kernels if `by_cpu_kernels` returns True. The docstring
of layout.py describes the exceptions.
"""

from plsc.backbones.layers.addresses import Addresses, Dropout, random_scores
from plsc.backbones.layers.convolution import Conv2D
from plsc.backbones.layers.layout import by_cpu_kernels, enter, in_bfloat16, leave
from plsc.backbones.layers.normalisation import normalise, normalise_beside
from plsc.backbones.layers.pointwise import AvgPool2D, ReLU

__all__ = [
    "Addresses",
    "AvgPool2D",
    "Conv2D",
    "Dropout",
    "ReLU",
    "by_cpu_kernels",
    "enter",
    "in_bfloat16",
    "leave",
    "normalise",
    "normalise_beside",
    "random_scores",
]
