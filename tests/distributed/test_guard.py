"""A rank's own end: signals, locks and last words, in this process; deaths are shown in
test_supervisor.py."""

import errno
import json
import os
import signal
import socket

import pytest

from plsc.distributed import guard
from plsc.distributed.guard import Guard, failure
from plsc.distributed.lock import hold
from plsc.errors import UserError
from tests.helpers.launch import run_python


@pytest.fixture
def launched(monkeypatch):
    """As if a launcher had started this process as rank 1; it must not die with the test's parent."""
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setattr(guard, "die_with_parent", lambda: None)


@pytest.mark.parametrize("number", guard.STOPPING)
def test_a_signal_is_noted_and_the_handlers_come_back(tmp_path, number):
    before = signal.getsignal(number)
    with Guard(tmp_path) as found:
        found.listen()
        assert found.signal == 0
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # the launcher sends it three times
        assert found.signal == signal.SIGTERM
    assert signal.getsignal(number) is before


def test_ctrl_c_twice_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt), Guard(tmp_path) as found:
        found.listen()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


BLOCKED = """
import os, sys, threading, time
from pathlib import Path
from plsc.distributed import guard
guard.APART = guard._GRACE = 0.2

def signals():
    first, second = map(int, sys.argv[1:])
    os.kill(os.getpid(), first)
    while True:  # a busy machine may notice two at the same time, which count as one
        time.sleep(0.5)
        os.kill(os.getpid(), second)

os.mkfifo("blocked.png")
with guard.Guard(Path("out")) as found:
    found.listen()
    threading.Thread(target=signals, daemon=True).start()
    open("blocked.png").read()
"""


@pytest.mark.parametrize("numbers", [(15, 15), (2, 2), (15, 2), (2, 15)])
def test_a_second_signal_ends_what_is_blocked(tmp_path, numbers):
    """In a launch; the main thread waits in the kernel, where no handler runs."""
    env = {"PADDLE_TRAINER_ID": "0"}
    done = run_python("-c", BLOCKED, *map(str, numbers), cwd=tmp_path, check=False, timeout=60, **env)
    assert done.returncode == 128 + numbers[1], done.stderr
    record = json.loads((tmp_path / "out/errors/rank0.json").read_text())
    for said in (done.stderr, record["message"]):
        assert f"ended by a second {signal.Signals(numbers[1]).name} in <string>:" in said


def test_a_signal_that_was_ignored_stays_ignored(tmp_path):
    for number in guard.STOPPING:
        before = signal.signal(number, signal.SIG_IGN)
        try:
            with Guard(tmp_path) as found:
                found.listen()
                os.kill(os.getpid(), number)
                assert not found.signal
            assert signal.getsignal(number) is signal.SIG_IGN
        finally:
            signal.signal(number, before)


def test_a_full_disk_does_not_keep_the_error_from_being_written(tmp_path, launched, monkeypatch):
    """Its room was taken beforehand; nothing but that is left after an orderly end."""
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    monkeypatch.setattr(guard.faulthandler, "enable", lambda file: None)  # pytest has its own
    monkeypatch.setattr(guard.faulthandler, "disable", lambda: None)
    with Guard(tmp_path) as found:
        found.listen()
    assert [path.name for path in (tmp_path / "errors").iterdir()] == ["rank1.trace"]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(guard, "replace_file", full)
    with pytest.raises(ValueError), Guard(tmp_path) as found:
        found.listen()
        room = (tmp_path / "errors/rank1.reserved").stat()
        raise ValueError("a full disk")
    now = (tmp_path / "errors/rank1.json").stat()
    assert (now.st_ino, now.st_size) == (room.st_ino, room.st_size)
    assert json.loads((tmp_path / "errors/rank1.json").read_text())["message"] == "a full disk"


def test_what_lies_where_a_rank_writes_its_errors_is_neither_followed_nor_in_the_way(
    tmp_path, launched, monkeypatch
):
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    monkeypatch.setattr(guard.faulthandler, "enable", lambda file: None)
    monkeypatch.setattr(guard.faulthandler, "disable", lambda: None)
    errors, other = tmp_path / "errors", tmp_path / "other"
    (errors / "rank1.json").mkdir(parents=True)
    other.write_text("untouched")
    (errors / "rank1.reserved").symlink_to(other)
    (errors / "rank1.alive").symlink_to(other)
    os.mkfifo(errors / "rank1.trace")
    with pytest.raises(ValueError), Guard(tmp_path) as found:
        found.listen()
        raise ValueError("a defect")
    assert json.loads((errors / "rank1.json").read_text())["message"] == "a defect"
    assert other.read_text() == "untouched"


