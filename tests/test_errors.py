"""Names from data in messages: on one line, encodable, harmless to a terminal."""

import os
from pathlib import Path

import pytest

from plsc.errors import names_text, shown, shown_lines


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
    assert shown(name) == wanted
    wanted.encode("utf-8")


def test_the_lines_of_a_message_stay_lines():
    assert shown_lines("first\n\tsecond \x1b[31m\udcff") == "first\n\tsecond \\x1b[31m\\xff"


def test_of_a_line_of_megabytes_the_ends_are_shown():
    short = "x" * 2000
    long = f"list.txt: line 1: '{'y' * 5_000_000}' is no path; mend it"
    first, second, third = shown_lines(f"{short}\n{long}\n{short}").split("\n")
    assert first == third == short
    assert len(second) < 2100 and second.startswith("list.txt: line 1: 'yyy")
    assert f" ... {len(long) - 2000:,} characters ... yyy" in second and second.endswith(
        "' is no path; mend it"
    )


def test_a_file_of_names_keeps_their_bytes_and_its_lines():
    names = ["a.png", os.fsdecode(b"J\xf6rg.png"), "b\nc.png"]
    assert names_text(names) == b"a.png\nJ\xf6rg.png\nb\\nc.png\n"
