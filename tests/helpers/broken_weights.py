"""A training in which a weight, running statistics or a class centre of one rank become NaN after a step."""

from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from plsc import distributed
from plsc.training.part import Part
from plsc.training.trainer import Trainer
from tests.helpers.tiny_runs import IMAGE_SHAPE, NO_PAIRS, make_trainer

# What becomes NaN -> what the line that ends the run contains.
PLACES = {
    "conv.weight": "conv.weight of the backbone, on rank {rank}, is not finite",  # hidden by ReLU and pooling
    "norm.weight": "norm.weight of the backbone, on rank {rank}, is not finite",
    "prelu._weight": "prelu._weight of the backbone, on rank {rank}, is not finite",
    "norm._mean": "norm._mean of the backbone, on rank {rank}, is not finite",  # no step of training reads it
    "norm._variance": "norm._variance of the backbone, on rank {rank}, is not finite",
    "centres": ", on rank {rank}, is not finite",  # after "the centre of class"
}


class Hiding(nn.Layer):
    """Its ReLU and its pooling turn a NaN of the first layers into numbers whose gradient is 0."""

    def __init__(self, embedding_size: int = 8, image_shape: tuple[int, int, int] = IMAGE_SHAPE):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(image_shape[0], 4, 3, padding=1), nn.BatchNorm2D(4)
        self.relu, self.pool, self.prelu = nn.ReLU(), nn.MaxPool2D(2), nn.PReLU(4)
        self.linear = nn.Linear(4 * (image_shape[1] // 2) * (image_shape[2] // 2), embedding_size)

    def forward(self, images):
        return self.linear(self.prelu(self.pool(self.relu(self.norm(self.conv(images))))).flatten(1))


class Break(Part):
    """Makes a number NaN after step 2 on one rank."""

    name = "break"

    def __init__(self, place: str, rank: int = 0):  # "": nothing
        self.place, self.rank = place, rank

    def update(self, run: Trainer) -> None:
        if run.step != 1 or distributed.rank() != self.rank or not self.place:
            return
        if self.place == "centres":
            bank, rows = run.head.bank, {}
            for name, array in bank.state().items():
                rows[name] = np.array(array[:])
            half = rows["centres"].dtype == np.uint16  # the bits of bfloat16
            rows["centres"][0] = 0x7FC0 if half else np.nan
            bank.load_rows(0, rows)
        else:
            tensor = run.backbone.state_dict()[self.place]
            tensor.set_value(np.full(tensor.shape, np.nan, np.float32))


def broken(output: Path, place: str, rank: int = 0, *overrides: str) -> Trainer:
    """Make a trainer that meets it. Only its ranks' last line matters."""
    paddle.seed(0)
    trainer = make_trainer(output, NO_PAIRS, "Global.max_skipped=3", *overrides, backbone=Hiding())
    trainer.parts.append(Break(place, rank))
    return trainer
