"""On W ranks, each a machine with a disk of its own: train and save, or go on from what the disks have.

Arguments: a folder; "save", or the folders in it that a launch of so many ranks goes on from, a name each. The output folder of rank r is
FOLDER/NAME/r, its host is called node{r}.
"""

import socket
import sys
from pathlib import Path

import paddle

from plsc import Entry, distributed
from plsc.errors import UserError
from plsc.training.local_disks import find_checkpoint
from tests.distributed.run_pairs import STOP, overrides
from tests.tiny_runs import TINY, Linear, arrays, make_trainer, train

EMA = [
    "Global.ema={decay: 0.9}",
    "Checkpoint.every_steps=3",
    "Model.dropout=0",
]  # BatchNorm, and its averages


def disk(folder: Path, name: str) -> Path:
    return folder / name / str(distributed.rank())


def save(folder: Path) -> None:
    ranks = distributed.world_size()
    stopped = [*overrides(ranks), f"Global.max_steps={STOP}"]
    paddle.seed(0)
    train(folder / "undisturbed", *overrides(ranks), backbone=Linear())
    paddle.seed(0)
    train(disk(folder, "saved"), *stopped, backbone=Linear())
    paddle.seed(0)
    run(folder / "norm-undisturbed", [*norm(ranks), "Global.max_steps=6"])
    run(disk(folder, "norm"), [*norm(ranks), "Global.max_steps=3"])


def norm(ranks: int) -> list[str]:
    return [*EMA, f"DataLoader.Train.batch_size={12 // ranks}"]


def run(output: Path, overrides: list[str]) -> None:
    Entry(TINY, [f"Global.output_dir={output}", "Global.device=cpu", *overrides]).train()


def load(folder: Path, name: str) -> None:
    """Go on by the trainer alone; that the bank has what was saved, bit for bit, is asserted by every rank."""
    output, ranks = disk(folder, name), distributed.world_size()
    trainer = make_trainer(output, *overrides(ranks), backbone=Linear())
    assert trainer.disks.of_ranks == tuple(range(ranks))
    path = find_checkpoint(output / "checkpoints", trainer.disks, trainer.head.shard)
    trainer.resume(path)
    saved, shard = arrays(folder / "together" / path.name), trainer.head.shard
    for array, rows in trainer.head.bank.state().items():
        assert rows.tobytes() == saved[f"head: {array}"][shard.start : shard.stop].tobytes(), array
    before = sorted(file.name for file in path.iterdir())
    train(output, *overrides(ranks), resume=path, backbone=Linear())
    print(f"rank {distributed.rank()} of {name} had {' '.join(before)}")


def refused(folder: Path, name: str) -> None:
    try:
        run(disk(folder, name), [*norm(distributed.world_size()), "Global.max_steps=6", "Global.resume=true"])
    except UserError as error:
        print(f"ERROR {error}")


if __name__ == "__main__":
    distributed.init("cpu", threads=1)
    socket.gethostname = f"node{distributed.rank()}".__str__
    at = Path(sys.argv[1])
    for word in sys.argv[2:]:
        {"save": save}.get(word, lambda at, word=word: (refused if "norm" in word else load)(at, word))(at)
