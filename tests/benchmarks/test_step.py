"""The benchmark of steps: the cases that it measures, in this process, and the table."""

import json

import pytest

from benchmarks import __main__ as benchmark
from benchmarks import measure, step

pytestmark = pytest.mark.slow


def test_the_cases_and_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(step, "run_ranks", lambda asked, ranks, logs: benchmark.main(asked) or "")
    # All cases run in this one process, which has memory of other tests to reuse: its own peaks say nothing.
    memory = {"VmRSS": 100 << 20, "VmHWM": 150 << 20}
    monkeypatch.setattr(measure, "resident_bytes", lambda field="VmRSS": memory[field])
    sizes = ["--name", "FaceViT_tiny", "--size", "28", "--batch", "2", "--accumulate", "2", "--classes", "20"]
    target = tmp_path / "step.json"
    words = [*sizes, "--dim", "8", "--runs", "1", "--threads", "1", "--json", str(target)]
    average = "Global.ema=0.99"
    assert benchmark.main(["step", *words, "--also", average]) == 0
    found = json.loads(target.read_text())["rows"]
    cases = [(row["batch"], row["accumulate"], row["key"]) for row in found]
    again = "Model.recompute=true"
    assert cases == [(2, 1, ""), (2, 2, ""), (4, 1, ""), (2, 1, again), (2, 2, again), (2, 1, average)]
    assert all(row["peak_bytes"] == 50 << 20 and row["seconds"] > 0 for row in found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FaceViT_tiny, ")
    assert lines[-5].split()[:3] == ["2", "x", "2"] and lines[-2].split()[:4] == ["2", "x", "2", again]
