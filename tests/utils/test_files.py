"""Regular files are opened, what would block or never end is refused."""

import os

import pytest

from plsc.errors import MissingFileError, UserError
from plsc.utils.files import open_regular, read_json, read_regular


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"x\.png: is not a regular file"):
        open_regular(tmp_path / "x.png")
    with pytest.raises(UserError, match="/dev/zero: is not a regular file"):
        read_regular("/dev/zero")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_json_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('\ufeff{"a": [1]}', "utf-8")  # some editors put a mark in front
    assert read_json(path) == {"a": [1]}
    for text in (b"{", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(UserError, match=r"a\.json: is not JSON$"):
            read_json(path)
    with pytest.raises(MissingFileError, match="none: no such file$"):
        read_json(tmp_path / "none")
