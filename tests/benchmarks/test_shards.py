"""The benchmark of tar shards: the batches are compared, and the numbers add up."""

import json

import pytest

from benchmarks import __main__ as benchmark

pytestmark = pytest.mark.slow


def test_the_numbers_add_up(tmp_path, capsys):
    sizes = [
        "--images",
        "300",
        "--size",
        "16",
        "--batch",
        "4",
        "--runs",
        "1",
        "--shards",
        "3",
        "--members",
        "1000",
    ]
    assert benchmark.main(["shards", *sizes, "--json", str(tmp_path / "shards.json")]) == 0
    found = json.loads((tmp_path / "shards.json").read_text())
    assert found["identical"] and found["images"] == 300 and found["members"] == 1000
    for key in ("reads", "batches"):
        assert found[f"{key}_ratio"] == pytest.approx(found[f"{key}_shards"] / found[f"{key}_rec"])
    assert found["index_bytes"] / 1000 == pytest.approx(48, rel=0.1), "bytes of a picture in the index"
    assert "batches: the same bit for bit" in capsys.readouterr().out
