"""On W ranks, each a machine with a disk of its own: train and save, or go on from what the disks have.

Arguments: a folder; "save", or the folders in it that a launch of so many ranks goes on from, a name each. The output folder of rank r is
FOLDER/NAME/r (of NAME-mixed r // 2: ranks 0 and 1 share a disk), its host is called node{r}.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import paddle

from plsc import Entry, distributed
from plsc.distributed.disks import find_disks
from plsc.errors import UserError
from plsc.training import local_disks
from plsc.training.local_disks import find_checkpoint
from plsc.training.rollback import go_back
from tests.distributed.run_pairs import END, STOP, overrides
from tests.tiny_runs import TINY, Linear, arrays, make_trainer, train

EMA = [
    "Global.ema={decay: 0.9}",
    "Checkpoint.every_steps=3",
    "Model.dropout=0",
]  # BatchNorm, and its averages


def disk(folder: Path, name: str) -> Path:
    ranks_of_a_disk = 2 if name.endswith("-mixed") else 1
    return folder / name / str(distributed.rank() // ranks_of_a_disk)


def save(folder: Path) -> None:
    ranks = distributed.world_size()
    stopped = [*overrides(ranks), f"Global.max_steps={STOP}"]
    tokens(folder)
    paddle.seed(0)
    train(folder / "undisturbed", *overrides(ranks), backbone=Linear())
    paddle.seed(0)
    train(disk(folder, "saved"), *stopped, backbone=Linear())
    paddle.seed(0)
    run(folder / "norm-undisturbed", [*norm(ranks), "Global.max_steps=6"])
    for steps in (1, 3):  # the second run sets the first one aside, on each disk
        run(disk(folder, "norm"), [*norm(ranks), f"Global.max_steps={steps}"])


def tokens(folder: Path) -> None:
    """Ranks 0 and 1 share a disk; rank 2 has its own; a folder that one rank cannot write is every rank's error."""
    rank = distributed.rank()
    assert find_disks(folder / "mixed" / str(rank // 2)).of_ranks == (0, 0, 2)
    (folder / "file").touch()
    try:
        find_disks(folder / "file" / "below" if rank == 1 else folder / "mixed")
        raise AssertionError("rank 1 cannot write there")
    except UserError as error:
        assert f"cannot write to {folder}/file/below on host node1" in str(error), error
    distributed.barrier()
    assert not list((folder / "mixed").rglob(".disk-*"))


def norm(ranks: int) -> list[str]:
    return [*EMA, f"DataLoader.Train.batch_size={12 // ranks}"]


def run(output: Path, overrides: list[str]) -> None:
    Entry(TINY, [f"Global.output_dir={output}", "Global.device=cpu", *overrides]).train()


def load(folder: Path, name: str) -> None:
    """Go on by the trainer alone; that the bank has what was saved, bit for bit, is asserted by every rank."""
    output, ranks = disk(folder, name), distributed.world_size()
    trainer = make_trainer(output, *overrides(ranks), backbone=Linear())
    assert trainer.disks.of_ranks == ((0, 0, 2) if name.endswith("-mixed") else tuple(range(ranks)))
    find = partial(find_checkpoint, output / "checkpoints", trainer.disks, trainer.head.shard)
    if name.endswith("-new"):
        assert_full_disk_ends_all(find)
    path = find()
    trainer.resume(path)
    saved, shard = arrays(folder / "together" / path.name), trainer.head.shard
    for array, rows in trainer.head.bank.state().items():
        assert rows.tobytes() == saved[f"head: {array}"][shard.start : shard.stop].tobytes(), array
    before = sorted(file.name for file in path.iterdir())
    last = train(output, *overrides(ranks), resume=path, backbone=Linear())
    if name.endswith("-back"):
        assert go_back(output / "checkpoints", END, -1, last.disks, last.head.shard) == path
        assert [path.name for path in path.parent.iterdir() if path.suffix] == [f"step-{END:08d}.bad"]
        assert go_back(output / "checkpoints", STOP, -1, last.disks, last.head.shard) is None
    print(f"rank {distributed.rank()} of {name} had {' '.join(before)}")


def assert_full_disk_ends_all(find: Callable) -> None:
    """Rank 2, which is to get files, cannot write one of them: all ranks end with that line, and can start again."""

    def write_nothing(path, parts):
        next(parts)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(local_disks, "write_synced", write_nothing):
        try:
            find()
            raise AssertionError("rank 2 has written nothing")
        except UserError as error:
            assert "host node2: " in str(error) and "No space left on device" in str(error), error


def resume(folder: Path, name: str) -> None:
    """Go on as a user does, from the newest; then from the best and from a path."""
    output = disk(folder, name)
    resumed = [*norm(distributed.world_size()), "Global.max_steps=6", "Global.resume=true"]
    try:
        run(output, resumed)
        run(output, [*resumed, "Global.checkpoint=best"])
        run(output, [*resumed, f"Global.checkpoint={output}/checkpoints/step-00000003"])
    except UserError as error:
        print(f"ERROR {error}")


if __name__ == "__main__":
    distributed.init("cpu", threads=1)
    socket.gethostname = f"node{distributed.rank()}".__str__
    at = Path(sys.argv[1])
    for word in sys.argv[2:]:
        {"save": save}.get(word, lambda at, word=word: (resume if "norm" in word else load)(at, word))(at)
