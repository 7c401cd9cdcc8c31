"""The rows in a file are those that were written. A failing disk is reported in one line."""

import errno
import os

import numpy as np
import pytest

from plsc.errors import UserError
from plsc.heads.banks import row_storage
from plsc.heads.banks.row_storage import FileRowStorage
from tests.helpers.refusals import refusal


def test_what_is_written_is_read(tmp_path):
    made = FileRowStorage(tmp_path, 50, 6, np.float32)
    assert not made[0:50].any()
    want = np.zeros((50, 6), np.float32)
    rng = np.random.default_rng(0)
    for rows in (slice(10, 31), np.array([0, 12, 13, 14, 15, 16, 40, 49]), np.array([], int), slice(7, 7)):
        numbers = rng.standard_normal(want[rows].shape).astype(np.float32)
        made[rows] = numbers
        want[rows] = numbers
        assert np.array_equal(made[rows], numbers)
    assert np.array_equal(made[0:50], want)
    assert np.array_equal(made[np.array([49, 3, 3, 12])], want[[49, 3, 3, 12]])


def test_the_file_has_no_name_and_all_its_space(tmp_path):
    before = os.listdir("/proc/self/fd")
    made = FileRowStorage(tmp_path / "new", 1000, 64, np.uint16)
    assert list((tmp_path / "new").iterdir()) == []
    status = os.fstat(made._file.fileno())
    assert status.st_size == 1000 * 64 * 2 and status.st_blocks * 512 >= status.st_size
    del made
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_too_little_space_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    why = f"Head.bank_folder: {tmp_path}: cannot be written: No space left on device"
    take = "class centres and optimizer need"
    assert refusal(FileRowStorage, tmp_path, 10**9, 8, np.float32) == (
        f"{why}; {take} 32.0 GB: set another Head.bank_folder, or halve the size with "
        "Head.bank_dtype=bfloat16"
    )
    assert refusal(FileRowStorage, tmp_path, 10**6, 8, np.uint16) == (
        f"{why}; {take} 16.0 MB: set another Head.bank_folder"  # it is bfloat16 already
    )


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError,
        match=r"^Head.bank_folder: .*/file/sub: cannot be written: Not a directory; class centres",
    ):
        FileRowStorage(tmp_path / "file" / "sub", 1, 8, np.float32)


def test_a_disk_that_fails_is_reported(tmp_path, monkeypatch):
    made = FileRowStorage(tmp_path, 10, 8, np.float32)

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(row_storage, "write_records", broken)
    monkeypatch.setattr(row_storage, "read_records", broken)
    for use in (lambda: made.__setitem__(slice(0, 1), np.zeros((1, 8), np.float32)), lambda: made[0:1]):
        with pytest.raises(
            UserError,
            match=r": class centres: cannot be (written|read): Input/output error; resume from the newest",
        ):
            use()
