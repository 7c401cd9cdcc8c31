"""Checkpoints: what is written comes back at any world size, what goes wrong costs no whole one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import plsc.checkpoint.store
from plsc.checkpoint.evaluation import Evaluation, VerificationThreshold
from plsc.checkpoint.store import Checkpoint, SaveError, find, newest_step, prune, set_aside_after
from plsc.errors import MissingFileError
from plsc.utils.logging import setup_logging
from plsc.utils.sharding import split
from tests.helpers.checkpoints import (
    assert_holds,
    assert_same,
    content,
    flip,
    full_disk,
    reseal,
    save_one,
    save_ranks,
)
from tests.helpers.refusals import refusal


@pytest.mark.parametrize("world", [1, 5, 16])  # 16 ranks for 11 classes: some hold none
def test_round_trip(tmp_path, world):
    everything, names = content(3), [f"person {k} ä" for k in range(11)]
    results = save_ranks(tmp_path / "a" / "checkpoints", 120, everything, world, classes=names)
    path = tmp_path / "a" / "checkpoints" / "step-00000120"
    assert results == [path] * world
    heads = [f"head-{rank:05d}-of-{world:05d}.safetensors" for rank in range(world)]
    files = {"backbone.safetensors", "optimizer.safetensors", "classes.json", "manifest.json", *heads}
    assert {file.name for file in path.iterdir()} == files
    assert_holds(path, everything)
    checkpoint = Checkpoint.open(path, verify=False)
    assert checkpoint.classes() == names
    assert (checkpoint.step, checkpoint.row_width, checkpoint.manifest.world_size) == (120, 4, world)


@pytest.mark.parametrize("classes", [1003, 6])  # 6 < 8 ranks
def test_8_to_3_to_5_to_8_ranks_byte_for_byte(tmp_path, classes):
    first = content(0, classes)
    save_ranks(tmp_path, 1, first, 8)
    for step, world in ((2, 3), (3, 5), (4, 8)):
        before = Checkpoint.open(tmp_path / f"step-{step - 1:08d}")
        parts = [before.head(start, stop) for start, stop in split(classes, world)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in first["head"]}
        assert_same(joined, first["head"])
        save_ranks(tmp_path, step, {**first, "head": joined}, world)
    for file in (tmp_path / "step-00000001").glob("head-*"):
        assert file.read_bytes() == (tmp_path / "step-00000004" / file.name).read_bytes()


def test_any_range_of_classes_is_read(tmp_path):
    everything = content(0)
    save_ranks(tmp_path, 1, everything, 4)
    checkpoint = Checkpoint.open(tmp_path / "step-00000001")
    for start in range(12):
        for stop in range(start, 12):
            assert_same(
                checkpoint.head(start, stop), {n: a[start:stop] for n, a in everything["head"].items()}
            )


def test_a_replicated_head_is_written_once(tmp_path):
    everything = content(0)
    save_ranks(tmp_path, 1, everything, 3, shards=[(0, 11)] * 3)
    path = tmp_path / "step-00000001"
    assert [file.name for file in path.glob("head-*")] == ["head-00000-of-00001.safetensors"]
    assert_holds(path, everything)
    assert Checkpoint.open(path).manifest.world_size == 3


def test_one_class_on_two_ranks_is_not_taken_for_a_replicated_head(tmp_path):
    everything = content(0, classes=1)
    save_ranks(tmp_path, 1, everything, 2)
    path = tmp_path / "step-00000001"
    assert len(list(path.glob("head-*-of-00002.safetensors"))) == 2
    assert_holds(path, everything)


# --- find ---------------------------------------------------------------------------------------------------


def test_latest_is_the_newest_whole_one_and_bad_ones_are_kept_aside(tmp_path, capsys):
    setup_logging()
    assert find(tmp_path / "nothing", rename=True) is None
    paths = [save_one(tmp_path, step, content(step)) for step in (10, 9, 120, 100_000_000)]
    (tmp_path / "step-00000200.tmp").mkdir()
    (tmp_path / "step-notes").mkdir()
    assert find(tmp_path, rename=True) == paths[3] == tmp_path / "step-100000000"
    flip(paths[3] / "backbone.safetensors")
    (paths[2] / "head-00000-of-00001.safetensors").unlink()
    assert find(tmp_path) == paths[0]
    assert paths[3].exists() and paths[2].exists()
    capsys.readouterr()
    assert find(tmp_path, rename=True) == paths[0]
    messages = capsys.readouterr().out.splitlines()
    assert "WARNING checkpoint step-100000000 is unusable (" in messages[0]
    assert (
        "backbone.safetensors: fails its checksum); it was skipped and renamed to step-100000000.bad"
        in messages[0]
    )
    assert (
        "head-00000-of-00001.safetensors: does not exist); it was skipped and renamed to step-00000120.bad"
        in messages[1]
    )
    assert len(list((tmp_path / "step-100000000.bad").iterdir())) == 4
    assert (tmp_path / "step-00000200.tmp").exists()  # only a save removes it
    save_one(tmp_path, 130, content(0))
    assert not (tmp_path / "step-00000200.tmp").exists()
    assert (tmp_path / "step-notes").exists()


def test_one_that_is_only_skipped_is_not_called_renamed(tmp_path, capsys):
    setup_logging()
    aside = "checkpoints that a run has set aside have .bad in their names"
    flip(save_one(tmp_path, 1, content(1)) / "manifest.json")
    assert "no checkpoint is usable (the warnings above say why); " in refusal(find, tmp_path)
    said = capsys.readouterr().out
    assert "WARNING checkpoint step-00000001 is unusable (" in said and said.endswith("; it was skipped\n")
    assert f"usable (the warnings above say why; {aside}); " in refusal(find, tmp_path, rename=True)
    assert capsys.readouterr().out.endswith("; it was skipped and renamed to step-00000001.bad\n")
    assert f"no checkpoint is usable ({aside}); " in refusal(find, tmp_path)
    assert not capsys.readouterr().out


def test_a_bad_name_that_is_taken_is_numbered(tmp_path):
    save_one(tmp_path, 1, content(1))
    for name in ("bad", "bad2", "bad3"):
        flip(save_one(tmp_path, 2, content(2)) / "manifest.json")
        find(tmp_path, rename=True)
        assert (tmp_path / f"step-00000002.{name}").exists()


def test_one_that_is_deleted_while_it_is_read_is_skipped(tmp_path, monkeypatch):
    old, new = (save_one(tmp_path, step, content(step)) for step in (1, 2))
    opened = Checkpoint.open

    def delete_and_open(path):
        shutil.rmtree(new, ignore_errors=True)
        return opened(path)

    monkeypatch.setattr(Checkpoint, "open", delete_and_open)
    assert find(tmp_path, rename=True) == old


def test_all_bad_is_never_a_fresh_start(tmp_path):
    for step in (1, 2):
        flip(save_one(tmp_path, step, content(step)) / "manifest.json")
    for rename in (False, True, True, False):  # a supervisor starts it again and again
        said = refusal(find, tmp_path, rename=rename)
        assert "no checkpoint is usable " in said
        assert "; put a good copy back, or start a new run" in said


def test_the_later_ones_are_set_aside(tmp_path):
    paths = {step: save_one(tmp_path, step, content(0)) for step in (2, 4, 6, 8)}
    for _ in range(2):
        set_aside_after(tmp_path, 4)
        assert {path.name[12:] for path in tmp_path.iterdir()} == {"2", "4", "6.bad", "8.bad"} and paths
        assert find(tmp_path, rename=True) == paths[4]


def test_the_newest_step_is_reported_without_reading_anything(tmp_path):
    assert newest_step(tmp_path / "nothing") is None
    paths = {step: save_one(tmp_path, step, content(0)) for step in (2, 4, 6)}
    flip(paths[4] / "manifest.json")
    paths[6].rename(tmp_path / "step-00000006.bad")
    (tmp_path / "step-00000008.tmp").mkdir()
    assert newest_step(tmp_path) == 4


def test_another_format_stops_the_search_and_stays(tmp_path):
    save_one(tmp_path, 1, content(1))
    path = save_one(tmp_path, 2, content(2))
    reseal(path, lambda fields: fields.update(format=4))
    said = refusal(find, tmp_path, rename=True)
    assert "has format 4, this plsc reads format 8 only" in said and path.exists()


# --- death and full disks while saving ----------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process: nothing in plsc catches it."""


