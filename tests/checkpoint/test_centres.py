"""Centres alone: the files are what numpy and the safetensors package read."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from plsc.checkpoint import reshard
from plsc.checkpoint.centres import export_centres
from plsc.cli.ckpt import inspect
from plsc.errors import UserError
from plsc.utils.bfloat16 import float32_of, nearest
from tests.helpers.checkpoints import Bits, content, flip, save_ranks


@pytest.fixture
def saved(tmp_path):
    everything = content(1, classes=53)
    everything["head"]["centres"][4] = 0
    (folder, *_) = save_ranks(tmp_path, 1, everything, 3, classes=[f"ü {number}" for number in range(53)])
    return str(folder), everything["head"]["centres"]


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors"])
@pytest.mark.parametrize("block", [40, 1 << 20])
def test_other_programs_read_them(saved, tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(reshard, "BLOCK", block)
    folder, centres = saved
    said = export_centres(folder, str(tmp_path / name), names=True)
    found = np.load(tmp_path / name) if name.endswith(".npy") else load_file(tmp_path / name)
    found = found if name.endswith(".npy") else found.pop("centres")
    assert found.dtype == np.float32 and np.array_equal(found, centres)
    assert json.loads((tmp_path / f"{name}.names.json").read_text()) == [f"ü {n}" for n in range(53)]
    assert said == f"{tmp_path / name}: 53 centres of 4 numbers, names in {tmp_path / name}.names.json"
    assert not list(tmp_path.glob("*.tmp"))


def test_the_npy_file_is_numpys_own(saved, tmp_path):
    export_centres(saved[0], str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", saved[1])
    assert len((tmp_path / "a.npy").read_bytes()) == len((tmp_path / "b.npy").read_bytes())


def test_of_length_one(saved, tmp_path):
    folder, centres = saved
    export_centres(folder, str(tmp_path / "a.npy"), normalise=True)
    found = np.load(tmp_path / "a.npy")
    for row, centre in zip(found, centres.astype(np.float64)):
        length = np.sqrt((centre**2).sum())
        assert np.array_equal(row, (centre / length if length else centre).astype(np.float32))
    assert not found[4].any()


def refusal(*args, **options):
    with pytest.raises(UserError) as raised:
        export_centres(*map(str, args), **options)
    return str(raised.value)


def test_refusals(saved, tmp_path, monkeypatch):
    folder, _ = saved
    said = refusal(folder, tmp_path / "a.txt")
    assert said == f"--output: must end in .safetensors or .npy (got '{tmp_path}/a.txt')"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=53 * 4 * 4 - 1))
    said = refusal(folder, tmp_path / "b.npy")
    assert said == (
        f"{tmp_path}/b.npy: no space for it (need 0.000848 MB, free 0.000847 MB); free some space, or name a target on another disk"
    )
    assert not list(tmp_path.glob("b.npy*"))
    monkeypatch.undo()
    (tmp_path / "a.npy").write_text("mine")
    said = refusal(folder, tmp_path / "a.npy")
    assert said == f"{tmp_path}/a.npy: is there already, and nothing is overwritten; name another file"
    said = refusal(folder, tmp_path / "none" / "a.npy")
    assert said == f"{tmp_path}/none/a.npy: cannot be written: No such file or directory"
    (without, *_) = save_ranks(tmp_path / "b", 1, content(0), 1)
    said = refusal(without, tmp_path / "b.npy", names=True)
    assert said == f"{without}: has no names of classes; leave --names out, or give it some first"
    flip(without / "head-00000-of-00001.safetensors")
    assert refusal(without, tmp_path / "b.npy").endswith("00001.safetensors: fails its checksum")
    assert (tmp_path / "a.npy").read_text() == "mine" and not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize("normalise", [False, True])
def test_bfloat16_goes_out_as_float32(tmp_path, capsys, normalise):
    everything = content(1, classes=53)
    bits = nearest(everything["head"]["centres"])
    everything["head"] = {"centres": Bits(bits), "momentum": Bits(bits)}
    folder = str(save_ranks(tmp_path, 1, everything, 1)[0])
    assert inspect(folder)["head"]["centres"] == ["bfloat16", 53, 4]
    for name in ("a.npy", "a.safetensors"):
        export_centres(folder, str(tmp_path / name), normalise=normalise)
    found, want = np.load(tmp_path / "a.npy"), float32_of(bits)
    if normalise:
        want = want / np.linalg.norm(want.astype(np.float64), axis=1, keepdims=True)
    assert found.dtype == np.float32 and np.array_equal(found, want.astype(np.float32))
    assert np.array_equal(load_file(tmp_path / "a.safetensors")["centres"], found)
