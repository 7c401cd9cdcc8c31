"""Ranks that end or fall silent, by connections within this process."""

import socket
import subprocess
import threading
import time

import pytest

from plsc.config.run import GlobalCfg
from plsc.distributed import peers
from plsc.distributed.peers import LostRankError, Peers
from tests.helpers.launch import ROOT, free_port, start_python


@pytest.fixture
def rank_1():
    """A connection's other end, and what this rank 0 notices about it."""
    here, there = socket.socketpair()
    yield there, Peers({1: here}, silence=1.0)
    there.close()
    here.close()


def wait_for(what):
    end = time.monotonic() + 20
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_rank_that_sends_beats_is_well_and_gets_some():
    """Twenty beats in each second that it may be silent, since a busy machine is late with some."""
    here, there = socket.socketpair()
    with here, there:
        watched = Peers({1: here}, silence=2.0)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            there.send(b"\n")
            time.sleep(0.05)
        assert watched.lost() is None and watched.gone() is None
        assert set(there.recv(99)) == {ord("\n")}


def test_a_silent_rank_is_lost(rank_1):
    text = (
        "rank 1 has given no sign of life for 1 s: its process is stopped, or its machine or network is down"
    )
    assert wait_for(rank_1[1].lost) == text == rank_1[1].gone()
    assert f"lost {text}\n".encode() in rank_1[0].recv(999)  # for the others


def test_a_rank_whose_connection_ends_comes_to_no_barrier(rank_1):
    rank_1[0].close()
    assert wait_for(rank_1[1].gone) == "rank 1 has ended"
    assert rank_1[1].lost() is None  # a collective says more
    assert wait_for(rank_1[1].lost) == "rank 1 has ended"


def test_a_rank_that_ends_in_order_is_not_lost(rank_1):
    rank_1[0].send(b"\nleft 1\n")
    rank_1[0].close()
    assert wait_for(rank_1[1].gone) == "rank 1 has ended"
    time.sleep(1.5)
    assert rank_1[1].lost() is None


def test_what_rank_0_has_lost_is_lost():
    here, there = socket.socketpair()
    with here, there:
        watched = Peers({0: here})
        there.send(b"\nlost rank 2 has")
        there.send(b" ended\n")
        assert wait_for(watched.lost) == "rank 2 has ended"


MEET = """
import sys
from plsc.distributed import peers
from plsc.errors import UserError
try:
    peers.meet(float(sys.argv[1]), UserError(sys.argv[2], "a.key") if sys.argv[2] else None)
except (UserError, peers.LostRankError) as error:
    print(f"{type(error).__name__}: {error}")
else:
    print("met")
"""


def meet(problems, hang_seconds=20.0, ranks=None, port=None, numbers=None, counts=None):
    """What each rank prints. `problems` belong to the ranks that are started.

    numbers, counts: what each takes for its rank and for the number of ranks.
    """
    port = port or free_port()
    env = {"PADDLE_MASTER": f"127.0.0.1:{port}", "MASTER_PORT": None, "MASTER_ADDR": None}
    streams = {"stdout": -1, "text": True, "cwd": ROOT}
    started = []
    for rank, problem in enumerate(problems):
        env["PADDLE_TRAINER_ID"] = str(numbers[rank] if numbers else rank)
        env["PADDLE_TRAINERS_NUM"] = str(counts[rank] if counts else ranks or len(problems))
        started.append(start_python("-c", MEET, hang_seconds, problem, env=env, **streams))
    return [process.communicate(timeout=60)[0].strip() for process in started]


def test_all_meet():
    assert meet(["", "", ""]) == ["met"] * 3


def test_a_mistake_of_one_rank_ends_all():
    first, second = meet(["", "is wrong"])
    assert first == "UserError: rank 1: a.key: is wrong" and second == "UserError: a.key: is wrong"


def test_a_rank_that_does_not_come_is_named():
    (said,) = meet([""], hang_seconds=2, ranks=3)
    assert said == "LostRankError: ranks 1, 2 did not connect within 2 s (Global.hang_seconds)"


def test_a_rank_of_another_launch_ends_all():
    remedy = "; start all ranks by one launch, and let no other launch use its port"
    line = "UserError: rank 0 is one of 2 ranks, and rank 1 one of 3 (PADDLE_TRAINERS_NUM)" + remedy
    assert meet(["", ""], counts=[2, 3]) == [line] * 2
    line = "UserError: two ranks have the number 1 (PADDLE_TRAINER_ID)" + remedy
    assert meet(["", "", ""], ranks=4, numbers=[0, 1, 1]) == [line] * 3


def test_a_rank_without_a_config_waits_as_long_as_by_default():
    assert GlobalCfg().hang_seconds == peers.HANG_SECONDS


def test_another_program_is_sent_away(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.1:{port}")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setattr(peers, "_met", False)  # put back at the end
    failures = []

    def first():
        with pytest.raises(LostRankError):
            peers.meet(3)
        failures.append(True)

    thread = threading.Thread(target=first)
    thread.start()
    for _ in range(100):
        try:
            other = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.02)
    with other:
        other.send(b"\x07\x00")  # as the store of a version that does not meet
        assert other.recv(9) == b""
    thread.join()
    assert failures == [True]
    assert "rank 0 refuses a connection of another program or version of plsc" in caplog.text


def test_a_port_that_another_program_uses_is_named():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        first, second = meet(["", ""], hang_seconds=3, port=port)
    line = f"UserError: rank 0 cannot listen at 127.0.0.1:{port}: Address already in use; start the ranks"
    assert first.startswith(line)
    line = f"rank 0 at 127.0.0.1:{port} did not connect within 3 s (Global.hang_seconds)"
    assert second == f"LostRankError: {line}"


TELL = """
import os, sys
os.environ["PADDLE_RANK_IN_NODE"] = "0"
from plsc.cli import main
sys.exit(main(["train", "-c", sys.argv[2]]))
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_mistake_before_the_ranks_meet_ends_those_of_other_machines(first):
    """One machine lacks the config; the rank of the other waits with its problem, "" for none."""
    programs = [TELL, MEET] if first else [MEET, TELL]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    streams = {"stdout": -1, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    env = {"PADDLE_MASTER": f"127.0.0.1:{port}", "PADDLE_TRAINERS_NUM": "2", "PADDLE_LOCAL_SIZE": "1"}
    env |= {"MASTER_PORT": None, "MASTER_ADDR": None}
    started = [
        start_python(
            *("-c", program, 20, "" if program == MEET else "missing.yaml"),
            env={**env, "PADDLE_TRAINER_ID": str(rank)},
            **streams,
        )
        for rank, program in enumerate(programs)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in started]
    fails = 0 if first else 1
    assert said[fails] == "ERROR missing.yaml: no such config file"
    assert said[1 - fails] == f"UserError: rank {fails}: missing.yaml: no such config file"
    assert started[fails].returncode == 2
