"""On W ranks: the last one has another config, other pictures, another program or another folder."""

import re
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np

from plsc import distributed
from plsc.config import load
from plsc.data.synthetic import Synthetic
from plsc.errors import UserError
from plsc.training import agreement, build, init_from, run
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import NO_PAIRS, TINY, Linear


class OtherPictures(Synthetic):
    """Synthetic pictures. The last rank has other ones."""

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return super().sample(index, epoch) + np.uint8(1 if last else 0)


class Fails(Synthetic):
    """Synthetic pictures that the last rank cannot make."""

    def __init__(self, **options):
        super().__init__(**options)
        if last:
            raise ValueError("no camera")


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


def refused(where, *overrides, model=None):
    return refusal(run.train, load(TINY, [f"Global.output_dir={folder / where}", *BASE, *overrides]), model)


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

# One machine's kernels are off, its module differs, or its script has made another network.
built = agreement.native.build
agreement.native.build = lambda: "none" if last else built()
assert_refused(refused("a"), "plsc's kernels:", "(has|have) none;")
agreement.native.build = built
if distributed.rank() == 0:
    for rank in range(distributed.world_size()):
        (folder / f"own{rank}").mkdir()
        (folder / f"own{rank}/own_helper.py").write_text(f"LAST = {rank == distributed.world_size() - 1}\n")
distributed.barrier()
sys.path.insert(0, str(folder / f"own{distributed.rank()}"))
import own_helper

assert own_helper.LAST == last
assert_refused(refused("a"), "the source of own_helper:", "(has|have) .{8}, rank")
del sys.modules["own_helper"]
assert_refused(refused("a", model=Linear(8 if not last else 9)), "the network:", "(has|have) 2 arrays")

# What fails on one machine ends all. What fails on all keeps its type.
fails = ["DataLoader.Train.dataset={name: 'run_agreement:Fails', image_shape: [1, 12, 10]}"]
line = refused("a", *fails)
assert re.search(r": rank \d: run_agreement:Fails: ValueError in __init__, .*: no camera$", line), line
assert len(set(distributed.gather_objects(line))) == 1


def no_memory(*args, **options):
    raise MemoryError("of no use")


build_trainer = build.build_trainer
build.build_trainer = no_memory if last else build_trainer
line = refused("a")
assert re.fullmatch(r"rank \d: MemoryError in no_memory, .*run_agreement.py:\d+: of no use", line), line
build.build_trainer = no_memory
try:
    refused("a")
except MemoryError as error:
    assert str(error) == "of no use"
else:
    raise AssertionError
build.build_trainer = build_trainer

# Folders of images may lie elsewhere, also if numbers name the people. A picture's other name differs.
people = folder / f"machine{distributed.rank()}/people"
for number in range(24):
    (people / f"{number // 12:03d}").mkdir(parents=True, exist_ok=True)
    picture = people / f"{number // 12:03d}/{number:02d}.png"
    cv2.imwrite(str(picture), np.full((12, 10), 10 * number, np.uint8))
images = [f"DataLoader.Train.dataset={{name: ImageFolder, folder: {people}, size: [12, 10], channels: grey}}"]
assert run.train(load(TINY, [f"Global.output_dir={folder / 'images'}", *BASE, *images]))["output_dir"]
if last:
    picture.rename(people / "001/99.png")
line = refused("image2", *images)
assert_refused(line, "the names of the images of DataLoader.Train:", "(has|have) .{8}, rank")

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
assert_refused(
    refused("c", start), "the checkpoint step-00000002:", r"(has|have) \d files \(.{8}, .{8}\), rank"
)
Path.read_bytes = exists
mine = folder / f"copy{distributed.rank()}"
shutil.copytree(folder / "first", mine / "first")
if last:
    next((mine / "first/checkpoints/step-00000002").glob("head*")).unlink()
line = refused("c", f"Global.init_from={mine / 'first'}")
assert_refused(line, "the checkpoint step-00000002:", r"(has|have) \d files")


def unreadable(*args):
    raise UserError("cannot be read")


load_backbone = init_from.load_backbone
init_from.load_backbone = unreadable if last else load_backbone
assert set(distributed.gather_objects(refused("c", start))) == {"cannot be read"}
init_from.load_backbone = load_backbone
assert not list(folder.glob("*/.start-*"))
print(f"rank {distributed.rank()}: agreement ok")
