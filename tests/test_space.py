"""Room on the disk, in numbers; and a run on a disk that has too little of it."""

import errno
import shutil
from collections import namedtuple

import pytest

import plsc.space
from plsc.checkpoint import SaveError
from plsc.errors import UserError
from plsc.space import full_disk, need_and_free
from tests.launch import run_python
from tests.training import checkpoints, make_trainer, rows, steps, train

NO_PAIRS = "DataLoader.Eval.dataset=null"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def twenty_megabytes(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 20_000_000))


def test_need_and_free(tmp_path, twenty_megabytes):
    assert need_and_free(tmp_path / "not/there/yet", 51_200_000) == (False, "need 51.2 MB, free 20 MB")
    assert need_and_free(tmp_path, 20_000_000)[0]


def test_the_real_disk_is_asked(tmp_path):
    assert need_and_free(tmp_path, 1)[0] and not need_and_free(tmp_path, 2**62)[0]


def test_errors_get_the_numbers(tmp_path, twenty_megabytes):
    assert str(full_disk(tmp_path, 51_000_000)) == (
        "[Errno 28] No space left on device (need 51 MB, free 20 MB)"
    )
    assert full_disk(tmp_path, 100) is None
    error = OSError(errno.EFBIG, "File too large")
    assert str(full_disk(tmp_path, 51_000_000, error)).endswith("large (need 51 MB, free 20 MB)")
    assert full_disk(tmp_path, 51_000_000, OSError(errno.EIO, "Input/output error")) is None


def test_a_disk_without_room_is_refused_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 2_000))
    trainer = make_trainer(tmp_path, NO_PAIRS)
    with pytest.raises(UserError) as raised:
        trainer.train(None)
    assert trainer.step == 0 and str(raised.value).startswith(
        f"{tmp_path}/checkpoints: no space for a checkpoint (need "
    )
    assert str(raised.value).endswith("free 0.002 MB); make room, or set another Global.output_dir")


def full_from(monkeypatch, checks):
    """The disk is full at these calls of disk_usage (from 1: the first is that before the first step)."""
    calls = []

    def usage(path):
        calls.append(path)
        return Usage(10**9, 0, 2_000 if len(calls) in checks else 10**9)

    monkeypatch.setattr(plsc.space.shutil, "disk_usage", usage)


def test_a_full_disk_is_said_in_numbers_and_training_goes_on(tmp_path, monkeypatch, capsys):
    full_from(monkeypatch, [3, 4])
    train(tmp_path, NO_PAIRS, "Checkpoint.every_steps=2")
    assert checkpoints(tmp_path) == [8, 10, 12] and steps(rows(tmp_path)) == list(range(1, 13))
    lines = [line for line in capsys.readouterr().out.splitlines() if "ERROR" in line]
    assert (
        len(lines) == 2 and "checkpoint of step 4 not written, earlier ones untouched: rank 0: " in lines[0]
    )
    assert "No space left on device (need 0.0" in lines[0]
    assert lines[0].endswith("MB, free 0.002 MB); last good: step 2; training goes on")


def test_three_in_a_row_end_the_run(tmp_path, monkeypatch):
    full_from(monkeypatch, [3, 4, 5])
    with pytest.raises(
        SaveError, match=r"step 8 not written.*; last good: step 2; the third in a row: make room"
    ):
        train(tmp_path, NO_PAIRS, "Checkpoint.every_steps=2")
    assert checkpoints(tmp_path) == [2]


def test_a_limit_of_the_system_ends_a_save_and_not_the_run(tmp_path):
    """A file may have 4 KB only, as with a quota: the save fails inside the write."""
    code = f"""
import resource, signal
from tests.training import train
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
print("ended at", train({str(tmp_path)!r}, {NO_PAIRS!r}, "Global.max_steps=4").step)
"""
    said = run_python("-c", code, cwd=tmp_path).stdout
    assert "[Errno 27] File too large" in said and "training goes on" in said and "ended at 4" in said
    assert list((tmp_path / "checkpoints").iterdir()) == []
