"""A network of fully connected layers, for samples that are vectors or other short arrays.

    samples [B, *shape] float32 -> [B, numbers of a sample] -> a layer for each width -> embeddings [B, D]

Each hidden layer is a linear one, BatchNorm, ReLU and dropout; the embedding is a linear layer and BatchNorm,
as in the networks for pictures. Single-device code; it knows no ranks. Try it: configs/vectors.yaml.
"""

from __future__ import annotations

import math

import paddle
from paddle import nn

from plsc.backbones.layers import Dropout
from plsc.utils.ranges import Share, Widths


class MLP(nn.Layer):
    """Computes embeddings of vectors by fully connected layers.

    Args:
        embedding_size: D.
        image_shape: the shape of a sample, of any number of axes; its numbers are taken as one vector.
        widths: outputs of each hidden layer; [] for a linear embedding.
        dropout: share of each hidden layer's numbers that is dropped in training.
    """

    any_shape = True  # of samples, not pictures alone

    def __init__(
        self,
        embedding_size: int = 128,
        image_shape: tuple[int, ...] = (512,),
        widths: Widths = (512,),
        dropout: Share = 0.0,
    ):
        super().__init__()
        inputs = math.prod(image_shape)
        layers: list[nn.Layer] = [nn.Flatten()]
        for outputs in widths:
            layers += [nn.Linear(inputs, outputs, bias_attr=False), nn.BatchNorm1D(outputs), nn.ReLU()]
            layers += [Dropout(dropout)]
            inputs = outputs
        layers += [nn.Linear(inputs, embedding_size, bias_attr=False), nn.BatchNorm1D(embedding_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, samples: paddle.Tensor) -> paddle.Tensor:
        return self.layers(samples)