STEPS = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "rename"),
    (shutil, "rmtree"),
    (plsc.checkpoint.store, "write_synced"),
]


def killed_at_each_point(tmp_path, steps, act):
    """Yield folders with checkpoints from these steps. In each, `act` was killed at another point: before the
    first call of STEPS, after it, before the second one, and so on. In the last folder it was not killed."""
    for at in itertools.count():
        root, points = tmp_path / str(at), itertools.count()
        for step in steps:
            save_one(root, step, content(step))

        def point(points=points, at=at):
            if next(points) == at:
                raise Killed

        def wrap(original, point=point):
            def call(*args, **kwargs):
                point()
                result = original(*args, **kwargs)
                point()
                return result

            return call

        with contextlib.suppress(Killed), pytest.MonkeyPatch.context() as monkeypatch:
            for owner, name in STEPS:
                monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
            act(root)
        yield root
        if next(points) == at:
            return


def test_a_kill_at_any_point_of_a_save_costs_no_whole_checkpoint(tmp_path):
    newest = []
    for root in killed_at_each_point(tmp_path, [1], lambda root: save_one(root, 2, content(2))):
        found = find(root, rename=True)
        newest.append(int(found.name[5:]))
        assert_holds(found, content(newest[-1]))
        save_one(root, 3, content(3))
        assert {path.name for path in root.iterdir()} <= {"step-00000001", "step-00000002", "step-00000003"}
    assert newest == sorted(newest) and set(newest) == {1, 2} and len(newest) > 26


