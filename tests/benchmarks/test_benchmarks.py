"""The benchmarks: each part runs, work is timed in turn, the gauge shows memory."""

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import machine, measure
from plsc.cli.mistakes import without_traceback
from tests.helpers.tiny_runs import TINY

pytestmark = pytest.mark.slow


def test_work_is_timed_in_turn_and_the_median_counts(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def work(name, seconds, factor):
        def run():
            order.append(name)
            clock[0] += seconds.pop(0)
            return factor

        return run

    a, b = work("a", [9.0, 1.0, 2.0], None), work("b", [1.0, 1.0, 5.0], 3.0)
    assert measure.alternate(3, {"a": a, "b": b}) == {"a": 2.0, "b": 3.0}
    assert order == ["a", "b"] * 3


def test_the_device_has_finished_whenever_the_clock_is_read(monkeypatch):
    """Imitate a GPU for which Python never waits. Without waiting, the work would seem to take no time."""
    clock, queued = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def finish():
        clock[0] += sum(queued)
        queued.clear()

    queued.append(100.0)  # of something before, which must not count
    assert measure.alternate(3, {"a": lambda: queued.append(2.0)}, finish) == {"a": 2.0}


def test_the_gauge_sees_memory_come_and_its_peak_go():
    size = 64 * 2**20
    measure.reset_resident_peak()
    before = measure.resident_bytes()
    taken = mmap.mmap(-1, size)  # from the system: an array may get what earlier tests left to the allocator
    np.frombuffer(taken, np.uint8)[:] = 1
    assert measure.resident_bytes() - before > 0.9 * size
    taken.close()
    assert measure.resident_bytes("VmHWM") - before > 0.9 * size
    measure.reset_resident_peak()
    assert measure.resident_bytes("VmHWM") - before < 0.5 * size


def test_circumstances_can_be_written_and_reported():
    found = machine.describe_machine()
    assert json.loads(json.dumps(found)) == found and found["processors"] > 0 and found["paddle"]
    assert f"Paddle {found['paddle']}, commit {found['commit']}" in machine.format_machine(found)


PARTS = {
    "head": [
        *["--classes", "300", "--dim", "16", "--batch", "8", "--threads", "1"],
        *["-o", "Head.name=dist_softmax", "Optimizer.name=AdamW"],  # the dense head needs neither
    ],
    "loader": ["--images", "30", "--size", "16", "--batch", "8", "--workers", "1", "2"],
    "save": [
        "--classes",
        "7000",
        "--dim",
        "8",
        "--bank",
        "disk",
        "--bank-dtype",
        "bfloat16",
        "--folder",
        ".",
    ],
    "eval": [
        *["--images", "900", "--templates", "60", "--pairs", "3000", "--dim", "16"],
        *["--gallery", "300", "--probes", "20", "--threads", "1"],
    ],
    "collectives": ["--kb", "1", "3"],
    "end2end": ["-c", str(TINY), "--ranks", "1", "--steps", "6"],
}


@pytest.mark.usefixtures("launches_are_forked")
@pytest.mark.parametrize("part", PARTS)
def test_a_part_measures_and_writes_its_numbers(part, capsys):
    """In a folder of the test's own."""
    assert benchmark.main([part, *PARTS[part], "--runs", "2", "--json", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text()) and capsys.readouterr().out


def test_the_ranks_of_the_head_have_equal_batches(capsys):
    assert without_traceback(lambda: benchmark.main(["head", "--batch", "32", "--ranks", "1", "3"])) == 2
    assert capsys.readouterr().err == "ERROR --batch: must be a multiple of --ranks 3 (got 32)\n"


def test_a_mistake_in_the_overrides_is_one_line_before_anything_is_measured(capsys):
    assert without_traceback(lambda: benchmark.main(["head", "-o", "Head.scal=3"])) == 2
    assert capsys.readouterr().err == "ERROR -o Head.scal=3: Head.scal: unknown key, did you mean 'scale'?\n"


def test_another_clone_is_imported_although_the_current_folder_has_the_package(tmp_path, monkeypatch):
    for place in ("here", "clone"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "measured.py").write_text(f"place = {place!r}")
    monkeypatch.chdir(tmp_path / "here")
    code = measure.from_clone(str(tmp_path / "clone"), "import measured; print(measured.place)")
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "clone\n"
