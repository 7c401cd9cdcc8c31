"""The gallery's benchmark: it compares the answers itself, and leaves nothing."""

import json

import pytest

from benchmarks import __main__ as benchmark

pytestmark = pytest.mark.slow


def test_a_small_gallery_is_measured(tmp_path, capsys):
    words = ["--rows", "300", "--size", "8", "--queries", "30", "--runs", "1", "--folder", str(tmp_path)]
    assert benchmark.main(["gallery", *words, "--json", str(tmp_path / "numbers.json")]) == 0
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert (
        numbers["rows"] == 300
        and min(numbers[f"{what}_seconds"] for what in ("build", "open", "add", "single")) > 0
    )
    assert "300 x 8\nbuild " in capsys.readouterr().out and [path.name for path in tmp_path.iterdir()] == [
        "numbers.json"
    ]
