"""On W ranks: train from nothing, or go on from another run's checkpoint, with a global batch that is kept.

Arguments: a folder for the runs; the name of these; their last step; the name of those to go on from ("" for
none), and the step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle

from plsc import distributed
from plsc.backbones.layers import Dropout
from plsc.backbones.small_resnet import SmallResNet
from tests.helpers.tiny_runs import IMAGE_SHAPE, checkpoint, train

BATCH = 24  # the last step of an epoch, of five, has 19
KINDS = {
    "linear": ["DataLoader.Train.batch_size=8"],
    "norm": ["DataLoader.Train.batch_size=8"],
}
KEYS = [
    f"DataLoader.Train.global_batch={BATCH}",
    "DataLoader.Eval.dataset=null",
    "LRScheduler.learning_rate=0.01",
    "Head.sample_rate=0.3",
    "Checkpoint.every_steps=3",
    "Checkpoint.keep=9",
]


def net(kind: str) -> paddle.nn.Layer:
    paddle.seed(0)
    if kind == "linear":
        return paddle.nn.Sequential(paddle.nn.Flatten(), Dropout(0.2), paddle.nn.Linear(120, 8))
    return SmallResNet(8, IMAGE_SHAPE, [4, 6], [0, 1], dropout=0.2)


def run(output: Path, kind: str, last: int, resume: Path | None, backbone: paddle.nn.Layer) -> None:
    keys = [*KINDS[kind], *KEYS, f"Global.max_steps={last}"]
    train(output, *keys, resume=resume, backbone=backbone)


if __name__ == "__main__":
    distributed.init("cpu", threads=1)
    folder, name, last, before, step = sys.argv[1:]
    for kind in KINDS:
        start = checkpoint(Path(folder, f"{before}-{kind}"), int(step)) if before else None
        run(Path(folder, f"{name}-{kind}"), kind, int(last), start, net(kind))
