"""Log lines on pipes and terminals, the progress of training, and metrics.jsonl with its VisualDL copy."""

import errno
import fcntl
import io
import json
import logging
import math
import os
import pty
import re
import struct
import sys
import termios

import numpy as np
import pytest

from plsc.errors import MissingFileError, UserError
from plsc.utils import appended_file
from plsc.utils.logging import get_logger, setup, warn
from plsc.utils.metrics import Metrics, read_metrics
from plsc.utils.progress import Progress
from plsc.utils.text import duration, number, table
from tests.helpers.launch import ROOT, run_python, start_python


@pytest.fixture(autouse=True)
def rank_zero():
    setup()
    yield
    setup()


# The logger


def test_a_line_has_time_and_level_and_comes_once(capsys):
    setup()
    get_logger().info("hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO hello\n", capsys.readouterr().out)
    assert get_logger() is logging.getLogger("plsc")
    assert not get_logger().propagate


def test_other_ranks_say_only_what_matters_and_who_they_are(capsys):
    setup(rank=3)
    get_logger().info("hello")
    get_logger().warning("smoke")
    assert re.fullmatch(r".* WARNING \[rank 3\] smoke\n", capsys.readouterr().out)


def test_what_all_ranks_would_warn_of_is_said_once(capsys):
    for rank in (0, 1):
        setup(rank)
        warn("the same for all")
    assert re.fullmatch(r".* WARNING the same for all\n", capsys.readouterr().out)


