"""On W ranks: steps with accumulated batches and with recomputed layers, for a comparison with whole batches.

Argument: a folder for the runs.
"""

import sys
from pathlib import Path

import paddle

from plsc import distributed as d
from plsc.backbones.small_resnet import SmallResNet
from tests.helpers.tiny_runs import IMAGE_SHAPE, train
from tests.training.test_network import Dropping

HEADS = {"full": [], "sampled": ["Head.sample_rate=0.3"]}


def run(folder: Path, net: paddle.nn.Layer, accumulate: int, *overrides: str) -> None:
    """Steps with 24 samples, beyond the end of an epoch, whose last step has 19."""
    batch = 24 // accumulate // d.world_size()
    keys = [f"DataLoader.Train.batch_size={batch}", "DataLoader.Train.global_batch=24"]
    keys += ["DataLoader.Eval.dataset=null", "Global.max_steps=7", "Checkpoint.every_steps=99", *overrides]
    # At a high rate, or with short centres, differences of rounding would grow in a few steps.
    keys += ["LRScheduler.learning_rate=0.01", "Head.init_std=1"]
    train(folder, *keys, backbone=net)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    d.init("cpu", threads=1)
    for accumulate in (1, 4):
        for name, head in HEADS.items():
            paddle.seed(0)
            run(folder / f"{name}-{accumulate}", Dropping(), accumulate, *head)
    for accumulate in (1, 2):
        for recompute in ("false", "[stages, embed]"):
            paddle.seed(0)
            net = SmallResNet(8, IMAGE_SHAPE, [4, 6], [0, 1], dropout=0.2)
            output = folder / f"norm-{accumulate}-{recompute != 'false'}"
            run(output, net, accumulate, f"Model.recompute={recompute}")
    print(f"rank {d.rank()} of {d.world_size()}: accumulation ok")