def test_a_kill_at_any_point_of_a_prune_leaves_no_half_checkpoint(tmp_path):
    roots = list(killed_at_each_point(tmp_path, [1, 2, 3], lambda root: prune(root, 1)))
    for root in roots:
        for path in root.glob("step-????????"):
            assert_holds(path, content(int(path.name[5:])))
        assert find(root, rename=True).name == "step-00000003"
    assert len(roots) > 6


@pytest.mark.parametrize("file", ["backbone", "head-00001", "manifest"])
def test_a_full_disk_on_one_rank_is_reported_on_every_rank_and_loses_nothing(tmp_path, file, step=2):
    save_ranks(tmp_path, 1, content(1), 2)
    with full_disk(file):
        results = save_ranks(tmp_path, step, content(2), 2)
    for result in results:
        assert isinstance(result, SaveError) and "\n" not in str(result)
        assert f"{tmp_path}: checkpoint of step {step} not written, earlier ones untouched" in str(result)
        rank = 1 if file == "head-00001" else 0
        assert f"rank {rank}: OSError: [Errno 28] No space left on device" in str(result) and file in str(
            result
        )
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert_holds(find(tmp_path, rename=True), content(1))
    save_ranks(tmp_path, step, content(2), 2)
    assert_holds(find(tmp_path, rename=True), content(2))


def evaluated(path, value, title="pairs", flip=False):
    """Write the evaluation of a checkpoint beside it."""
    threshold = VerificationThreshold(cosine=value, flip=flip)
    Evaluation(set=title, metric="accuracy", value=value, threshold=threshold).write(path)


def test_prune_keeps_the_newest_whole_ones_and_the_best(tmp_path):
    paths = {step: save_one(tmp_path, step, content(step)) for step in range(1, 8)}
    for step, value in {1: 0.5, 3: 0.9, 4: 0.9, 5: 0.8}.items():
        evaluated(paths[step], value)
    (paths[7] / "manifest.json").unlink()  # does not count as kept, is not deleted
    assert prune(tmp_path, 2) == [paths[step] for step in (1, 2, 4)]
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["3", "5", "6", "7"]
    assert prune(tmp_path, 2) == []
    assert_holds(find(tmp_path, rename=True), content(6))


