"""Who failed first, by the files that ranks leave."""

import json
import os

import pytest

from plsc.apps.restart.postmortem import Failure, Watch

GLOO = "ExternalError: gloo/transport/tcp/pair.cc:584] Connection closed by peer"


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path / "errors", tmp_path / "log")


def write(folder, rank, kind, **record):
    (folder / f"errors/rank{rank}.{kind}").write_text(json.dumps(record))


def raised(folder, rank, time, message, type_="RuntimeError", user=False, step=3):
    write(folder, rank, "json", time=time, step=step, type=type_, message=message, user=user, traceback="T\n")


def test_the_earliest_exception_that_is_no_lost_connection_counts(watch, tmp_path):
    raised(tmp_path, 0, 1.0, GLOO)
    raised(tmp_path, 2, 3.0, "late")
    raised(tmp_path, 1, 2.0, "a defect")
    assert watch.failure(1, []) == Failure("rank 1 failed in step 4: RuntimeError: a defect", False, "T\n")
    watch.keep_tracebacks(tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text().count("failed in step 4\nT\n") == 3


def test_a_mistake_is_told_as_it_is(watch, tmp_path):
    raised(tmp_path, 1, 2.0, "a.yaml:3: one\na.yaml:4: two", "UserError", user=True, step=0)
    assert watch.failure(2, []) == Failure("a.yaml:3: one\na.yaml:4: two", user=True)
    raised(tmp_path, 1, 2.0, "labels.txt:17: label 1000", "UserError", user=True)
    assert watch.failure(2, []).text == "rank 1, step 4: labels.txt:17: label 1000"


def test_of_ranks_that_vanished_the_first_counts(watch, tmp_path):
    raised(tmp_path, 0, 1.0, GLOO)
    for rank in (1, 2):
        write(tmp_path, rank, "alive", pid=os.getpid(), step=5)
        if rank == 1:
            assert watch.look() == [os.getpid()]
    write(tmp_path, 2, "alive", pid=os.getpid(), step=6)
    watch.look()
    write(tmp_path, 1, "alive", pid=2**22 + 1, step=5)  # no process
    watch.look()
    assert watch.failure(1, []).text == "rank 1 was killed, or did not answer, in step 6"
    said = ["Container rank 1 status failed cmd ['python'] code -9 log out/log/workerlog.1\n"]
    assert watch.failure(1, said).text == "rank 1 was killed (signal 9) in step 6"
    (tmp_path / "log").mkdir()
    (tmp_path / "log/workerlog.1").write_text("step 5\nTimeout (0:10:00)!\nThread 0x1\n")
    expected = (
        f"rank 1 hung for 0:10:00 (Global.hang_seconds) in step 6; its stack is in {tmp_path}/log/workerlog.1"
    )
    assert watch.failure(1, []).text == expected


def test_a_launcher_that_dies_before_the_ranks_begin_is_an_answer(watch):
    assert watch.failure(-9, []).text == "the launcher was killed (signal 9)"
    assert (
        watch.failure(1, ["a\n", "AssertionError: b\n"]).text
        == "the launcher ended with 1: AssertionError: b"
    )
    assert watch.failure(2, []) == Failure("", user=True)


def test_files_of_an_earlier_start_are_deleted(watch, tmp_path):
    raised(tmp_path, 0, 1.0, "old")
    assert not watch.is_clean()
    later = Watch(tmp_path / "errors", tmp_path / "log")
    assert later.is_clean()
    later.close()
    assert not (tmp_path / "errors").exists()
