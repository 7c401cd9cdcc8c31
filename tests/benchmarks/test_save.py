"""The benchmark of saving: what it writes is all there in memory, both ways write it, and its numbers add
up."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import save
from plsc.checkpoint import store
from plsc.errors import UserError
from plsc.utils.bfloat16 import float32_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "bank, dtype", [("device", "float32"), ("host", "float32"), ("disk", "float32"), ("disk", "bfloat16")]
)
def test_the_numbers_add_up(tmp_path, capsys, bank, dtype):
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
        "--bank-dtype",
        dtype,
        "--runs",
        "3",
        "--json",
        str(target),
    ]
    assert benchmark.main([*command, "--folder", str(tmp_path / "disk")]) == 0
    found = json.loads(target.read_text())
    assert found["megabytes"] == pytest.approx(2 * 70_000 * 8 * {"float32": 4, "bfloat16": 2}[dtype] / 1e6)
    plain, pause = np.median(found["plain_seconds"]), np.median(found["save_seconds"])
    assert len(found["plain_seconds"]) == len(found["save_seconds"]) == 3 and found["pause_seconds"] == pause
    assert found["save_mb_per_second"] == pytest.approx(found["megabytes"] / pause)
    assert found["save_over_plain_speed"] == pytest.approx(plain / pause)
    size = f"{found['megabytes']:.0f} MB"
    said = f"70,000 classes x 8, bank {bank}, {dtype}, {size}, medians of 3 runs"
    assert capsys.readouterr().out.startswith(said)
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bank", ["host", "disk"])
def test_both_write_what_the_bank_holds(tmp_path, bank, dtype):
    made = save.filled(bank, dtype, 11, 4, tmp_path).state()
    state = {name: np.array(rows[:]) for name, rows in made.items()}
    assert np.array_equal(float32_of(state["momentum"]), -float32_of(state["centres"]))
    assert state["centres"].all() and state["centres"].dtype == (
        np.float32 if dtype == "float32" else np.uint16
    )
    saved = store.Checkpoint.open(save._save(tmp_path, made))
    assert np.array_equal(saved.rows("momentum", 0, 11), state["momentum"])
    plain = save._plain(tmp_path, made).read_bytes()
    assert plain == (saved.path / "head-00000-of-00001.safetensors").read_bytes()


def test_the_device_has_no_bfloat16():
    with pytest.raises(UserError, match=r"^--bank-dtype: only with --bank host or disk$"):
        benchmark.main(["save", "--bank-dtype", "bfloat16"])
