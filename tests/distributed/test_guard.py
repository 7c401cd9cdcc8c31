"""A rank's own end: signals, locks and last words, in this process; deaths are shown in
test_restart.py."""

import errno
import json
import os
import signal

import pytest

from plsc.distributed import guard
from plsc.distributed.guard import Guard, describe
from plsc.distributed.lock import hold
from plsc.errors import UserError


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


def test_rank_0_locks_the_folder_unless_the_supervisor_does(tmp_path, monkeypatch):
    with Guard(tmp_path), pytest.raises(UserError, match=f"is in use by pid {os.getpid()} on host "):
        hold(tmp_path)
    with hold(tmp_path):
        with pytest.raises(UserError, match="is in use"), Guard(tmp_path):
            pass
        monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
        monkeypatch.setattr(guard, "die_with_parent", lambda: None)
        monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
        with Guard(tmp_path):
            pass


def test_other_ranks_do_not_lock(tmp_path, launched):
    with hold(tmp_path), Guard(tmp_path):
        pass


@pytest.fixture
def supervised(tmp_path, launched, monkeypatch):
    """The folder of errors of a rank under plsc train --ranks."""
    monkeypatch.setenv(guard.SUPERVISOR, str(os.getpid()))
    (tmp_path / "errors").mkdir()
    return tmp_path / "errors"


@pytest.mark.parametrize("error, code", [(ValueError("two\nlines"), 1), (UserError("one\ntwo"), 2)])
def test_a_supervised_rank_leaves_its_error_and_says_nothing(tmp_path, supervised, error, code):
    with pytest.raises(SystemExit) as ended, Guard(tmp_path) as found:
        found.step = 7
        raise error
    assert ended.value.code == code
    record = json.loads((supervised / "rank1.json").read_text())
    assert record.pop("time") > 1e9 and type(error).__name__ in record.pop("traceback")
    message = "one\ntwo" if code == 2 else "two lines"
    assert record == {"step": 7, "type": type(error).__name__, "message": message, "user": code == 2}


def test_a_full_disk_hides_no_error(tmp_path, supervised, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(guard, "replace_file", full)
    with pytest.raises(ValueError), Guard(tmp_path):
        raise ValueError


def test_without_a_supervisor_nothing_is_written(tmp_path, launched):
    with pytest.raises(ValueError), Guard(tmp_path) as found:
        found.listen()
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_supervised_rank_shows_its_step_until_its_end(tmp_path, supervised):
    with Guard(tmp_path) as found:
        found.listen()
        for step in (9, 10):
            found.step_started(step)
            record = json.loads((supervised / "rank1.alive").read_text())
            assert record == {"pid": os.getpid(), "step": step}
    assert list(supervised.iterdir()) == []


def test_the_watchdog_is_armed_for_a_step_and_for_longer_in_between(tmp_path, launched, monkeypatch):
    armed = []
    monkeypatch.setattr(
        guard.faulthandler, "dump_traceback_later", lambda seconds, exit: armed.append((seconds, exit))
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
    assert describe(MemoryError(text))["message"] == "Memory: no room"
    mistake = describe(UserError("-o DataLoader.Train.name=x: no"))
    assert mistake["user"] and mistake["message"] == "-o DataLoader.Train.name=x: no"
