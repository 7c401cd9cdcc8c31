"""plsc selftest passes here on one process and on two ranks. A broken line fails the part to which it
belongs."""

import numpy as np
import pytest

from plsc import cli
from plsc.cli import selftest
from plsc.heads import step


def test_passes_on_this_process_and_shows_a_table(capsys):
    assert cli.main(["selftest", "--ranks", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said[5:10]] == list(selftest.PARTS)
    assert all(" pass " in line for line in said[5:10]) and said[-1] == "all parts passed"


@pytest.mark.usefixtures("launches_are_forked")
def test_passes_on_two_ranks(capsys):
    assert cli.main(["selftest", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "2 ranks on cpu" in said and said.count(" pass ") == 10 and "FAIL" not in said


def test_a_launch_that_fails_is_reported(capsys, monkeypatch):
    kept = []

    def launch(asked, ranks, logs, print_lines):
        kept.append(logs)
        for rank in range(ranks):
            (logs / f"workerlog.{rank}").write_text(f"rank {rank} fails\n")
        return {0: 0, 1: None}

    monkeypatch.setattr("plsc.distributed.launcher.launch", launch)
    assert cli.main(["selftest", "--device", "cpu"]) == 1
    assert "FAILED on 2 ranks; the others say:\nrank 1 fails\n" in capsys.readouterr().out
    assert not kept[0].exists()


@pytest.mark.parametrize(
    "module, name, broken, part",
    [
        (step, "merge_classes", lambda drawn, positives: drawn, "head against float64"),
        (
            selftest,
            "PARTS",
            {**selftest.PARTS, "data parallel": (lambda: np.nan, 1.0)},
            "data parallel",
        ),
    ],
)
def test_a_broken_line_fails_its_part(module, name, broken, part, monkeypatch, capsys):
    monkeypatch.setattr(module, name, broken)
    assert cli.main(["selftest", "--ranks", "1", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert said.count(" FAIL ") == 1 and said.endswith("FAILED\n")
    assert next(line for line in said.splitlines() if " FAIL " in line).startswith(part)
