"""The rows in a file are those that were written. A failing disk is reported in one line."""

import errno
import os

import numpy as np
import pytest

from plsc.errors import UserError
from plsc.heads.banks import row_storage
from plsc.heads.banks.row_storage import FileRowStorage, Places
from tests.helpers.refusals import refusal


def test_what_is_written_is_read(tmp_path):
    made = FileRowStorage(tmp_path, 50, 6, np.float32)
    every = np.arange(50)
    assert not made[every].any()
    want = np.zeros((50, 6), np.float32)
    rng = np.random.default_rng(0)
    for rows in (np.arange(10, 31), np.array([0, 12, 13, 14, 15, 16, 40, 49]), np.array([], int)):
        numbers = rng.standard_normal(want[rows].shape).astype(np.float32)
        made[rows] = numbers
        want[rows] = numbers
        assert np.array_equal(made[rows], numbers)
    assert np.array_equal(made[every], want)
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
    first = np.arange(1)
    for use in (lambda: made.__setitem__(first, np.zeros((1, 8), np.float32)), lambda: made[first]):
        with pytest.raises(
            UserError,
            match=r": class centres: cannot be (written|read): Input/output error; resume from the newest",
        ):
            use()


def test_rows_that_are_written_together_lie_side_by_side_in_their_block():
    block, places = row_storage._BLOCK, Places(100_000)
    first = np.array([5, 900, block - 1, block, 99_999])
    positions, found = places.give(first)
    assert positions.tolist() == [0, 1, 2, 3, 4] and found.tolist() == [0, 1, 2, block, 3 * block]
    positions, found = places.give(np.array([0, 900, 901, block + 7]))  # 900 stays in its place
    assert positions.tolist() == [1, 0, 2, 3] and found.tolist() == [1, 3, 4, block + 1]
    positions, found = places.find(np.array([99_999, 4, 901, 0]))
    assert positions.tolist() == [3, 2, 0] and found.tolist() == [3, 4, 3 * block]


@pytest.mark.parametrize("rows", [[3, 1], [1, 3, 3]])
def test_two_rows_never_get_one_place(rows):
    with pytest.raises(AssertionError, match="two rows"):
        Places(10).give(np.array(rows))


@pytest.mark.parametrize("count", [1, 32_767, 32_768, 32_769, 150_000])
def test_each_row_has_one_place_in_the_space_of_its_block(count):
    rng, places, seen = np.random.default_rng(count), Places(count), {}
    for size in (1, count // 3, count // 2, count):
        rows = np.sort(rng.choice(count, size, replace=False))
        positions, found = places.give(rows)
        assert len(found) == size and (np.diff(found) > 0).all()
        assert (found // row_storage._BLOCK == rows[positions] // row_storage._BLOCK).all()
        for row, place in zip(rows[positions].tolist(), found.tolist(), strict=True):
            assert seen.setdefault(row, place) == place
    assert sorted(seen.values()) == list(range(count))
