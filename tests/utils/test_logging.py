"""Log lines on the console and in the file."""

import logging
import re
import sys
from pathlib import Path

import pytest

from plsc.utils.logging import get_logger, print_lines, setup_logging, warn_on_rank_0


def test_a_line_has_time_and_level_and_comes_once(capsys):
    get_logger().info("hello")
    print_lines("a table")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO hello\na table\n", capsys.readouterr().out)
    assert get_logger() is logging.getLogger("plsc") and not get_logger().propagate


def test_other_ranks_say_only_what_matters_and_who_they_are(capsys):
    setup_logging(rank=3)
    get_logger().info("hello")
    get_logger().warning("smoke")
    warn_on_rank_0("the same for all")
    assert re.fullmatch(r".* WARNING \[rank 3\] smoke\n", capsys.readouterr().out)


def test_what_steers_a_terminal_or_no_file_takes_is_escaped(tmp_path, capsys):
    setup_logging(log_file=tmp_path / "log.txt")
    get_logger().warning("\x1b[2Jcleared, J\udcf6rg\nsecond line")
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text(encoding="utf-8")):
        assert text.endswith("WARNING \\x1b[2Jcleared, J\\xf6rg\nsecond line\n")


def test_a_file_is_appended_to_and_begins_with_what_was_said_before_it_was_opened(tmp_path):
    get_logger().info("of an earlier run")
    for text in ("first", "second"):
        setup_logging()
        get_logger().info("resuming at step %d", 8)
        setup_logging(log_file=tmp_path / "log.txt")
        get_logger().info(text)
        setup_logging()
    get_logger().info("elsewhere")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    begin = "INFO resuming at step 8"
    assert [line[20:] for line in lines] == [begin, "INFO first", begin, "INFO second"]


def test_a_service_without_a_log_file_keeps_a_bounded_number_of_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("plsc.utils.logging.KEPT", 3)
    setup_logging()
    for number in range(9):
        get_logger().info(str(number))
    setup_logging(log_file=tmp_path / "log.txt")
    setup_logging()
    assert [line[-1] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["6", "7", "8"]


@pytest.mark.parametrize("full", ["the disk", "the pipe"])
def test_a_full_disk_or_a_reader_that_left_costs_lines_and_no_traceback(full, tmp_path, capsys, monkeypatch):
    file = Path("/dev/full") if full == "the disk" else tmp_path / "log.txt"
    setup_logging(log_file=file)
    if full == "the pipe":
        monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115
    get_logger().info("first")
    said = capsys.readouterr()
    assert "first" in (said.out if full == "the disk" else file.read_text()) and said.err == ""
