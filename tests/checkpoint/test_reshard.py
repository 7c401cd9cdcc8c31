"""Checkpoints cut anew: the bytes that a training run of so many ranks would have written, and back again."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from plsc.checkpoint import reshard as reshard_module
from plsc.checkpoint.reshard import reshard
from plsc.checkpoint.store import Checkpoint
from plsc.errors import UserError
from plsc.utils.bfloat16 import nearest
from tests.helpers.checkpoints import Bits, assert_holds, content, flip, save_ranks


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(reshard_module, "BLOCK", 100)


@pytest.mark.parametrize("classes", [1003, 6])  # 6 < 8 ranks
def test_8_to_3_to_5_to_8_is_what_it_was_byte_for_byte(tmp_path, small_blocks, classes):
    everything = content(3, classes)
    names = [f"class {number}" for number in range(classes)]
    (first, *_) = save_ranks(tmp_path, 120, everything, 8, classes=names)
    saved = first
    for ranks in (3, 5, 8):
        saved = reshard(Checkpoint.open(saved), tmp_path / f"as-{ranks}", ranks)
        opened = Checkpoint.open(saved)
        assert opened.manifest.world_size == len(opened.manifest.heads) == ranks
        assert_holds(saved, everything)
        assert opened.classes() == names
    assert files(saved) == files(first)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_bytes_are_those_that_so_many_ranks_save(tmp_path, small_blocks, ranks):
    everything = content(0)
    (wide, *_) = save_ranks(tmp_path / "wide", 7, everything, 4)
    (wanted, *_) = save_ranks(tmp_path / "wanted", 7, everything, ranks)
    made = reshard(Checkpoint.open(wide), tmp_path / "made" / "step-00000007", ranks)
    assert files(made) == files(wanted)
    assert [path.name for path in made.parent.iterdir()] == ["step-00000007"]


def test_a_head_without_classes(tmp_path):
    (saved, *_) = save_ranks(tmp_path, 0, content(0, classes=0), 1)
    made = reshard(Checkpoint.open(saved), tmp_path / "two", 2)
    assert Checkpoint.open(made).head(0, 0)["centres"].shape == (0, 4)


def test_no_block_is_larger_than_it_may_be(tmp_path, small_blocks):
    (saved, *_) = save_ranks(tmp_path, 0, content(0, classes=50), 2)
    head, seen = reshard_module.head_of(Checkpoint.open(saved)), []

    def read(name, start, stop):
        seen.append((name, start, stop))
        return head.read(name, start, stop)

    blocks = list(reshard_module.rows_as_file(reshard_module.Head(head.arrays, read), 3, 47))
    assert max(map(len, blocks[1:])) <= 100 and len(seen) > 3
    for name in head.arrays:
        ranges = [(start, stop) for other, start, stop in seen if other == name]
        assert [start for start, _ in ranges] == [3, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == 47


def test_nothing_is_overwritten(tmp_path):
    (saved, *_) = save_ranks(tmp_path, 1, content(0), 2)
    before = files(saved)
    for name in ("step-00000001", "other.tmp"):
        (tmp_path / name).mkdir(exist_ok=True)
    for target, there in ((saved, saved), (tmp_path / "other", tmp_path / "other.tmp")):
        with pytest.raises(UserError) as raised:
            reshard(Checkpoint.open(saved), target, 3)
        assert str(raised.value) == (
            f"{there}: is there already, and nothing is overwritten; name another folder"
        )
    assert files(saved) == before


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    (saved, *_) = save_ranks(tmp_path / "a", 1, content(0), 2)
    opened = Checkpoint.open(saved)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x: cannot be written: Not a directory"):
        reshard(opened, tmp_path / "file" / "x", 3)

    original = reshard_module.write_synced

    def full(path, buffers):
        if path.name == "manifest.json":  # which comes last
            raise OSError(28, "No space left on device")
        return original(path, buffers)

    monkeypatch.setattr(reshard_module, "write_synced", full)
    with pytest.raises(UserError, match=r"b: cannot be written: No space left on device"):
        reshard(opened, tmp_path / "b", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


def test_a_disk_without_space_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    """11 classes of 4 + 4 float32 and a float64, 440 bytes; the files of the network; not the headers and the
    manifest."""
    (saved, *_) = save_ranks(tmp_path / "a", 1, content(0), 2)
    names = ("backbone.safetensors", "optimizer.safetensors")
    need = 440 + sum((saved / name).stat().st_size for name in names)
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, need - 1))
    with pytest.raises(UserError) as raised:
        reshard(Checkpoint.open(saved), tmp_path / "b", 3)
    numbers = f"need {need / 1e6:.3g} MB, free {(need - 1) / 1e6:.3g} MB"
    assert str(raised.value) == (
        f"{tmp_path}/b: no space for it ({numbers}); free some space, or name a target on another disk"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, need))
    reshard(Checkpoint.open(saved), tmp_path / "b", 3)


def test_what_became_shorter_since_is_said(tmp_path):
    (saved, *_) = save_ranks(tmp_path, 1, content(0), 2)
    opened = Checkpoint.open(saved)
    (saved / "head-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="became shorter while it was read"):
        reshard(opened, tmp_path / "b", 3)
    assert not (tmp_path / "b").exists() and not (tmp_path / "b.tmp").exists()


def test_the_manifest_says_what_is_there(tmp_path):
    (saved, *_) = save_ranks(tmp_path, 1, content(0), 2)
    made = reshard(Checkpoint.open(saved), tmp_path / "three", 3)
    old, new = (json.loads((path / "manifest.json").read_text()) for path in (saved, made))
    differ = {name for name in old if old[name] != new[name]}
    assert differ == {"crc32", "world_size", "heads", "files"}
    assert [(part["start"], part["stop"]) for part in new["heads"]] == [(0, 4), (4, 8), (8, 11)]
    flip(made / "head-00002-of-00003.safetensors")
    with pytest.raises(UserError, match=r"head-00002-of-00003.safetensors: fails its checksum"):
        Checkpoint.open(made)
    assert np.array_equal(Checkpoint.open(saved).rows("centres", 8, 11), content(0)["head"]["centres"][8:])


def test_bfloat16_stays_what_it_is(tmp_path, small_blocks):
    everything = content(0)
    centres = everything["head"]["centres"]
    everything["head"] = {name: Bits(nearest(centres)) for name in ("centres", "momentum")}
    (first, *_) = save_ranks(tmp_path, 120, everything, 1)
    assert Checkpoint.open(first).head_arrays["centres"].code == "BF16"
    cut = reshard(Checkpoint.open(first), tmp_path / "cut", 3)
    assert files(reshard(Checkpoint.open(cut), tmp_path / "back", 1)) == files(first)
