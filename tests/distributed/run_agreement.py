"""On W ranks: the last one has another config, other pictures, another program or another folder."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np

from plsc import distributed
from plsc.config import load
from plsc.data.synthetic import Synthetic
from plsc.training import agreement, run
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import NO_PAIRS, TINY


class OtherPictures(Synthetic):
    """Synthetic pictures. The last rank has other ones."""

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return super().sample(index, epoch) + np.uint8(1 if last else 0)


folder = Path(sys.argv[1])
sys.modules["run_agreement"] = sys.modules[__name__]
distributed.init("cpu", threads=1)
last = distributed.rank() == distributed.world_size() - 1
BASE = ["Global.max_steps=2", "DataLoader.Train.batch_size=6", NO_PAIRS]
OTHERS = {
    "LRScheduler.learning_rate=0.01": "LRScheduler.learning_rate",
    "Head.margin=0.4": "Head.margin",
    "Global.seed=5": "Global.seed",
    "DataLoader.Train.batch_size=4": "DataLoader.Train.batch_size",
    "DataLoader.Train.dataset.num_classes=22": "DataLoader.Train.dataset.num_classes",
    "Global.max_steps=1": "Global.max_steps",
    "Checkpoint.every_steps=3": "Checkpoint.every_steps",
    "Head.name=arcface": "Head.name",
}


def refused(where, *overrides):
    return refusal(run.train, load(TINY, [f"Global.output_dir={folder / where}", *BASE, *overrides]))


def assert_refused(line, what, values):
    assert line.startswith(f"the ranks differ in {what}") and "; start all ranks with the same" in line, line
    assert re.search(values, line), line
    assert len(set(distributed.gather_objects(line))) == 1  # on all ranks


if distributed.rank() == 0:
    (folder / "a").mkdir()
distributed.barrier()
for override, key in OTHERS.items():
    value = override.partition("=")[2]
    assert_refused(refused("a", *[override] * last), key, f"rank {distributed.world_size() - 1} has {value};")
pictures = ["DataLoader.Train.dataset={name: 'run_agreement:OtherPictures', image_shape: [1, 12, 10]}"]
assert_refused(
    refused("a", *pictures), "the pictures of DataLoader.Train, number 0 ", "(has|have) .{8}, rank"
)
assert_refused(refused("b" if last else "a"), "the folder Global.output_dir:", "has a folder of its own, ")

sources = agreement._sources
agreement._sources = lambda: [*sources(), Path(__file__)] if last else sources()
assert_refused(refused("a"), "plsc's sources:", "(has|have) .{8}, rank")
agreement._sources = sources

# What belongs to a machine may differ. Then a rank whose own folder has a checkpoint is refused.
own = ["Global.hang_seconds=60", "Global.threads=1"] * last
saved = run.train(load(TINY, [f"Global.output_dir={folder / 'a'}", *BASE, *own]))
assert saved["output_dir"]
if distributed.rank() == 0:
    shutil.copytree(folder / "a", folder / "b", dirs_exist_ok=True)
distributed.barrier()
more = ["Global.resume=true", "Global.max_steps=3"]
assert_refused(
    refused("b" if last else "a", *more), "the folder Global.output_dir", "has a folder of its own"
)
start = f"Global.init_from={folder / 'first'}"
if distributed.rank() == 0:
    (folder / "a").rename(folder / "first")
distributed.barrier()
exists = Path.read_bytes
Path.read_bytes = lambda path: exists(path) + (b" " if last and path.name == "manifest.json" else b"")
assert_refused(refused("c", start), "the checkpoint step-00000002:", "(has|have) manifest .{8}, rank")
Path.read_bytes = exists
assert not list(folder.glob("*/.start-*"))
print(f"rank {distributed.rank()}: agreement ok")
