"""torch.save's files: tensors come back whatever their layout, and nothing else is built, whoever wrote the
file."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from plsc.apps.migrate.torch_file import load_torch
from plsc.errors import MissingFileError
from tests.apps.migrate.torch_files import numbers, write_torch
from tests.helpers.refusals import refusal


class Evil:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8"])
def test_tensors_of_any_type_and_layout(tmp_path, dtype):
    arrays = {
        "matrix": numbers(3, 4, dtype=dtype),
        "columns": np.asfortranarray(numbers(3, 4, dtype=dtype)),
        "number": numbers(dtype=dtype).reshape(()) + np.ones((), dtype),
        "none": np.zeros((0, 3), dtype),
    }
    found = load_torch(write_torch(tmp_path / "a.pt", arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_a_part_of_a_storage(tmp_path):
    array = numbers(12)
    path = write_torch(tmp_path / "a.pt", {"a": array}, changed={"a": (2, (3, 2), (3, 1))})
    assert np.array_equal(load_torch(path)["a"], np.lib.stride_tricks.as_strided(array[2:], (3, 2), (12, 4)))


@pytest.mark.parametrize(
    "place",
    [(0, (13,), (1,)), (0, (2**62, 2**62), (1, 1)), (-1, (2,), (1,)), (0, (2,), (1, 1)), (0, (1.0,), (1,))],
)
def test_a_tensor_outside_of_its_storage_is_refused(tmp_path, place):
    path = write_torch(tmp_path / "a.pt", {"a": numbers(12)}, changed={"a": place})
    assert "a.pt: is not a file of torch.save, or is damaged or truncated (" in refusal(load_torch, path)


@pytest.mark.parametrize(
    "dump", [lambda evil: pickle.dumps({"a": evil}, 2), lambda evil: pickle.dumps(evil, 4)]
)
def test_an_evil_file_is_refused_by_name_and_runs_nothing(tmp_path, dump):
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", dump(Evil(str(tmp_path / "made"))))
    assert refusal(load_torch, str(tmp_path / "evil.pt")) == (
        f"{tmp_path / 'evil.pt'}: refused: the file asks for {os.mkdir.__module__}.mkdir; none of it was run"
    )
    assert not (tmp_path / "made").exists()


def test_damage(tmp_path):
    data = Path(write_torch(tmp_path / "whole.pt", {"a": numbers(500)})).read_bytes()
    flipped = bytearray(data)
    flipped[data.index(numbers(500).tobytes()) + 9] ^= 1
    for bad in (data[:-30], data[:100], bytes(flipped), b"PK", b""):
        (tmp_path / "bad.pt").write_bytes(bad)
        said = refusal(load_torch, str(tmp_path / "bad.pt"))
        assert "bad.pt: is not a file of torch.save, or is damaged" in said
    assert "none.pt: no such file" in refusal(load_torch, str(tmp_path / "none.pt"), kind=MissingFileError)
