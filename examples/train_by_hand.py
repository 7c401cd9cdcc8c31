"""Train a network and plsc's head with your own loop, without plsc's trainer.

    python examples/train_by_hand.py
    python -m paddle.distributed.launch --nproc_per_node 2 examples/train_by_hand.py --sample_rate 0.2

The data set contains pictures of 2,000 classes. Each class has a random pattern, and each picture adds noise
to it. The network and the loop use Paddle. The last layer is plsc's head, whose class centres are split over
the ranks. Rerun the command with more --steps to resume from the checkpoint, on any number of ranks.
"""

import argparse
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.saved import Checkpoint
from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.training.load_weights import load_rows
from plsc.utils.preprocessing import Preprocessing

CLASSES, IMAGES_PER_CLASS, SHAPE, EMBEDDING = 2000, 8, (1, 16, 16), 64
BATCH, RATE, MOMENTUM = 128, 0.1, 0.9  # BATCH counts the samples on all ranks


class Patterns(paddle.io.Dataset):
    """Pictures, float32 [1, 16, 16]. Picture `i` is the pattern of class `i % CLASSES` plus its own noise."""

    def __len__(self) -> int:
        return CLASSES * IMAGES_PER_CLASS

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        pattern = np.random.default_rng([0, index % CLASSES]).standard_normal(SHAPE, np.float32)
        noise = np.random.default_rng([1, index]).standard_normal(SHAPE, np.float32)
        return pattern + 0.5 * noise, index % CLASSES


def make_backbone() -> nn.Layer:
    """Build a network that computes embeddings [B, 64] from images [B, 1, 16, 16]."""
    paddle.seed(0)
    stem = [nn.Conv2D(1, 32, 3, 2, 1), nn.BatchNorm2D(32), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*stem, nn.Linear(32 * 8 * 8, EMBEDDING), nn.BatchNorm1D(EMBEDDING))


def save(folder: Path, step: int, backbone: nn.Layer, head) -> None:
    """Write a checkpoint. Every rank writes its own classes' centres, and rank 0 writes the backbone.

    This example does not save the backbone's momentum. plsc.training.optim shows how to name and save it.
    """
    weights = {name: tensor.numpy() for name, tensor in backbone.state_dict().items()}
    content = store.Content(
        step=step,
        epoch=step * BATCH // len(Patterns()),
        states={"backbone": {"arrays": weights}, "head": head.state_dict()},
        rows=head.bank.state(),
        num_classes=CLASSES,
        shard=(head.shard.start, head.shard.stop),
        config={},
        preprocessing=Preprocessing(SHAPE),
    )
    store.save(folder, content, distributed.rank(), distributed.gather_objects)


def resume(folder: Path, backbone: nn.Layer, head) -> int:
    """Load the newest checkpoint in `folder` and return its step, or 0 if there is no checkpoint.

    Any number of ranks may have written the checkpoint.
    """
    if (path := store.find(folder)) is None:
        return 0
    saved = Checkpoint.open(path)
    backbone.set_state_dict({name: paddle.to_tensor(array) for name, array in saved.weights().items()})
    load_rows(head, saved)  # this rank's classes
    head.load_state_dict(saved.state_dict("head"))
    return saved.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sample_rate", type=float, default=1.0, help="share of the classes in a step")
    parser.add_argument("--output", type=Path, default=Path("output/by_hand"))
    args = parser.parse_args()

    distributed.init("cpu")
    backbone = make_backbone()
    head = make_head(
        CLASSES, EMBEDDING, CosFace(0.2), scale=32.0, sample_rate=args.sample_rate, rule=Momentum(MOMENTUM)
    )
    step = resume(args.output, backbone, head)
    if step >= args.steps:
        print(f"{args.output} has step {step} already; give more --steps")
        return
    parallel, average_gradients = distributed.data_parallel(backbone)  # gives all ranks the same weights
    optimizer = paddle.optimizer.Momentum(RATE, MOMENTUM, backbone.parameters())
    sampler = paddle.io.DistributedBatchSampler(
        Patterns(), BATCH // distributed.world_size(), shuffle=True, drop_last=True
    )
    loader = paddle.io.DataLoader(Patterns(), batch_sampler=sampler)
    while step < args.steps:
        sampler.set_epoch(step // len(loader))  # a resumed run repeats its last, unfinished epoch
        for images, labels in loader:
            out = head(parallel(images), labels, step)  # the loss over all ranks' samples
            out.loss.backward()  # computes the gradients of the embeddings, the network and the centres
            average_gradients()  # averages the network's gradients over the ranks
            optimizer.step()
            optimizer.clear_grad()
            head.update(RATE, step)  # updates the centres that took part in this step
            step += 1
            if step % 20 == 0 and distributed.rank() == 0:
                print(
                    f"step {step} loss {out.loss.item():.3f} accuracy {out.accuracy.item():.3f}", flush=True
                )
            if step == args.steps:
                break
    save(args.output, step, backbone, head)


if __name__ == "__main__":
    main()
