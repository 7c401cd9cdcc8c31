"""The kit's benchmark: it plants faults in a small network's conversions and counts those that are named."""

import contextlib
import io
import json

import pytest

from benchmarks import __main__ as benchmark
from plsc.entry import Entry
from plsc.utils.logging import setup
from tests.apps.export.test_export_formats import needs_onnx
from tests.helpers.tiny_runs import TINY

pytestmark = pytest.mark.slow


@needs_onnx
def test_faults_are_planted_and_counted(tmp_path, capsys):
    with contextlib.redirect_stdout(io.StringIO()):
        Entry(TINY, [f"Global.output_dir={tmp_path / 'run'}"]).train()
    setup()  # closes train.log
    numbers = tmp_path / "numbers.json"
    assert benchmark.main(["kit", str(tmp_path / "run"), "--json", str(numbers)]) == 0
    rows = json.loads(numbers.read_text())["conversions"]
    assert len(rows) == 20 and len({row["conversion"] for row in rows}) == 20
    right = [row for row in rows if row["verdict"].startswith(row["expected"])]
    # A network of 12 steps on noise does not tell all faults apart, but these need no good one.
    sure = {"ONNX", "Paddle Inference", "mirrored", "rows in another order", "lengths left as they are"}
    assert sure <= {row["conversion"] for row in right}
    faults = [row for row in rows if row["expected"] != "pass"]
    named = sum(row in right for row in faults)
    assert f"faults named: {named} of {len(faults)}\n" in capsys.readouterr().out
