"""The collectives' benchmark: a row for each on two ranks, and one process is refused."""

import json

import pytest

from benchmarks import __main__ as benchmark
from plsc.errors import UserError

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("launches_are_forked")
def test_two_ranks_have_a_row_for_each_collective_and_size(tmp_path, capsys):
    files = ["--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png")]
    assert benchmark.main(["collectives", "--kb", "1", "3", "--runs", "2", *files]) == 0
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [(row["what"], row["kb"]) for row in rows] == [
        ("count", 0),
        *[(what, kb) for what in ("sum", "gather", "reduce-scatter") for kb in (1, 3)],
    ]
    assert all(row["ranks"] == 2 and row["seconds"] > 0 for row in rows)
    assert "collective      ranks" in capsys.readouterr().out
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_one_process_has_nobody_to_talk_to():
    with pytest.raises(UserError, match=r"--ranks: one process has no collectives \(got 1\), give 2 or more"):
        benchmark.main(["collectives", "--ranks", "1"])
