"""Who failed first, by files that are written by hand; with processes that really die it is shown in
test_supervisor.py."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from plsc.apps.supervise import postmortem
from plsc.apps.supervise.postmortem import Watch
from plsc.distributed import collectives

GLOO = "RuntimeError", "[gloo/transport/tcp/pair.cc:584] TIMEOUT self_rank = 0 pair_rank = 1"
TRACE = """Thread 0x00007f0e (most recent call first):
  File "/lib/threading.py", line 5 in wait

Current thread 0x00007f0f (most recent call first):
  File "/lib/loader.py", line 77 in sample
  File "/lib/trainer.py", line 12 in train
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def alive(folder, rank, step, pid=None):
    record = {"pid": os.getpid() if pid is None else pid, "host": socket.gethostname(), "step": step}
    (folder / f"rank{rank}.alive").write_text(json.dumps(record).ljust(99))


def raised(folder, rank, step, kind, message, when=0.0, user=False, host=None, **more):
    record = {"time": time.time() + when, "rank": rank, "host": host or socket.gethostname(), "step": step}
    (folder / f"rank{rank}.json").write_text(
        json.dumps({**record, "type": kind, "message": message, "user": user, **more})
    )


def dead():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_earliest_exception_counts_not_the_first_rank(folder):
    watch = Watch(folder)
    raised(folder, 0, 7, *GLOO, when=0.2)
    raised(folder, 2, 6, "ValueError", "a bad value", when=0.1)
    found = watch.failure(1, "log")
    assert (found.text, found.user, found.rank) == (
        "rank 2 failed at step 7: ValueError: a bad value",
        False,
        2,
    )


def test_a_mistake_is_told_without_its_type(folder):
    watch = Watch(folder)
    raised(folder, 1, 6, "UserError", "a.txt:3: label 9", user=True)
    found = watch.failure(241, "log")
    assert found.user and found.text == "rank 1 failed at step 7: a.txt:3: label 9"


def test_a_vanished_rank_was_first_if_it_was_last_seen_before_the_others_failed(folder, monkeypatch):
    watch = Watch(folder)
    alive(folder, 1, 56)
    alive(folder, 0, 56)
    watch.look()
    alive(folder, 1, 56, dead())
    raised(folder, 0, 56, *GLOO, when=0.1)
    monkeypatch.setattr(postmortem, "send", lambda pid, number: None)
    watch.look()
    assert watch.failure(1, "log").text == "rank 1 was killed (signal 9) at step 57"


def test_a_kill_for_want_of_memory_is_told_from_its_own_group_only(folder, monkeypatch):
    counters = {rank: folder / f"group{rank}" for rank in (0, 1)}
    for counter in counters.values():
        counter.write_text("oom 2\noom_kill 2\n")
    processes = {rank: subprocess.Popen(["sleep", "60"]) for rank in counters}
    rank_of = {process.pid: rank for rank, process in processes.items()}
    monkeypatch.setattr(postmortem, "_oom_counter", lambda pid: counters[rank_of[pid]])
    watch = Watch(folder)
    for rank, process in processes.items():
        alive(folder, rank, 56, process.pid)
    watch.look()
    counters[0].write_text("oom 3\noom_kill 3\n")
    (folder / "root").write_text("oom_kill 5\n")
    monkeypatch.setattr(postmortem, "_oom_counter", lambda pid: folder / "root")
    watch.look()  # a process that ends leaves its group before it is gone
    for process in processes.values():
        process.kill()
        process.wait()
    watch._seen[1] -= 1
    assert watch.failure(1, "log").text == "rank 1 was killed (signal 9) at step 57"
    watch._seen[1] += 2
    assert watch.failure(1, "log").text == (
        "rank 0 was killed (signal 9) at step 57: the machine is probably out of memory; lower DataLoader.Train.batch_size"
    )