@pytest.fixture
def full_disk(monkeypatch):
    """Let files opened for appending take 5 bytes and no more, until the returned function is called."""
    space = [5]

    class Full(io.FileIO):
        def write(self, data):
            if space and not space[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            count = super().write(data[: space[0]] if space else data)
            space[:] = [0] if space else []
            return count

    def opened(path, mode, buffering=-1):
        return Full(path, mode) if buffering == 0 else open(path, mode)

    monkeypatch.setattr(appended_file, "open", opened, raising=False)
    return space.clear


def test_rows_wait_for_space_on_the_disk(tmp_path, full_disk):
    metrics = Metrics(tmp_path)
    for row in rows_up_to(3):
        metrics.write(row)
    assert (tmp_path / "metrics.jsonl").stat().st_size == 5
    full_disk()
    metrics.write({"step": 4, "loss": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_log_lines_wait_for_space_without_a_traceback(tmp_path, full_disk, capsys):
    logger = setup(log_file=tmp_path / "log.txt")
    logger.info("first")
    logger.info("second")
    full_disk()
    logger.info("third")
    said = (tmp_path / "log.txt").read_text()
    assert [line.split()[-1] for line in said.splitlines()] == ["first", "second", "third"]
    assert capsys.readouterr().err == ""


def test_what_was_never_written_is_said(tmp_path, full_disk, capsys):
    metrics = Metrics(tmp_path)
    for row in rows_up_to(3):
        metrics.write(row)
    metrics.close()
    assert "metrics.jsonl: the last 3 lines could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_goes_during_the_run_is_one_line(tmp_path, replaced):
    metrics = Metrics(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    if replaced:
        Metrics(tmp_path / "out")
    with pytest.raises(
        UserError, match="metrics.jsonl: was deleted or replaced while the run wrote it; do not"
    ):
        metrics.write({"step": 1})


def test_what_steers_a_terminal_or_no_file_takes_is_escaped(tmp_path, capsys):
    setup(log_file=tmp_path / "log.txt")
    get_logger().warning("\x1b[2Jcleared, J\udcf6rg\nsecond line")
    setup()
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text(encoding="utf-8")):
        assert text.endswith("WARNING \\x1b[2Jcleared, J\\xf6rg\nsecond line\n")


def test_log_file_is_appended_to_and_left_when_set_up_again(tmp_path, capsys):
    for text in ("first", "second"):
        setup(log_file=tmp_path / "run" / "log.txt")
        get_logger().info(text)
    setup()
    get_logger().info("elsewhere")
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line.split("INFO ")[1] for line in lines] == ["first", "second"]
    assert capsys.readouterr().out.splitlines()[:2] == lines


def test_a_file_begins_with_what_was_said_before_it_was_opened(tmp_path):
    setup()
    get_logger().info("of an earlier run")
    setup()
    get_logger().info("resuming at step %d", 8)
    setup(log_file=tmp_path / "log.txt")
    get_logger().info("and on")
    setup()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[20:] for line in lines] == ["INFO resuming at step 8", "INFO and on"]


# Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_images_per_second_and_eta_by_hand(capsys):
    clock = Clock()
    progress = Progress(total_steps=100, steps_per_epoch=25, epochs=4, every=10, start_step=40, clock=clock)
    rows = []
    for step in range(41, 61):
        clock.now += 0.5
        if step == 55:
            with progress.pause():
                clock.now += 30.0
        rows.append(progress.update(step, 1 + (step - 1) // 25, loss=6.5, lr=0.1, images=64, accuracy=0.25))
    progress.close()
    assert [row["step"] for row in rows if row] == [50, 60]
    first, second = rows[9], rows[19]
    assert first == {
        "step": 50, "epoch": 2, "loss": 6.5, "lr": 0.1, "images_per_second": 10 * 64 / 5.0, "data_wait": 0.0,
        "accuracy": 0.25,
    }  # fmt: skip
    assert second["images_per_second"] == pytest.approx(10 * 64 / 5.0)  # the pause is left out
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "INFO epoch 2/4 step 50/100 loss 6.500 acc 0.2500 lr 0.1 128.0 img/s eta 0:00:25"
    )
    assert lines[1].endswith("INFO epoch 2, time 5.0 sec")  # the 10 steps of the epoch in this run
    assert lines[2].endswith("eta 0:01:20")  # 40 steps at (10 + 30) s / 20 steps


def test_the_time_of_an_epoch_is_that_of_its_steps(capsys):
    clock = Clock()
    progress = Progress(total_steps=7, steps_per_epoch=3, epochs=3, every=100, clock=clock)
    for step in range(1, 8):
        clock.now += float(step)
        progress.update(step, -(-step // 3), loss=1.0, lr=0.1, images=8)
        if step in (2, 3):  # an evaluation within an epoch, and one after its end
            with progress.pause():
                clock.now += 50.0
    lines = [line.partition("INFO ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["epoch 1, time 6.0 sec", "epoch 2, time 15.0 sec"]
    assert len(lines) == 3 and lines[2].startswith("epoch 3/3 step 7/7")


def test_waiting_for_data_is_a_share_and_comes_with_advice_once(capsys):
    """Of each second, a step of these rows waits so long; an evaluation is neither."""
    clock, waited, rows = Clock(), [7.0], []
    progress = Progress(
        total_steps=50, steps_per_epoch=50, epochs=1, every=10, clock=clock,
        data=lambda: (waited[0], 0), advice="raise num_workers",
    )  # fmt: skip
    for step in range(1, 51):
        clock.now += 1.0
        waited[0] += (0.9, 0.05, 0.34, 0.5, 0.09)[(step - 1) // 10]
        if step == 25:
            with progress.pause():
                clock.now += 30.0
        rows.append(progress.update(step, 1, loss=1.0, lr=0.1, images=8))
    assert [row["data_wait"] for row in rows if row] == pytest.approx([0.9, 0.05, 0.34, 0.5, 0.09])
    assert not any("replaced" in row for row in rows if row)
    lines = [line.partition(" lr 0.1 ")[2] or line.partition("WARNING ")[2] for line in said(capsys)]
    assert [line.partition(" eta")[0] for line in lines[:-1]] == [
        "data wait 90 % 8.000 img/s",  # of the first line: the workers start
        "8.000 img/s",
        "data wait 34 % 8.000 img/s",
        "data wait 34 %: raise num_workers",
        "data wait 50 % 8.000 img/s",
        "8.000 img/s",
    ]


def test_replaced_images_are_counted_in_the_row_and_at_the_end_of_an_epoch(capsys):
    replaced = iter([0, 0, 2, 3, 0])  # asked for at the start, at each line and at each end of an epoch
    progress = Progress(
        total_steps=5, steps_per_epoch=3, epochs=2, every=2, clock=Clock(),
        data=lambda: (0.0, next(replaced)),
    )  # fmt: skip
    rows = [progress.update(step, -(-step // 3), loss=1.0, lr=0.1, images=8) for step in range(1, 6)]
    assert [row and row.get("replaced") for row in rows] == [None, None, None, 3, None]
    assert [line.partition("INFO ")[2] for line in said(capsys) if "time" in line] == [
        "epoch 1, time 0.0 sec, corrupt images replaced: 2"
    ]


def said(capsys):
    return capsys.readouterr().out.splitlines()


def test_the_last_step_and_smaller_batches_are_counted(capsys):
    clock = Clock()
    progress = Progress(total_steps=3, steps_per_epoch=3, epochs=1, every=10, clock=clock)
    rows = []
    for step, images in ((1, 64), (2, 64), (3, 22)):
        clock.now += 1.0
        rows.append(progress.update(step, 1, loss=1.0, lr=0.1, images=images))
    assert rows[:2] == [None, None]
    assert rows[2]["images_per_second"] == pytest.approx(150 / 3)
    assert "eta 0:00:00" in capsys.readouterr().out


def test_numbers_are_read_only_when_they_are_printed(capsys):
    class OnDevice:
        reads = 0

        def __float__(self):
            self.reads += 1
            return math.nan

    loss = OnDevice()
    progress = Progress(total_steps=9, steps_per_epoch=9, epochs=1, every=3)
    for step in range(1, 10):
        progress.update(step, 1, loss=loss, lr=0.1, images=1)
    assert loss.reads == 3
    assert "loss nan" in capsys.readouterr().out


RUN = """
import time
from plsc.utils.progress import Progress
from plsc.utils.logging import get_logger
progress = Progress(total_steps=60, steps_per_epoch=30, epochs=2, every=10)
for step in range(1, 61):
    time.sleep(0.01)
    progress.update(step, 1 + (step - 1) // 30, loss=7.0, lr=0.1, images=8)
    if step == 30:
        with progress.pause():
            get_logger().warning("evaluated")
progress.close()
print("the end")
"""
LINE = re.compile(r"\S+ \S+ INFO epoch \d/2 step \d+/60 loss 7\.000 lr 0\.1 [\d.]+ img/s eta \d:\d\d:\d\d")


def check_run(lines):
    steps = [line for line in lines if LINE.fullmatch(line)]
    assert [re.search(r"step (\d+)", line)[1] for line in steps] == ["10", "20", "30", "40", "50", "60"]
    rest = [line for line in lines if line not in steps]
    said = ("INFO epoch 1, time ", "WARNING evaluated", "INFO epoch 2, time ", "the end")
    assert len(rest) == 4 and all(part in line for part, line in zip(said, rest))


def test_a_pipe_gets_whole_lines_and_nothing_else():
    done = run_python("-c", RUN, cwd=ROOT)
    assert done.stderr == ""
    check_run(done.stdout.splitlines())


def screen(output):
    """What a wide terminal shows in the end: \\r returns to the start of the line, later text overwrites."""
    lines = []
    for raw in output.replace("\r\n", "\n").split("\n"):
        cells, column = [], 0
        for char in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", raw):
            if char == "\r":
                column = 0
                continue
            cells[column : column + 1] = [char]
            column += 1
        lines.append("".join(cells).rstrip())
    return [line for line in lines if line]


def test_on_a_terminal_the_bar_stays_below_the_lines():
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
    process = start_python("-c", RUN, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # how Linux says that the other end is closed
            part = b""
        if not part:
            break
        output += part
    os.close(main)
    assert process.wait() == 0
    text = output.decode()
    assert re.search(r"epoch 1/2: +\d+%\|", text) and re.search(
        r"epoch 2/2: +\d+%\|", text
    )  # there was a bar
    assert max(int(done) for done in re.findall(r"(\d+)/30 \[", text)) <= 30
    check_run(screen(text))


# metrics.jsonl


def rows_up_to(last, loss=1.0):
    return [
        {"step": s, "epoch": 1, "loss": loss, "lr": 0.1, "images_per_second": 9.5} for s in range(1, last + 1)
    ]


def write(metrics, rows):
    for row in rows:
        metrics.write(row)
    metrics.close()


def test_rows_come_back_and_are_appended_by_default(tmp_path):
    evaluated = {"eval": "pairs", "step": 2, "accuracy": 0.975, "std": 0.01, "threshold": None}
    write(Metrics(tmp_path), rows_up_to(2))
    write(Metrics(tmp_path), [evaluated])
    assert read_metrics(tmp_path / "metrics.jsonl") == [*rows_up_to(2), evaluated]


def test_resume_replaces_the_later_rows(tmp_path):
    write(Metrics(tmp_path), [*rows_up_to(6), {"eval": "pairs", "step": 6, "accuracy": 0.5}])
    resumed = Metrics(tmp_path, from_step=4)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    write(resumed, rows_up_to(7, loss=2.0)[4:])
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in rows] == [(s, 1.0 if s <= 4 else 2.0) for s in range(1, 8)]


def test_a_new_run_begins_with_an_empty_file(tmp_path):
    write(Metrics(tmp_path), [{"eval": "pairs", "step": 0, "accuracy": 0.5}, *rows_up_to(3)])
    write(Metrics(tmp_path, from_step=0), rows_up_to(1))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(1)


def test_metrics_are_strict_json(tmp_path):
    row = {
        "step": np.int64(3),
        "loss": np.float32("nan"),
        "lr": math.inf,
        "accuracy": np.array(0.5),
        "note": "Ж",
    }
    write(Metrics(tmp_path), [row])

    def refuse(constant):
        raise AssertionError(constant)

    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert json.loads(line, parse_constant=refuse) == {
        "step": 3, "loss": None, "lr": None, "accuracy": 0.5, "note": "Ж", "nonfinite": ["loss", "lr"]
    }  # fmt: skip


def test_a_row_cut_off_by_a_kill_is_left_out_and_said(tmp_path, capsys):
    write(Metrics(tmp_path), rows_up_to(2))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    write(Metrics(tmp_path, from_step=2), rows_up_to(3)[2:])
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(3)
    assert "metrics.jsonl:3: the last row is cut off" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["rubbish", "[1]", '{"loss": 1}'])
def test_any_other_bad_row_is_an_error(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(
        UserError, match=r"metrics.jsonl:2: not a row of metrics \(got " + re.escape(repr(line))
    ):
        read_metrics(tmp_path / "metrics.jsonl")


def test_missing_metrics_are_named(tmp_path):
    with pytest.raises(MissingFileError, match="nothing.jsonl: no such metrics file"):
        read_metrics(tmp_path / "nothing.jsonl")


def test_a_rollback_replaces_rows_while_the_file_is_open(tmp_path):
    metrics = Metrics(tmp_path)
    for row in (*rows_up_to(5), {"eval": "pairs", "step": 5, "accuracy": 0.5}):
        metrics.write(row)
    metrics.rewind(3)
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(3)
    write(metrics, rows_up_to(6, loss=2.0)[3:])
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows == [*rows_up_to(3), *rows_up_to(6, loss=2.0)[3:]]


def test_missing_visualdl_is_said_once_and_not_fatal(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "visualdl", None)
    write(Metrics(tmp_path), rows_up_to(2))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(2)
    assert capsys.readouterr().out.count("no VisualDL log (ModuleNotFoundError") == 1


def test_visualdl_that_breaks_later_is_said_once_and_not_fatal(tmp_path, capsys):
    metrics = Metrics(tmp_path)

    class Broken:
        def write(self, values, step):
            raise TypeError("protobuf")

    metrics._loggers["visualdl"] = Broken()
    write(metrics, rows_up_to(2))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(2)
    assert capsys.readouterr().out.count("no VisualDL log (TypeError: protobuf)") == 1


# Text


@pytest.mark.parametrize(
    "value, text",
    [
        (7.00004, "7.000"), (0.1, "0.1000"), (0.0123456, "0.01235"), (1512.4, "1512"), (999.99, "1000"),
        (15123.7, "15124"), (1.5e-7, "1.500e-07"), (2e9, "2.000e+09"), (0, "0.000"), (-3.14159, "-3.142"),
        (math.nan, "nan"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


def test_durations():
    assert [duration(s) for s in (0.4, 62, 3600 * 27 + 59.6)] == ["0:00:00", "0:01:02", "27:01:00"]


def test_table_lines_up():
    text = table([["alef", 12, 0.5], ["bet", None, 15.25]], ["set", "pairs", "score"])
    assert text.splitlines() == [
        "set   pairs   score",
        "----  -----  ------",
        "alef     12  0.5000",
        "bet       -   15.25",
    ]
    assert table([], ["set"]) == "set\n---"


def test_a_set_whose_name_is_no_utf_8_is_written_and_read(tmp_path):
    name = os.fsdecode(b"J\xf6rg")
    metrics = Metrics(tmp_path)
    metrics.write({"eval": name, "step": 1, "accuracy": 0.5})
    metrics.rewind(1)
    metrics.close()
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["eval"] == name
