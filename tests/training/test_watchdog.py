"""How a rank ends: signals, locks and last words, in this process. test_restart.py shows deaths."""

import errno
import os
import signal
from pathlib import Path

import pytest

from plsc.distributed.lock import hold
from plsc.errors import UserError
from plsc.training import watchdog
from plsc.training.watchdog import Watchdog
from tests.helpers.launch import ROOT, run_python


@pytest.fixture
def launched(monkeypatch):
    """As if a launcher had started this process as rank 1. It must not die with the test's parent."""
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setattr(watchdog, "die_with_parent", lambda: None)


@pytest.mark.parametrize("number", watchdog.STOPPING)
def test_a_signal_is_noted_and_the_handlers_come_back(tmp_path, number):
    before = signal.getsignal(number)
    with Watchdog(tmp_path) as found:
        found.listen()
        assert found.signal == 0
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # the launcher sends it three times
        assert found.signal == signal.SIGTERM
    assert signal.getsignal(number) is before


def test_ctrl_c_twice_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt), Watchdog(tmp_path) as found:
        found.listen()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_was_ignored_stays_ignored(tmp_path):
    for number in watchdog.STOPPING:
        before = signal.signal(number, signal.SIG_IGN)
        try:
            with Watchdog(tmp_path) as found:
                found.listen()
                os.kill(os.getpid(), number)
                assert not found.signal
            assert signal.getsignal(number) is signal.SIG_IGN
        finally:
            signal.signal(number, before)


def test_rank_0_locks_the_folder_unless_the_supervisor_does(tmp_path, monkeypatch):
    with Watchdog(tmp_path), pytest.raises(UserError, match=f"is in use by pid {os.getpid()} on host "):
        hold(tmp_path)
    with hold(tmp_path):
        with pytest.raises(UserError, match="is in use"), Watchdog(tmp_path):
            pass
        monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
        monkeypatch.setattr(watchdog, "die_with_parent", lambda: None)
        monkeypatch.setenv(watchdog.SUPERVISOR, str(os.getpid()))
        with Watchdog(tmp_path):
            pass


def test_other_ranks_do_not_lock(tmp_path, launched):
    with hold(tmp_path), Watchdog(tmp_path):
        pass


@pytest.fixture
def supervised(tmp_path, launched, monkeypatch):
    """What a rank under plsc train --ranks says in its last words."""
    monkeypatch.setenv(watchdog.SUPERVISOR, str(os.getpid()))
    return tmp_path / "log/rank1.txt"


GLOO = "\n---\nC++ Traceback\n0 a::b\n---\nError Message Summary:\n---\nExternal: gloo/x.cc] no\n  peer\n"


@pytest.mark.parametrize(
    "error, code, line",
    [
        (ValueError("two\nlines"), 1, "rank 1 failed in step 8: ValueError: two lines"),
        (MemoryError("no"), 1, "rank 1 failed in step 8: MemoryError: no; lower DataLoader.Train.batch_size"),
        (UserError("one\ntwo"), 2, "rank 1, step 8: one\ntwo"),
        (
            RuntimeError(GLOO),
            watchdog.LOST,
            "rank 1 failed in step 8: RuntimeError: External: gloo/x.cc] no peer",
        ),
    ],
)
def test_a_supervised_rank_leaves_its_error_and_says_nothing(tmp_path, supervised, capfd, error, code, line):
    with pytest.raises(SystemExit) as ended, Watchdog(tmp_path) as found:
        found.listen()
        found.step_started(7)
        raise error
    assert ended.value.code == code and capfd.readouterr().err == ""
    words = supervised.read_text()
    assert words == line if code == 2 else words.startswith(f"{line}\nTraceback")


def test_a_name_that_is_not_utf8_hides_no_error(tmp_path, supervised):
    with pytest.raises(SystemExit) as ended, Watchdog(tmp_path) as found:
        found.listen()
        raise ValueError("cannot parse \udcff.txt")
    words = supervised.read_text("utf-8")
    assert ended.value.code == 1 and words.startswith(
        "rank 1 failed before its first step was done: ValueError: cannot parse \\xff.txt\nTraceback"
    )


def test_a_disk_that_fails_ends_no_run(tmp_path, supervised, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    with Watchdog(tmp_path) as found:
        found.listen()
        monkeypatch.setattr(os, "pwrite", fail)
        monkeypatch.setattr(Path, "unlink", fail)
        found.step_started(1)
        assert found.step == 1


def test_a_full_disk_hides_no_error(tmp_path, supervised):
    with pytest.raises(ValueError), Watchdog(tmp_path):
        raise ValueError  # there is no folder to write to


def test_without_a_supervisor_the_loss_of_another_rank_is_one_line(tmp_path, launched, capfd, monkeypatch):
    monkeypatch.setattr(watchdog.peers, "gone", lambda: "rank 0 has ended")
    with pytest.raises(SystemExit) as ended, Watchdog(tmp_path) as found:
        found.listen()
        raise RuntimeError(GLOO)
    assert ended.value.code == watchdog.LOST
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "ERROR rank 1 failed before its first step was done: RuntimeError: External: gloo/x.cc]"
    )
    assert line.endswith(f"; rank 0 has ended; the traceback is in {tmp_path}/log/rank1.txt")
    with pytest.raises(ValueError), Watchdog(tmp_path):  # any other error is Python's to show
        raise ValueError


def test_a_rank_shows_its_step_until_its_end(tmp_path, supervised):
    with Watchdog(tmp_path) as found:
        found.listen()
        for step in (9, 10):
            found.step_started(step)
            assert supervised.read_text() == str(step)
    assert not supervised.exists()


@pytest.mark.parametrize("under", ["plsc train", "Paddle's launcher"])
def test_a_step_that_takes_too_long_ends_the_process_in_one_line(tmp_path, under):
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from plsc.training.watchdog import Watchdog\n"
        "with Watchdog(Path(sys.argv[1]), hang_seconds=2) as found:\n"  # 2 s, since a busy machine is late
        "    found.listen()\n"  # there is more time for what is no step
        "    time.sleep(3)\n    for step in range(5):\n        found.step_started(step)\n        "
        "time.sleep(0.4)\n    time.sleep(60)\n"
    )
    env = {"PADDLE_TRAINER_ID": "1", **({watchdog.SUPERVISOR: "1"} if under == "plsc train" else {})}
    done = run_python("-c", program, tmp_path, cwd=ROOT, timeout=30, check=False, **env)
    words = (tmp_path / "log/rank1.txt").read_text()
    line = "rank 1 took too long in step 5 (Global.hang_seconds)"
    assert done.returncode == watchdog.LOST and words.startswith(f"{line}\n") and "line 10" in words
    said = "" if under == "plsc train" else f"ERROR {line}; where it waits is in {tmp_path}/log/rank1.txt\n"
    assert done.stderr == said


def test_rank_0_keeps_a_locked_folder_for_the_meeting_if_other_machines_wait(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from plsc.distributed import lock\n"
        "from plsc.training.watchdog import Watchdog\n"
        "held = lock.hold(sys.argv[1])\n"
        "with Watchdog(Path(sys.argv[1]), hang_seconds=9) as watchdog:\n    print(watchdog.problem)\n"
    )
    launch = {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2"}
    done = run_python("-c", program, tmp_path, cwd=ROOT, check=False, **launch, PADDLE_LOCAL_SIZE="1")
    assert done.returncode == 0 and "is in use by pid" in done.stdout
    done = run_python("-c", program, tmp_path, cwd=ROOT, check=False, **launch, PADDLE_LOCAL_SIZE="2")
    assert done.returncode == 1 and "is in use by pid" in done.stderr