def test_a_checkpoint_that_cannot_be_deleted_ends_nothing(tmp_path, monkeypatch):
    paths = [save_one(tmp_path, step, content(step)) for step in (1, 2)]

    def busy(path):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(plsc.checkpoint.store, "remove", busy)
        assert prune(tmp_path, 1) == paths[:1]
        assert save_one(tmp_path, 3, content(3)).exists()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: busy(None))
        assert prune(tmp_path, 1) == [], "the next save tries again"
    save_one(tmp_path, 4, content(4))
    assert not [*tmp_path.glob("*.tmp")]


def test_the_best_is_always_one_that_exists(tmp_path):
    assert find(tmp_path, "best") is None
    for step in (1, 2, 3, 4):
        save_one(tmp_path, step, content(step))
    unknown = "no checkpoint has been evaluated, so none is the best"
    assert unknown in refusal(find, tmp_path, "best")
    paths = {step: tmp_path / f"step-{step:08d}" for step in range(1, 5)}
    for step, value, title in ((1, 0.7, "pairs"), (2, 0.9, "pairs"), (3, 0.8, "pairs")):
        evaluated(paths[step], value, title)
    assert find(tmp_path, "best") == paths[2]
    shutil.rmtree(paths[2])
    assert find(tmp_path, "best") == paths[3]
    (paths[3] / "evaluation.json").write_bytes(b"\0" * 64)  # what a power failure leaves
    assert find(tmp_path, "best") == paths[1]
    evaluated(paths[4], 0.1, "other pairs")
    assert find(tmp_path, "best") == paths[4], "numbers of another set are not compared"
    evaluated(paths[4], 0.1, flip=True)
    assert find(tmp_path, "best") == paths[4], "nor are those without mirror images"


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_read_to_its_end(tmp_path):
    path = save_one(tmp_path, 1, content(1))
    saved = Checkpoint.open(path, verify=False)
    shutil.rmtree(path)
    for name, array in content(1)["backbone"].items():
        assert np.array_equal(saved.arrays("backbone")[name], array)
    assert saved.head(0, 2)["centres"].shape[0] == 2


def test_a_step_is_never_written_twice(tmp_path):
    path = save_one(tmp_path, 1, content(1))
    with pytest.raises(SaveError, match="exists"):
        save_one(tmp_path, 1, content(2))
    assert_holds(path, content(1))


def test_a_checkpoint_named_without_its_folder_is_suggested_in_the_runs_folder(tmp_path):
    saved = save_one(tmp_path, 110, content(0))
    line = f"step-00000110: there is no such checkpoint folder, did you mean '{saved}'?"
    assert refusal(find, tmp_path, "step-00000110", kind=MissingFileError) == line


def test_check_matches(tmp_path):
    everything = content(0)
    checkpoint = Checkpoint.open(save_one(tmp_path, 110, everything))
    backbone, head = everything["backbone"], everything["head"]
    rows = {name: array[:3] for name, array in head.items()}
    checkpoint.check_matches(11, 4, backbone=backbone, head=rows)
    weight = np.zeros((3, 3))
    for sizes, wanted, message in (
        ((12, 8), {}, "its number of classes is 11, this run's 12 .one of 2 differences.: resume with"),
        ((11, 4), {"backbone": {**backbone, "stem.weight": weight}}, "stem.weight is .3, 2. in .*.3, 3."),
        ((11, 4), {"backbone": {**backbone, "a": weight}}, "a is not in the checkpoint: resume"),
        ((11, 4), {"head": {"centres": head["centres"]}}, ".* is not in this run .one of 2 differences"),
    ):
        said = refusal(checkpoint.check_matches, *sizes, **wanted)
        assert re.match(f"checkpoint step-00000110: {message}", said)
