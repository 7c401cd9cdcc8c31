"""manifest.json: no flip of a bit goes unseen, and a crafted one is refused in one line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

import plsc.checkpoint.manifest
from plsc.checkpoint.manifest import DamagedError, read_manifest, seal, tiles
from plsc.checkpoint.store import Checkpoint, find
from plsc.errors import MissingFileError, UserError
from tests.helpers.checkpoints import content, reseal, save_one, save_ranks

FILE = {"bytes": 8, "crc32": "00000000"}
KNOWN = {"shape": [1, 32, 32], "channels": "grey", "mean": 127.5, "scale": 1 / 127.5}
GOOD = {
    "format": 7,
    "plsc": "0.1.0",
    "step": 120,
    "epoch": 2,
    "world_size": 2,
    "num_classes": 10,
    "embedding_size": 4,
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
    assert read(tmp_path, GOOD).model_dump() == GOOD


def test_it_is_json_for_any_reader(tmp_path):
    read(tmp_path, GOOD)
    fields = json.loads((tmp_path / "manifest.json").read_text())
    assert fields.pop("crc32") and fields == GOOD


def test_a_flip_of_one_bit_is_seen(tmp_path):
    read(tmp_path, GOOD)
    path = tmp_path / "manifest.json"
    data = path.read_bytes()
    for bit in range(0, len(data) * 8, 7):  # in each byte at another place
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match="fails its checksum"):
            read_manifest(path)


@pytest.mark.parametrize("size", [0, 5, 21, 100])
def test_a_cut_one_is_refused(tmp_path, size):
    read(tmp_path, GOOD)
    path = tmp_path / "manifest.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedError, match="fails its checksum"):
        read_manifest(path)


def test_absent(tmp_path):
    with pytest.raises(DamagedError, match="manifest.json: is not there; the checkpoint was never completed"):
        read_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize("number", [0, 3, 6, 8])
def test_another_format_is_refused_and_not_called_damaged(tmp_path, number):
    said = f"has format {number}, this plsc reads format 7 only; use the plsc that wrote it, or make it anew$"
    with pytest.raises(UserError, match=said) as error:
        read(tmp_path, {**GOOD, "format": number, "new": True})
    assert not isinstance(error.value, DamagedError) and str(tmp_path / "manifest.json") in str(error.value)


HEADS, FILES = GOOD["heads"], GOOD["files"]
HOSTILE = {
    r"files.../../etc/passwd.\[key\]: String should match pattern": {
        "files": {**FILES, "../../etc/passwd": FILE}
    },
    r"files./etc/passwd.\[key\]: String should match pattern": {"files": {**FILES, "/etc/passwd": FILE}},
    "does not list '../x' among its files": {"heads": [{"file": "../x", "start": 0, "stop": 10}]},
    "does not list 'backbone.safetensors'": {"files": {n: FILE for n in FILES if "backbone" not in n}},
    "does not list 'average.safetensors'": {"weights": "average"},
    r"do not make up the classes \[0, 10\)": {"heads": HEADS[:1]},
    r"make up the classes \[0, 10\)": {"heads": HEADS[::-1]},
    r"make up the classes \[0, 11\)": {"num_classes": 11},
    r"classes \[0, 10\)": {"heads": []},
    "step: Input should be greater than or equal to 0": {"step": -1},
    "num_classes: Input should be a valid integer": {"num_classes": "10"},
    "world_size: Input should be greater than 0": {"world_size": 0},
    "files.backbone.safetensors.bytes: Input should be a valid integer": {
        "files": {**FILES, "backbone.safetensors": {**FILE, "bytes": 1e3}}
    },
    "state: Input should be a valid dictionary": {"state": [1]},
    "state.margin: Input should be a valid dictionary": {"state": {"margin": [1]}},
    "state: Out of range float values are not JSON compliant": {
        "state": {"evaluation": {"threshold": float("nan")}}
    },
    r"state.../x.\[key\]: String should match pattern": {"state": {"../x": {}}},
    "preprocessing.shape: Input should be a valid tuple": {"preprocessing": {**KNOWN, "shape": 32}},
    "preprocessing.shape: an image must have": {"preprocessing": {**KNOWN, "shape": [3, 2**20, 2**20]}},
    "preprocessing.dtype: Unexpected": {"preprocessing": {**KNOWN, "dtype": "object"}},
    "config: Input should be a valid dictionary": {"config": "a: 1"},
    "config.Head": {"config": {"Head": 3}},
    "more: Extra inputs are not permitted": {"more": 1},
    "format: Input should be 7": {"format": "6"},
    "is not JSON": {"state": "DEEP"},
}


@pytest.mark.parametrize("message", HOSTILE)
def test_crafted_manifests_are_refused_in_one_line(tmp_path, message):
    text = json.dumps({**GOOD, **HOSTILE[message]}).replace('"DEEP"', "[" * 200_000)
    path = tmp_path / "manifest.json"
    path.write_bytes(seal(text[1:].encode()))
    with pytest.raises(DamagedError, match=message) as error:
        read_manifest(path)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(path))


def test_a_manifest_that_never_ends_is_refused(tmp_path):
    path = tmp_path / "manifest.json"
    os.mkfifo(path)
    with pytest.raises(DamagedError, match=r"manifest\.json: is a pipe, no regular file"):
        read_manifest(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(DamagedError, match=r"manifest\.json: is a device, no regular file"):
        read_manifest(path)
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(2**27)
    with pytest.raises(DamagedError, match=r"manifest\.json: has 134,217,728 bytes, must have at most"):
        read_manifest(path)


def test_what_a_checkpoint_does_not_say_is_named(tmp_path):
    saved = Checkpoint.open(save_one(tmp_path, 3, {**content(3), "state": {"run": {"seed": None}}}))
    with pytest.raises(
        UserError, match=r"manifest\.json: state\.run\.seed: is missing, so this cannot be used"
    ):
        saved.require("run", "seed")


def test_tiles():
    assert tiles([(0, 3), (3, 3), (3, 10)], 10)
    assert not tiles([(0, 3), (4, 10)], 10)
    assert not tiles([(0, 5), (4, 10)], 10)
    assert not tiles([(0, 12), (12, 10)], 10)
    assert not tiles([(0, 5)], 10)


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
        with pytest.raises(DamagedError, match=f"{file.name}: fails its checksum"):
            Checkpoint.open(path)
        file.write_bytes(whole[file])
        seen.add(file.name)
    assert len(seen) == 6
    Checkpoint.open(path)


@pytest.mark.parametrize("part", [0, 0.001, 0.1, 0.5, 0.9, 0.999])
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


def test_a_missing_file_is_found(tmp_path):
    save_ranks(tmp_path, 1, content(0), 2)
    for file in sorted((tmp_path / "step-00000001").iterdir()):
        aside = file.rename(tmp_path / "aside")
        with pytest.raises(DamagedError, match=f"{file.name}: is not there"):
            Checkpoint.open(file.parent)
        aside.rename(file)


def test_a_file_that_is_no_plain_file_is_refused_at_once(tmp_path):
    path = save_one(tmp_path, 1, content(0))
    (path / "backbone.safetensors").unlink()
    os.mkfifo(path / "backbone.safetensors")  # opening it would wait for ever
    with pytest.raises(DamagedError, match="backbone.safetensors: is not a plain file"):
        Checkpoint.open(path)


def test_a_manifest_that_contradicts_the_head_files_is_refused(tmp_path):
    save_ranks(tmp_path, 1, content(0), 2)
    path = tmp_path / "step-00000001"
    reseal(path, lambda fields: fields.update(embedding_size=5))
    with pytest.raises(DamagedError, match="the head has no array 'centres' of embedding size 5"):
        Checkpoint.open(path)

    def shift(fields):
        fields["embedding_size"] = 4
        fields["heads"][0]["stop"] = fields["heads"][1]["start"] = 5

    reseal(path, shift)
    with pytest.raises(
        DamagedError, match=r"head-00000-of-00002.safetensors: its arrays are not the rows \[0, 5\)"
    ):
        Checkpoint.open(path)


def test_wrong_class_names_are_refused(tmp_path):
    path = save_one(tmp_path, 1, content(0), classes=["a"] * 11)
    (path / "classes.json").write_text("[1, 2]")
    reseal(path, lambda fields: fields["files"]["classes.json"].update(bytes=6))
    with pytest.raises(DamagedError, match="classes.json: is not a list of 11 names"):
        Checkpoint.open(path, verify=False).classes()


def test_no_such_folder(tmp_path):
    with pytest.raises(MissingFileError, match="x: there is no such checkpoint folder"):
        Checkpoint.open(tmp_path / "x")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_an_error_of_reading_that_may_pass_is_not_called_damage(tmp_path, monkeypatch, number):
    """Neither where it begins, at the folder, nor in the midst of a file."""
    path = save_one(tmp_path, 1, content(0))

    def refuse(file):
        if path in (file, file.parent):
            raise OSError(number, os.strerror(number), str(file))
        return True

    for owner, name in ((plsc.checkpoint.manifest, "crc32_of"), (Path, "is_dir")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, refuse)
            with pytest.raises(
                UserError, match="cannot be read now .*; nothing was changed: .* try again"
            ) as error:
                find(tmp_path, rename=True)
        assert not isinstance(error.value, DamagedError)
    assert find(tmp_path, rename=True) == path


def test_no_permission_is_not_called_damage(tmp_path, monkeypatch):
    path = save_one(tmp_path, 1, content(0))

    def refuse(file):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(plsc.checkpoint.manifest, "crc32_of", refuse)
    with pytest.raises(UserError, match="Permission denied; give this user the right to read it") as error:
        find(tmp_path, rename=True)
    assert not isinstance(error.value, DamagedError) and path.exists()
