"""The safetensors layout. The safetensors package reads our files, and we read its files. Hostile headers are
refused."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
import zlib

import numpy as np
import pytest
import safetensors.numpy

from plsc.checkpoint import tensorfile
from plsc.checkpoint.tensorfile import DamagedError, TensorFile, layout, size_of, write_synced
from tests.helpers.checkpoints import OnDemand, assert_same
from tests.helpers.launch import run_python
from tests.helpers.refusals import refusal

ARRAYS = {
    "weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "half": np.array([1.5, -2.25, np.inf], np.float16),
    "double": np.array([[np.pi]]),
    "count": np.array(7, np.int64),
    "mask": np.array([True, False, True]),
    "bytes": np.arange(5, dtype=np.uint8),
    "none": np.empty((0, 8), np.float32),
    "strided": np.arange(12, dtype=np.int32).reshape(3, 4).T,
}


def write(path, arrays=ARRAYS):
    return write_synced(path, layout(arrays))


def test_the_safetensors_package_reads_what_we_write(tmp_path):
    write(tmp_path / "a")
    assert_same(safetensors.numpy.load_file(tmp_path / "a"), ARRAYS)


def test_we_read_what_the_safetensors_package_writes(tmp_path):
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in ARRAYS.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "a", metadata={"made": "elsewhere"})
    file = TensorFile(tmp_path / "a")
    assert_same({name: file.read(name) for name in file.arrays}, ARRAYS)


def test_an_error_of_the_writing_thread_is_raised(tmp_path, monkeypatch):
    def full(file, block):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_synced(tmp_path / "a", [b"x" * 10])


def test_writing_needs_no_second_copy(tmp_path):
    big = {"centres": np.zeros((1 << 16, 64), np.float32)}  # 16 MB
    tracemalloc.start()
    write(tmp_path / "a", big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE = {
    "not json": b"{nope}",
    "a list": b"[1, 2]",
    "deep": b"[" * 200_000,
    "field lacks": {"x": {"dtype": "F32", "shape": [2]}},
    "unknown dtype": {"x": {**GOOD, "dtype": "O"}},
    "shape is negative": {"x": {**GOOD, "shape": [-1, -2]}},
    "shape too large": {"x": {**GOOD, "shape": [1 << 62, 4]}},
    "out of the file": {"x": {**GOOD, "data_offsets": [8, 16]}},
    "longer than the file": {"x": {**GOOD, "shape": [4], "data_offsets": [0, 16]}},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_hostile_headers_are_refused_in_one_line(tmp_path, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    said = refusal(TensorFile, tmp_path / "a", kind=DamagedError)
    assert said.startswith(f"{tmp_path}/a: ") and said.endswith("damaged")


def test_headers_are_checked_without_assertions(tmp_path):
    """PYTHONOPTIMIZE removes assert statements."""
    header = b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    code = "from plsc.checkpoint.tensorfile import TensorFile; TensorFile('a')"
    done = run_python("-c", code, cwd=tmp_path, check=False, PYTHONOPTIMIZE="1")
    assert done.stderr.endswith("the file is damaged\n")


@pytest.mark.parametrize("length", [0, 17, (1 << 64) - 1])
def test_a_header_length_that_cannot_be_is_refused_without_allocating(tmp_path, length):
    (tmp_path / "a").write_bytes(length.to_bytes(8, "little") + bytes(16))
    tracemalloc.start()
    said = refusal(TensorFile, tmp_path / "a", kind=DamagedError)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"a: says that its header has {length} bytes" in said and peak < 1 << 20


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path):
    write(tmp_path / "a")
    file = TensorFile(tmp_path / "a")
    os.truncate(tmp_path / "a", (tmp_path / "a").stat().st_size - 1)
    with pytest.raises(DamagedError, match="became shorter"):
        for name in file.arrays:
            file.read(name)


@pytest.mark.parametrize("block", [1, 100])
def test_rows_that_are_not_in_memory_are_written_as_those_that_are(tmp_path, monkeypatch, block):
    monkeypatch.setattr(tensorfile, "_BLOCK", block)
    arrays = {
        "a": np.arange(60, dtype=np.float32).reshape(20, 3),
        "b": np.arange(20.0),
        "none": np.empty((0, 3)),
    }
    buffers = layout({name: OnDemand(array) for name, array in arrays.items()})
    sums = write_synced(tmp_path / "lazy", buffers)
    write_synced(tmp_path / "whole", layout(arrays))
    data = (tmp_path / "whole").read_bytes()
    assert (tmp_path / "lazy").read_bytes() == data and sum(map(size_of, buffers)) == len(data)
    assert sums == {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}


def test_an_array_can_say_that_its_bits_are_bfloat16(tmp_path):
    write_synced(tmp_path / "file", layout({"a": OnDemand(np.array([0x3F80, 0xC000], np.uint16), "BF16")}))
    entry = TensorFile(tmp_path / "file").arrays["a"]
    assert (entry.code, entry.dtype, entry.shape) == ("BF16", np.uint16, (2,))
