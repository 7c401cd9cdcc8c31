"""Room on the disk, in numbers, and a run on a disk that has too little."""

import errno
import itertools
import os
from collections import namedtuple

import pytest

import plsc.checkpoint.store
from plsc.checkpoint import store
from tests.helpers.launch import run_python
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import NO_PAIRS, checkpoints, rows, steps, train

Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_reported_in_numbers_and_training_continues(tmp_path, monkeypatch, capsys):
    free = itertools.chain([10**9, 2_000, 2_000], itertools.repeat(10**9))  # at each save
    usage = lambda path: Usage(10**9, 0, next(free))
    monkeypatch.setattr(plsc.checkpoint.store.shutil, "disk_usage", usage)
    train(tmp_path, NO_PAIRS, "Checkpoint.every_steps=2")
    assert checkpoints(tmp_path) == [8, 10, 12] and steps(rows(tmp_path)) == list(range(1, 13))
    lines = [line for line in capsys.readouterr().out.splitlines() if "ERROR" in line]
    assert (
        len(lines) == 2 and "checkpoint of step 4 not written, earlier ones untouched: rank 0: " in lines[0]
    )
    assert "No space left on device (need 0.0" in lines[0]
    assert lines[0].endswith("MB, free 0.0 MB); last good: step 2; training continues")


def test_a_limit_of_the_system_ends_a_save_and_not_the_run(tmp_path):
    """A file may have 4 KB only, as with a quota: the save fails inside the write."""
    code = f"""
import resource, signal
from tests.helpers.tiny_runs import train
import plsc.training.trainer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
overrides = [{NO_PAIRS!r}, "Global.max_steps=4", "Checkpoint.every_steps=3"]
print("ended at", train({str(tmp_path)!r}, *overrides).step)
"""
    done = run_python("-c", code, cwd=tmp_path, check=False)
    assert "[Errno 27] File too large" in done.stdout and "training continues" in done.stdout
    assert "last good: none; it was the last step: raise the limit of a file's size" in done.stderr
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    "number, remedy",
    [
        (errno.ENOSPC, "make space"),
        (errno.EROFS, "make the file system writable"),
        (errno.EACCES, "let this user write there"),
        (errno.ENOENT, "mount the disk of that folder"),
        (errno.EINVAL, "correct this"),
    ],
)
def test_the_remedy_fits_the_cause(tmp_path, monkeypatch, number, remedy):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, "write_synced", refuse)
    said = refusal(train, tmp_path, NO_PAIRS, "Global.max_steps=1")
    assert said.endswith(f"; last good: none; it was the last step: {remedy}, and resume")
