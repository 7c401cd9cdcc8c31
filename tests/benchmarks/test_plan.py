"""The check of the planner: planned and measured stand side by side, and their difference is told."""

import json

import pytest

from benchmarks import __main__ as benchmark
from benchmarks import plan

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("launches_are_forked")
def test_a_case_is_planned_and_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan, "CASES", [(3000, 16, 8, 1, 0.5, ["Head.bank=host"])])
    target = tmp_path / "plan.json"
    assert benchmark.main(["plan", "--runs", "2", "--seconds", "1", "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert (row["classes"], row["rate"], row["override"]) == (3000, 0.5, ["Head.bank=host"])
    assert min(row[key] for key in ("planned_seconds", "seconds", "planned_bytes", "bytes")) > 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"{row['planned_seconds'] / row['seconds'] - 1:+.0%}" in last and "Head.bank=host" in last


def test_the_cases_differ_in_all_that_matters():
    for values in zip(*(map(str, case) for case in plan.CASES)):
        assert len(set(values)) > 1
    assert len(plan.CASES) == 7
