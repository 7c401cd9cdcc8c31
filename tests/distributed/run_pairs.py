"""On W ranks: train from nothing, or load the checkpoints of all world sizes and train on from each.

Arguments: a folder, and "save" or "load". Partial FC samples from 1003 classes, which AdamW updates. The 12
samples of a step stay the same: one rank takes three micro-batches of 4, two ranks 4 and 2 each, three ranks
4.
"""

import sys
from pathlib import Path

import numpy as np

from plsc import distributed
from tests.helpers.tiny_runs import (
    Linear,
    assert_takes_over,
    checkpoint,
    linear,
    make_trainer,
    rounded_run,
    train,
)

WORLD_SIZES = (1, 2, 3)
STOP, END = 5, 8  # steps. An epoch has 83


DATA = "{name: Synthetic, num_classes: 1003, images_per_class: 1, image_shape: [1, 12, 10]}"
OVERRIDES = [
    f"DataLoader.Train={{dataset: {DATA}, batch_size: 4, global_batch: 12}}",
    "DataLoader.Eval.dataset=null",
    "Head.sample_rate=0.3",
    "Optimizer={head: {name: AdamW}, head_lr_scale: 0.02}",
    f"Global.max_steps={END}",
    f"Checkpoint.every_steps={STOP}",
]


def save(folder: Path, ranks: int) -> None:
    train(folder / str(ranks), *OVERRIDES, backbone=linear())


def loss_bound(folder: Path) -> np.ndarray:
    """Return by how much rounding alone may change the loss of each step."""
    _, (bound, _) = rounded_run(folder, lambda output, net: train(output, *OVERRIDES, backbone=net), linear())
    return bound["loss"]


def load(folder: Path, ranks: int) -> None:
    for saved_by in WORLD_SIZES:
        path = checkpoint(folder / str(saved_by), STOP)
        assert_takes_over(make_trainer(folder / "nothing", *OVERRIDES, backbone=Linear()), path)
        train(folder / f"{saved_by}-{ranks}", *OVERRIDES, resume=path, backbone=Linear())


if __name__ == "__main__":
    distributed.init("cpu", threads=1)
    {"save": save, "load": load}[sys.argv[2]](Path(sys.argv[1]), distributed.world_size())
