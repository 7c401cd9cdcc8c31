"""Names from data in messages: on one line, encodable, harmless to a terminal. What the system refuses: a
line, too."""

import errno
import os
from pathlib import Path

import pytest

from plsc.errors import MissingFileError, UserError, escape, escape_lines, reading, writing
from tests.helpers.refusals import refusal


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("faces/Ann Müller/李_0001.png", "faces/Ann Müller/李_0001.png"),
        ("a\n2026-01-01 00:00:00 INFO done", "a\\n2026-01-01 00:00:00 INFO done"),
        ("\x1b[2J\r\t\x00", "\\x1b[2J\\r\\t\\x00"),
        ("a\u202egnp.exe\u2028", "a\\u202egnp.exe\\u2028"),
        (os.fsdecode(b"J\xf6rg.png"), "J\\xf6rg.png"),
        (b"J\xf6rg.png", "J\\xf6rg.png"),
        ("\ud800", "\\ud800"),
        (Path("a\nb"), "a\\nb"),
        (7, "7"),
    ],
)
def test_a_name_is_one_printable_line(name, wanted):
    assert escape(name) == wanted
    wanted.encode("utf-8")


def test_the_lines_of_a_message_stay_lines():
    assert escape_lines("first\n\tsecond \x1b[31m\udcff") == "first\n\tsecond \\x1b[31m\\xff"


def test_of_a_line_of_megabytes_the_ends_are_shown():
    short = "x" * 2000
    long = f"list.txt: line 1: '{'y' * 5_000_000}' is no path; mend it"
    first, second, third = escape_lines(f"{short}\n{long}\n{short}").split("\n")
    assert first == third == short
    assert len(second) < 2100 and second.startswith("list.txt: line 1: 'yyy")
    assert f" ... {len(long) - 2000:,} characters ... yyy" in second and second.endswith(
        "' is no path; mend it"
    )


def within(context, call, *arguments):
    with context:
        call(*arguments)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    absent, beside = tmp_path / "a\nb", tmp_path / "file"
    said = refusal(within, reading(absent), absent.read_bytes, kind=MissingFileError)
    assert said == f"{tmp_path}/a\\nb: no such file"
    told = reading(f"--compare: {absent}", missing="name a run")
    said = refusal(within, told, absent.read_bytes, kind=MissingFileError)
    assert said == f"--compare: {tmp_path}/a\\nb: name a run"
    beside.write_bytes(b"")
    said = refusal(within, reading(beside / "x"), (beside / "x").read_bytes, kind=MissingFileError)
    assert said.endswith("file/x: no such file")
    said = refusal(within, reading(tmp_path, remedy="name a file"), tmp_path.read_bytes)
    assert said == f"{tmp_path}: cannot be read: Is a directory; name a file"
    absent.write_bytes(b"ab\xff")
    said = refusal(within, reading(absent), absent.read_text, "utf-8")
    assert said == f"{tmp_path}/a\\nb: is not UTF-8 text (invalid start byte at byte 2)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device; free some space"),
        (OSError("7 requested and\n0 written"), "7 requested and\\n0 written; free some space"),  # as NumPy's
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(tmp_path, error, said):
    with pytest.raises(UserError) as caught, writing(tmp_path, remedy="free some space"):
        raise error
    assert str(caught.value) == f"{tmp_path}: cannot be written: {said}"


@pytest.mark.parametrize("refusing", [reading, writing])
@pytest.mark.parametrize("kind", [ValueError, KeyError, UserError])
def test_other_errors_stay_what_they_are(refusing, kind):
    with pytest.raises(kind) as caught, refusing("a"):
        raise kind("b")
    assert type(caught.value) is kind and "b" in caught.value.args
