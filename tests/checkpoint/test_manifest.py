"""manifest.json: no flip of a bit goes unseen, and a crafted one is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import re

import numpy as np
import pytest

import plsc.checkpoint.manifest
from plsc.checkpoint.manifest import DamagedError, read_manifest, seal
from plsc.checkpoint.store import Checkpoint, find
from plsc.errors import UserError
from tests.helpers.checkpoints import content, reseal, save_one, save_ranks
from tests.helpers.refusals import refusal

FILE = {"bytes": 8, "crc32": "00000000"}
KNOWN = {"shape": [1, 32, 32], "channels": "grey", "mean": 127.5, "scale": 1 / 127.5}
GOOD = {
    "format": 8,
    "plsc": "0.1.0",
    "step": 120,
    "epoch": 2,
    "world_size": 2,
    "num_classes": 10,
    "row_width": 4,
    "heads": [
        {"file": "head-00000-of-00002.safetensors", "start": 0, "stop": 5},
        {"file": "head-00001-of-00002.safetensors", "start": 5, "stop": 10},
    ],
    "files": {
        "backbone.safetensors": FILE,
        "optimizer.safetensors": FILE,
        "head-00000-of-00002.safetensors": FILE,
        "head-00001-of-00002.safetensors": FILE,
    },
    "preprocessing": KNOWN,
    "weights": "backbone",
    "state": {"evaluation": {"threshold": 0.1}, "other": {"rng": 2**100}},
    "config": {"Global": {"seed": 0}, "Parts": []},
}


def read(folder, fields):
    path = folder / "manifest.json"
    path.write_bytes(seal(json.dumps(fields, indent=1)[1:].encode()))
    return read_manifest(path)


def test_round_trip(tmp_path):
    preprocessing = {**KNOWN, "aligned": None}
    assert read(tmp_path, GOOD).model_dump(mode="json") == {**GOOD, "preprocessing": preprocessing}
    assert json.loads((tmp_path / "manifest.json").read_text()).items() > GOOD.items()  # for any reader


def test_absent(tmp_path):
    said = refusal(read_manifest, tmp_path / "manifest.json", kind=DamagedError)
    assert "manifest.json: does not exist; this is not a checkpoint, or it was " in said


HEADS, FILES = GOOD["heads"], GOOD["files"]
HOSTILE = {
    r"files.../../etc/passwd.\[key\]: String should match pattern": {
        "files": {**FILES, "../../etc/passwd": FILE}
    },
    "does not list '../x' among its files": {"heads": [{"file": "../x", "start": 0, "stop": 10}]},
    "does not list 'backbone.safetensors'": {"files": {n: FILE for n in FILES if "backbone" not in n}},
    "does not list 'average.safetensors'": {"weights": "average"},
    r"do not cover the classes \[0, 10\)": {"heads": HEADS[:1]},
    r"classes \[0, 10\)": {"heads": []},
    "step: Input should be greater than or equal to 0": {"step": -1},
    "state.margin: Input should be an object": {"state": {"margin": [1]}},
    "preprocessing.shape: Input should be a valid array": {"preprocessing": {**KNOWN, "shape": 32}},
    "config.Head": {"config": {"Head": 3}},
    "more: Extra inputs are not permitted": {"more": 1},
    "Invalid JSON: recursion limit": {"state": "DEEP"},
}


@pytest.mark.parametrize("message", HOSTILE)
def test_crafted_manifests_are_refused_in_one_line(tmp_path, message):
    text = json.dumps({**GOOD, **HOSTILE[message]}).replace('"DEEP"', "[" * 200_000)
    path = tmp_path / "manifest.json"
    path.write_bytes(seal(text[1:].encode()))
    said = refusal(read_manifest, path, kind=DamagedError)
    assert said.startswith(str(path)) and re.search(message, said)


def test_200_flips_of_one_bit_over_all_files_are_all_found(tmp_path):
    save_ranks(tmp_path, 1, content(0), 2, classes=["a"] * 11)
    path = tmp_path / "step-00000001"
    whole = {file: file.read_bytes() for file in sorted(path.iterdir())}
    rng = np.random.default_rng(0)
    seen = set()
    for number in range(200):
        file = list(whole)[number % len(whole)]
        flipped = bytearray(whole[file])
        flipped[rng.integers(len(flipped))] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        assert f"{file.name}: fails its checksum" in refusal(Checkpoint.open, path, kind=DamagedError)
        file.write_bytes(whole[file])
        seen.add(file.name)
    assert len(seen) == 6
    Checkpoint.open(path)


@pytest.mark.parametrize("part", [0, 0.5, 0.999])
def test_a_cut_file_is_found_even_without_verifying(tmp_path, part):
    save_ranks(tmp_path, 1, content(0), 2)
    for file in sorted((tmp_path / "step-00000001").iterdir()):
        data = file.read_bytes()
        os.truncate(file, int(len(data) * part))
        with pytest.raises(
            DamagedError, match=f"{file.name}: (has .* bytes, the manifest says|fails its checksum)"
        ):
            Checkpoint.open(file.parent, verify=False)
        file.write_bytes(data)
    Checkpoint.open(tmp_path / "step-00000001")


def test_head_files_without_the_rows_of_the_manifest_are_refused_when_read(tmp_path):
    save_ranks(tmp_path, 1, content(0), 2)
    path = tmp_path / "step-00000001"

    def shift(fields):
        fields["heads"][0]["stop"] = fields["heads"][1]["start"] = 7

    reseal(path, shift)
    said = refusal(Checkpoint.open(path).head, 0, 11, kind=DamagedError)
    assert "head-00000-of-00002.safetensors: does not have the rows of" in said


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES, errno.ENOENT])
def test_an_error_of_reading_that_may_pass_is_not_called_damage(tmp_path, monkeypatch, number):
    path = save_one(tmp_path, 1, content(0))

    def refuse(file):
        raise OSError(number, os.strerror(number), str(file))

    with monkeypatch.context() as patched:
        patched.setattr(plsc.checkpoint.manifest, "crc32_of", refuse)
        with pytest.raises(UserError) as error:
            Checkpoint.open(path)
    assert isinstance(error.value, DamagedError) == (number == errno.ENOENT)
    assert ("cannot be read now" in str(error.value)) == (number != errno.ENOENT)
    assert find(tmp_path, rename=True) == path
