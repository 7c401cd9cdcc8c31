"""Regular files are opened, what would block or never end is refused."""

import os
import socket

import pytest

from plsc.errors import MissingFileError, UserError
from plsc.utils.files import open_regular, read_array, read_json, read_regular, sha256_of


def test_a_regular_file_is_read_and_its_size_bounded(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path) == read_regular(tmp_path / "link", most=3) == b"abc"
    assert sha256_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(UserError, match="a: has 3 bytes, must have at most 2"):
        read_regular(path, most=2)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"x\.png: is no regular file"):
        open_regular(tmp_path / "x.png")
    with pytest.raises(UserError, match="/dev/zero: is no regular file"):
        read_regular("/dev/zero")
    monkeypatch.chdir(tmp_path)  # a socket's path may have some hundred characters only
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(UserError, match="socket: is no regular file"):
            open_regular("socket")
    with pytest.raises(UserError, match=r"a\\x00b: is not a path, it contains a zero byte"):
        open_regular("a\0b")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_an_array_holds_the_bytes_of_the_file(tmp_path):
    path = tmp_path / "a.png"
    for content in (b"", bytes(range(256)) * 300):
        path.write_bytes(content)
        assert read_array(path).tobytes() == content
    with pytest.raises(UserError, match="no regular file"):
        read_array("/dev/null")
    with pytest.raises(UserError, match="is not a path"):
        read_array("a\0b")


def test_json_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('\ufeff{"a": [1]}', "utf-8")  # some editors put a mark in front
    assert read_json(path) == {"a": [1]}
    for text in (b"{", b"\xff", b"[" * 100_000, b"1" * 5000):
        path.write_bytes(text)
        with pytest.raises(UserError, match=r"a\.json: is not JSON$"):
            read_json(path)
    with pytest.raises(MissingFileError, match="none: no such file$"):
        read_json(tmp_path / "none")
    with pytest.raises(UserError, match="no regular file"):
        read_json("/dev/null")
