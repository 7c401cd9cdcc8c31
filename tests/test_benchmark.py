"""The benchmark: its numbers add up, clock and memory gauge show what they should, the head stays in its budget."""

import json
import mmap

import numpy as np
import pytest

from plsc import benchmark
from plsc.heads.blocks import plan_blocks
from tests.launch import ROOT, run_python


def test_the_numbers_add_up(tmp_path, capsys):
    sizes = ["--classes", "300", "--dim", "16", "--batch", "8", "--budget-mb", "0.05", "--runs", "2"]
    assert benchmark.main(["head", *sizes, "--threads", "1", "--json", str(tmp_path / "head.json")]) == 0
    found = json.loads((tmp_path / "head.json").read_text())
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(printed) == list(found) and printed["classes"] == "300"
    asked = {"classes": 300, "dim": 16, "batch": 8, "budget_mb": 0.05, "threads": 1, "runs": 2}
    assert found.items() >= asked.items()
    bank, budget = 3 * 4 * 300 * 16, int(0.05 * 2**20)
    block, kept = plan_blocks(8, 300, 16, 1, budget)
    assert (found["block"], found["exponentials"]) == (block, "kept" if kept else "recomputed")
    assert found["bank_mb"] * 2**20 == bank
    assert found["allowed_mb"] * 2**20 == pytest.approx(1.1 * (bank + budget))
    assert found["step_over_products"] == found["step_seconds"] / found["products_seconds"] > 0


def test_the_head_stays_within_bank_and_budget(tmp_path):
    """In a new process, where no earlier test's memory is reused."""
    sizes = ["--classes", "200000", "--dim", "128", "--batch", "64", "--budget-mb", "16", "--runs", "1"]
    run_python(ROOT / "tools/benchmark.py", "head", *sizes, "--json", "head.json", cwd=tmp_path)
    found = json.loads((tmp_path / "head.json").read_text())
    assert found["bank_mb"] < found["peak_mb"] < found["allowed_mb"]
    assert found["allowed_mb"] == pytest.approx(1.1 * (found["bank_mb"] + 16))


def test_work_is_timed_in_turn_and_the_median_counts(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])

    def work(name, seconds, factor):
        def run():
            order.append(name)
            clock[0] += seconds.pop(0)
            return factor

        return run

    a, b = work("a", [9.0, 1.0, 2.0], None), work("b", [1.0, 1.0, 5.0], 3.0)
    assert benchmark.alternate(3, {"a": a, "b": b}) == {"a": 2.0, "b": 3.0}
    assert order == ["a", "b"] * 3


def test_the_gauge_sees_memory_come_and_its_peak_go():
    size = 64 * 2**20
    benchmark.reset_peak()
    before = benchmark.resident_bytes()
    taken = mmap.mmap(-1, size)  # from the system: an array may get what earlier tests left to the allocator
    np.frombuffer(taken, np.uint8)[:] = 1
    assert benchmark.resident_bytes() - before > 0.9 * size
    taken.close()
    assert benchmark.resident_bytes("VmHWM") - before > 0.9 * size
    benchmark.reset_peak()
    assert benchmark.resident_bytes("VmHWM") - before < 0.5 * size
