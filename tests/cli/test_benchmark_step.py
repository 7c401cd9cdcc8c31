"""The benchmark of steps: the cases that it measures, in this process, and the table."""

import json

from plsc.cli.commands.benchmark import benchmark, step


def test_the_cases_and_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        step.launcher, "run_ranks", lambda asked, ranks, logs: benchmark.main(asked[1:]) or ""
    )
    sizes = ["--name", "FaceViT_tiny", "--size", "28", "--batch", "2", "--accumulate", "2", "--classes", "20"]
    target = tmp_path / "step.json"
    words = [*sizes, "--dim", "8", "--runs", "1", "--threads", "1", "--json", str(target)]
    assert benchmark.main(["step", *words]) == 0
    found = json.loads(target.read_text())["rows"]
    cases = [(row["batch"], row["accumulate"], row["recompute"]) for row in found]
    assert cases == [(2, 1, False), (2, 2, False), (4, 1, False), (2, 1, True), (2, 2, True)]
    # Of all cases in this one process, which has memory of other tests to reuse, the peaks say nothing.
    assert all(isinstance(row["peak_bytes"], int) and row["seconds"] > 0 for row in found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FaceViT_tiny, ") and len(lines[-5:]) == 5
    assert lines[-5].split()[:4] == ["1", "x", "2", "no"] and lines[-1].split()[:4] == ["2", "x", "2", "yes"]