def test_a_file_in_place_of_the_folder_of_errors_is_refused(tmp_path, launched, monkeypatch):
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    (tmp_path / "errors").write_text("")
    with pytest.raises(UserError, match="errors: is no folder; remove it"), Guard(tmp_path) as found:
        found.listen()


def test_rank_0_locks_the_folder_unless_the_supervisor_does(tmp_path, monkeypatch):
    with Guard(tmp_path), pytest.raises(UserError, match=f"is in use by pid {os.getpid()} on host "):
        hold(tmp_path)
    with hold(tmp_path):
        monkeypatch.setenv(guard.LOCKED, str(tmp_path.parent))
        with pytest.raises(UserError, match="is in use"), Guard(tmp_path):
            pass
        monkeypatch.setenv(guard.LOCKED, str(tmp_path))
        with Guard(tmp_path):
            pass


def test_other_ranks_do_not_lock(tmp_path, launched):
    with hold(tmp_path), Guard(tmp_path):
        pass


def test_a_failing_rank_leaves_its_error(tmp_path, launched):
    with pytest.raises(ValueError), Guard(tmp_path) as found:
        found.step = 7
        raise ValueError("two\nlines")
    record = json.loads((tmp_path / "errors/rank1.json").read_text())
    assert record.pop("time") > 1e9 and record.pop("where").startswith(f"{__file__}:")
    whose = {"rank": 1, "host": socket.gethostname(), "pid": os.getpid()}
    assert record == {**whose, "step": 7, "type": "ValueError", "message": "two lines", "user": False}


def test_without_a_launcher_nothing_is_written(tmp_path):
    with pytest.raises(ValueError), Guard(tmp_path) as found:
        found.listen()
        raise ValueError
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_under_the_supervisor_a_rank_shows_its_step_until_its_end(tmp_path, launched, monkeypatch):
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    monkeypatch.setattr(guard.faulthandler, "enable", lambda file: None)  # pytest has its own
    monkeypatch.setattr(guard.faulthandler, "disable", lambda: None)
    with Guard(tmp_path) as found:
        found.listen()
        for step in (9, 10):
            found.step_started(step)
            record = json.loads((tmp_path / "errors/rank1.alive").read_text())
            assert record == {"pid": os.getpid(), "host": socket.gethostname(), "step": step}
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "test_guard.py" in (tmp_path / "errors/rank1.trace").read_text()
        found.stopped = "SIGTERM"
    assert json.loads((tmp_path / "errors/rank1.json").read_text())["stopped"] == "SIGTERM"
    assert not (tmp_path / "errors/rank1.alive").exists()


def test_the_watchdog_is_armed_for_a_step_and_for_longer_in_between(tmp_path, launched, monkeypatch):
    armed = []
    monkeypatch.setattr(
        guard.faulthandler, "dump_traceback_later", lambda seconds, exit, file: armed.append((seconds, exit))
    )
    with Guard(tmp_path, hang_seconds=50) as found:
        found.listen()
        for step in range(3):
            found.step_started(step)
        found.allow_pause()
    assert armed == [(50, True), (300, True), (50, True), (300, True)]  # not anew for steps that follow soon
    armed.clear()
    with Guard(tmp_path, hang_seconds=0) as found:
        found.listen()
    assert not armed


def test_a_guard_of_nothing_is_idle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    idle = Guard()
    idle.step_started(3)
    idle.allow_pause()
    assert not idle.signal and not list(tmp_path.iterdir())


def test_paddles_errors_are_cut_to_their_message():
    text = "\n\n---\nC++ Traceback\n0 a::b\n---\nError Message Summary:\n-----\nMemory: no\n  room\n"
    assert failure(MemoryError(text))["message"] == "Memory: no room"
    mistake = failure(UserError("-o DataLoader.Train.name=x: no"))
    assert mistake["user"] and mistake["message"] == "-o DataLoader.Train.name=x: no"


def test_a_watchdog_that_cannot_start_hides_no_other_error(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise RuntimeError("unable to start watchdog thread")

    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    monkeypatch.setattr(guard.faulthandler, "dump_traceback_later", refuse)
    watched = guard.Guard(tmp_path, hang_seconds=5)
    try:
        raise MemoryError("no space for 1 GB")
    except MemoryError:
        watched.allow_pause()
    assert (
        "WARNING a hang would not be noticed now: unable to start watchdog thread" in capsys.readouterr().err
    )
