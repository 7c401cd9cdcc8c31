"""The benchmark of saving: what it writes is all there in memory, both ways write it, and its numbers add up."""

import json

import numpy as np
import pytest

from plsc import benchmark, benchmark_save, checkpoint


@pytest.mark.parametrize("bank", ["device", "host"])
def test_the_numbers_add_up(tmp_path, capsys, bank):
    target = tmp_path / "save.json"
    (tmp_path / "disk").mkdir()
    command = [
        "save",
        "--classes",
        "70000",
        "--dim",
        "8",
        "--bank",
        bank,
        "--runs",
        "3",
        "--json",
        str(target),
    ]
    assert benchmark.main([*command, "--folder", str(tmp_path / "disk")]) == 0
    found = json.loads(target.read_text())
    assert found["megabytes"] == pytest.approx(2 * 70_000 * 8 * 4 / 1e6)
    plain, pause = np.median(found["plain_seconds"]), np.median(found["save_seconds"])
    assert len(found["plain_seconds"]) == len(found["save_seconds"]) == 3 and found["pause_seconds"] == pause
    assert found["save_mb_per_second"] == pytest.approx(found["megabytes"] / pause)
    assert found["save_over_plain_speed"] == pytest.approx(plain / pause)
    assert capsys.readouterr().out.startswith(f"70,000 classes x 8, {bank} bank, 4 MB, medians of 3 runs")
    assert not list((tmp_path / "disk").iterdir())


def test_both_write_what_the_bank_holds(tmp_path):
    state = benchmark_save.filled("host", 11, 4).state()
    assert np.array_equal(state["momentum"], -state["centres"]) and state["centres"].all()
    saved = checkpoint.Checkpoint.open(benchmark_save._save(tmp_path, state))
    assert np.array_equal(saved.rows("momentum", 0, 11), state["momentum"])
    plain = benchmark_save._plain(tmp_path, state).read_bytes()
    assert plain == (saved.path / "head-00000-of-00001.safetensors").read_bytes()
