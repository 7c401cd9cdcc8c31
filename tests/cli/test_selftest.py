"""plsc selftest: passes here, on one process and on two ranks; and a broken line fails the part that it
belongs to, no other."""

from pathlib import Path

import numpy as np
import pytest
from plsc.cli.selftest.parts import PARTS, Worst, relative
from plsc.cli.selftest.selftest import Row, join_ranks, launch_parts, run_parts

from plsc import cli
from plsc.checkpoint import tensorfile
from plsc.heads import backends, step
from tests.helpers.launch import launch

HEADS = {part for part in PARTS if part.startswith("head ")}
SAMPLED = {"head before a training", "Partial FC, a rate of 0.3", "Partial FC, every class"}


def failed(rows):
    return {row.part for row in rows if not row.passed}


def test_passes_on_this_process_and_shows_a_table(capsys):
    assert cli.main(["selftest", "--ranks", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said[5 : 5 + len(PARTS)]] == list(PARTS)
    assert all(" pass " in line for line in said[5 : 5 + len(PARTS)]) and said[-1] == "all parts passed"


@pytest.mark.usefixtures("launches_are_forked")
def test_passes_on_two_ranks(tmp_path):
    rows = launch_parts(list(PARTS), 2, "cpu", tmp_path)
    assert [row.part for row in rows] == list(PARTS) and not failed(rows), rows
    assert any(row.worst for row in rows), "two ranks round differently from float64"


@pytest.mark.slow
def test_a_line_broken_on_two_ranks_fails_its_parts(tmp_path):
    script = Path(__file__).parents[1] / "distributed" / "run_broken.py"
    assert launch(script, 2, tmp_path).stdout.count("each broken line was found") == 2


def no_one_hot(monkeypatch):
    for kind in (backends.PaddleBackend, backends.KernelBackend):
        backward = kind.backward
        monkeypatch.setattr(
            kind,
            "backward",
            lambda self, lse_N, dtarget_P, *rest, backward=backward: backward(
                self, lse_N, None if dtarget_P is None else dtarget_P * 0, *rest
            ),
        )


def no_positives(monkeypatch):
    choose = step.choose_classes
    monkeypatch.setattr(step, "choose_classes", lambda positives, *rest: choose(positives[:0], *rest))


def rows_of_another_shard(monkeypatch):
    read = tensorfile.TensorFile.read_rows
    monkeypatch.setattr(
        tensorfile.TensorFile, "read_rows", lambda self, name, start, out: read(self, name, 0, out)
    )


@pytest.mark.parametrize(
    "break_it,parts",
    [
        (no_one_hot, HEADS | {"Partial FC, a rate of 0.3"}),
        (no_positives, SAMPLED),
        (rows_of_another_shard, {"checkpoint resharded"}),
    ],
)
def test_a_broken_line_fails_its_parts_and_the_others_still_run(break_it, parts, monkeypatch):
    break_it(monkeypatch)
    rows = run_parts(list(PARTS), None)
    assert failed(rows) == parts and len(rows) == len(PARTS)


def test_a_part_that_raises_says_what(monkeypatch, capsys):
    def raises():
        raise RuntimeError("two\nlines")

    monkeypatch.setitem(PARTS, "data parallel", (raises, 1e-6))
    assert (
        cli.main(["selftest", "--ranks", "1", "--device", "cpu", "--parts", "data parallel", "_c_allgather"])
        == 1
    )
    said = capsys.readouterr().out
    assert "data parallel  FAIL    RuntimeError: two lines  1e-06" in said
    assert "FAILED: data parallel (1 rank on cpu" in said and "_c_allgather   pass" in said


def test_what_is_not_a_number_is_the_worst():
    worst = Worst()
    worst.note("a", relative(np.array([np.nan]), np.array([1.0])))
    assert worst["a"] == np.inf and not Row("_c_allgather", worst["a"], "a").passed


def ended(part, worst=0.0, failure="", time=0.0):
    return [part, {"part": part, "worst": worst, "of": "x", "failure": failure, "time": time}]


A, B, C = list(PARTS)[:3]


def test_ranks_are_joined_to_the_worst():
    rows = join_ranks([A, B], [ended(A, 1e-9) + ended(B), ended(A, 2e-9) + ended(B, 1.0)])
    assert [(row.part, row.worst, row.passed) for row in rows] == [(A, 2e-9, True), (B, 1.0, False)]


@pytest.mark.parametrize(
    "lines,want",
    [
        ([ended(A) + [B], ended(A) + ended(B, failure="boom", time=5)], [(A, ""), (B, "rank 1: boom")]),
        (
            [ended(A, failure="it left", time=9), ended(A, failure="boom", time=5)],
            [(A, "rank 1: boom")],
        ),  # the first
        ([ended(A) + [B], ended(A) + ended(B)], [(A, ""), (B, "rank 0 ended in it")]),
        ([ended(A), ended(A) + ended(B) + [C]], [(A, "")]),
        ([[], []], []),
    ],
)
def test_joining_stops_at_the_part_that_ended_a_rank(lines, want):
    rows = join_ranks([A, B, C], lines)
    assert [(row.part, row.failure) for row in rows] == want


def test_a_launch_that_does_not_start_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.distributed.launcher.launch", lambda *_, **__: 7)
    rows = launch_parts([A, B], 2, "cpu", tmp_path)
    assert [row.failure for row in rows] == ["the launch of 2 ranks ended with exit code 7 before it"] * 2


def test_wrong_arguments(capsys):
    with pytest.raises(SystemExit):
        cli.main(["selftest", "--ranks", "0"])
    assert "--ranks must be at least 1 (got 0)" in capsys.readouterr().err