V1 = "30 25 0:31 {root} {point} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}\n"
V2 = "30 25 0:31 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    "cgroup, mounts, file",
    [
        (
            "4:cpu:/a\n3:memory:/job/1\n0::/other\n",
            [(V1, "/", "cpu"), (V1, "/", "memory"), (V2, "/", "v2")],
            "memory/job/1/memory.oom_control",
        ),
        ("3:cpu,memory:/docker/f00\n", [(V1, "/docker/f00", "memory")], "memory/memory.oom_control"),
        ("0::/job.slice/1\n", [(V2, "/", "v2")], "v2/job.slice/1/memory.events.local"),
        ("0::/\n", [(V2, "/", "v2")], "v2/memory.events.local"),
        ("0::/nobody\n", [(V2, "/", "v2")], None),
        ("", [(V2, "/", "v2")], None),
    ],
)
def test_the_memory_group_of_a_process(tmp_path, cgroup, mounts, file):
    for folder in ("7", "self", "cpu/a", "memory/job/1", "v2/job.slice/1", "v2/other"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("v2", "v2/job.slice/1"):
        (tmp_path / folder / "memory.events").touch()
        (tmp_path / folder / "memory.events.local").touch()
    for folder in ("memory", "memory/job/1"):
        (tmp_path / folder / "memory.oom_control").touch()
    (tmp_path / "7/cgroup").write_text(cgroup)
    lines = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"]
    lines += [line.format(root=root, point=tmp_path / name, controllers=name) for line, root, name in mounts]
    (tmp_path / "self/mountinfo").write_text("".join(lines))
    assert postmortem._oom_counter(7, tmp_path) == (tmp_path / file if file else None)
    assert postmortem._oom_counter(8, tmp_path) is None


@pytest.mark.parametrize("killed_seen", [-0.3, 0.3])  # before and after the crash that follows from it
def test_a_kill_outranks_the_abort_that_follows_from_it_whichever_is_seen_first(folder, killed_seen):
    watch = Watch(folder)
    crash = time.time()
    for rank in (0, 1):
        alive(folder, rank, 4, dead())
    (folder / "rank1.trace").write_text("Fatal Python error: Aborted\n\n" + TRACE)
    watch._seen = {0: crash + killed_seen, 1: crash - 0.2}
    found = watch.failure(1, "log")
    assert (found.text, found.rank) == ("rank 0 was killed (signal 9) at step 5", 0)


@pytest.mark.parametrize("when", [-1, 1])
@pytest.mark.parametrize("crash", ["Segmentation fault", "Bus error"])
def test_a_crash_outranks_a_lost_peer_whichever_is_seen_first(folder, when, crash):
    watch = Watch(folder)
    alive(folder, 1, 4, dead())
    (folder / "rank1.trace").write_text(f"Fatal Python error: {crash}\n\n{TRACE}")
    raised(folder, 0, 4, "OSError", "Connection reset by peer", when=when)
    assert watch.failure(1, "log").text.startswith(f"rank 1 crashed at step 5 ({crash})")


def test_an_abort_counts_where_its_peer_was_killed_by_the_launcher_afterwards(folder):
    watch = Watch(folder)
    for rank in (0, 1):
        alive(folder, rank, 4, dead())
    (folder / "rank1.trace").write_text("Fatal Python error: Aborted\n\n" + TRACE)
    watch._seen = {0: time.time() + 3, 1: time.time()}
    assert watch.failure(1, "log").text.startswith("rank 1 crashed at step 5 (Aborted)")


def test_one_that_its_peers_waited_for_in_vain_hung(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(postmortem, "send", lambda pid, number: asked.append(number))
    watch = Watch(folder)
    alive(folder, 0, 57)
    alive(folder, 1, 56)
    os.utime(folder / "rank1.alive", (time.time() - 30, time.time() - 30))
    raised(folder, 0, 57, *GLOO, when=-1)
    watch.look()
    watch.look()
    assert asked == 2 * [
        signal.SIGUSR1,
        signal.SIGCONT,
    ]  # each rank once; rank 0 is one of the two in this test only
    text = watch.failure(1, "log").text
    assert text.startswith("no progress for 29 s: rank 1 is at step 57 in a place unknown")
    (folder / "rank1.trace").write_text(TRACE)
    assert watch.failure(1, "log").text == "no progress for 29 s: rank 1 is at step 57 in /lib/loader.py:77"


def test_one_that_was_stopped_is_waked_and_told_apart_from_what_it_says_then(folder):
    stopped = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stopped.send_signal(signal.SIGSTOP)
    while postmortem._state(stopped.pid) != "T":
        time.sleep(0.01)
    watch = Watch(folder)
    alive(folder, 1, 56, stopped.pid)
    os.utime(folder / "rank1.alive", (time.time() - 30, time.time() - 30))
    raised(folder, 0, 57, *GLOO)
    watch.look()
    stopped.communicate()
    assert stopped.returncode == -signal.SIGUSR1  # which a rank answers
    (folder / "rank1.alive").unlink()
    raised(folder, 1, 56, *GLOO, when=1)
    (folder / "rank1.trace").write_text(TRACE)
    assert watch.failure(1, "log").text == (
        "no progress for 30 s: rank 1 is at step 57 in /lib/loader.py:77 (the process was stopped, by SIGSTOP)"
    )


def test_want_of_memory_comes_with_advice(folder):
    watch = Watch(folder)
    raised(folder, 0, 6, "MemoryError", "Fail to alloc memory of 268435456 size")
    assert watch.failure(1, "log").text == (
        "rank 0 failed at step 7: MemoryError: Fail to alloc memory of 268435456 size; lower DataLoader.Train.batch_size"
    )


@pytest.mark.parametrize(
    "line, said",
    [
        ("Timeout (0:10:00)!\n", "no progress for 600 s: rank 0 is at step 5 in /lib/loader.py:77"),
        (
            "Fatal Python error: Segmentation fault\n\n",
            "rank 0 crashed at step 5 (Segmentation fault) in /lib/loader.py:77",
        ),
    ],
)
def test_what_the_trace_of_a_vanished_rank_tells(folder, line, said):
    watch = Watch(folder)
    alive(folder, 0, 4, dead())
    (folder / "rank0.trace").write_text(line + TRACE)
    assert watch.failure(1, "log").text == said


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "collective", ["paddle/distributed/communication/all_reduce.py", "plsc/distributed/collectives.py"]
)
def test_of_two_watchdogs_the_one_that_did_not_wait_for_the_other_counts(folder, first, collective):
    watch = Watch(folder)
    waiting = TRACE.replace("/lib/loader.py", f"/lib/{collective}")
    for rank, trace in enumerate([waiting, TRACE]):
        alive(folder, rank, 4, dead())
        (folder / f"rank{rank}.trace").write_text("Timeout (0:10:00)!\n" + trace)
        watch._seen[rank] = float(rank != first)
    assert watch.failure(1, "log").text == "no progress for 600 s: rank 1 is at step 5 in /lib/loader.py:77"
    (folder / "rank1.trace").write_text("Timeout (0:10:00)!\n" + waiting)
    assert f"rank {first} is" in watch.failure(1, "log").text  # each waits, for whom is not known


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("in_time", [True, False])
def test_of_ranks_that_hang_the_one_with_the_fewest_collectives_counts(folder, first, in_time):
    """As on GPUs: rank 0 waits where it reads a value, not in a collective; the other's watchdog may come too
    late."""
    watch = Watch(folder)
    for rank, trace in enumerate([TRACE.replace("loader.py", "progress.py"), TRACE]):
        alive(folder, rank, 4, dead())
        ended = rank == 0 or in_time or rank == first
        (folder / f"rank{rank}.trace").write_text("Timeout (0:10:00)!\n" * ended + trace)
        (folder / f"rank{rank}.calls").write_bytes((41 - rank).to_bytes(8, "little"))
        watch._seen[rank] = float(rank != first)
    found = watch.failure(1, "log")
    assert found.rank == 1 and found.text == "no progress for 600 s: rank 1 is at step 5 in /lib/loader.py:77"


def test_stopped_ranks_have_not_failed(folder):
    watch = Watch(folder)
    assert watch.stopped() is None
    record = {"host": socket.gethostname(), "stopped": "SIGTERM", "step": 3}
    (folder / "rank0.json").write_text(json.dumps(record))
    assert watch.stopped() == "SIGTERM"


JUNK = [
    "[]",
    "7",
    "{}",
    '{"cut',
    "[" * 100_000,
    '{"host": "HOST"}',
    '{"host": "HOST", "step": "x", "pid": []}',
]


def test_files_that_no_rank_has_written_are_passed_over(folder):
    watch = Watch(folder)
    for number, text in enumerate(JUNK):
        for kind in ("alive", "json"):
            (folder / f"rank{number}.{kind}").write_text(text.replace("HOST", socket.gethostname()))
    (folder / "rankx.alive").write_text("{}")
    alive(folder, "z", 3)
    (folder / "rank77.alive").mkdir()
    os.mkfifo(folder / "rank78.json")  # reading it would block for ever
    raised(folder, 50, 6, "ValueError", "a bad value")
    watch.look()
    assert watch.stopped() is None and watch.pids() == {}
    assert watch.failure(1, "log").text == "rank 50 failed at step 7: ValueError: a bad value"
    Watch(folder)


def test_an_earlier_start_is_forgotten_but_not_what_another_machine_says(folder):
    raised(folder, 0, 7, *GLOO)
    raised(folder, 1, 7, *GLOO, host="elsewhere")
    alive(folder, 2, 4)
    (folder / "rank2.trace").write_text(TRACE)
    (folder / "rank3.json").write_text('{"cut')
    watch = Watch(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["rank1.json", "rank3.json"]
    assert (
        watch.failure(1, "log").text == "the ranks ended with exit code 1 before the training began, see log"
    )
    assert watch.failure(2, "log").user and not watch.failure(1, "log").user
    assert watch.failure(-9, "log").text == "the launcher was killed (signal 9)"


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_the_launcher_ended_by_a_second_signal_is_stuck_and_no_cause(folder, alone):
    watch = Watch(folder)
    alive(folder, 1, 2, dead())
    text = "ended by a second SIGTERM in /lib/loader.py:77, step 2 is not saved by it"
    raised(folder, 1, 2, "KeyboardInterrupt", text, when=3, ended_by="SIGTERM")
    (folder / "rank1.trace").write_text(TRACE)
    if alone:
        assert watch.failure(1, "log").text == f"rank 1 {text}"
        return
    raised(folder, 0, 2, *GLOO, when=1)
    found = watch.failure(1, "log")
    assert found.rank == 1 and re.fullmatch(
        r"no progress for .* s: rank 1 is at step 3 in /lib/loader.py:77", found.text
    )


def test_the_module_of_the_collectives_is_known_in_a_stack():
    assert postmortem._COLLECTIVE.search(f'File "{collectives.__file__}", line 8 in barrier')
