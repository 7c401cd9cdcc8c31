"""Progress lines for a training and for other long work, on pipes and terminals."""

import fcntl
import math
import os
import pty
import re
import struct
import termios

import paddle
import pytest

from plsc.training.progress import Progress
from plsc.utils.bar import Bar
from tests.helpers.launch import ROOT, run_python, start_python


@pytest.fixture
def clock(monkeypatch):
    """The seconds that time.monotonic gives, in a list."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def said(capsys):
    return capsys.readouterr().out.splitlines()


def test_images_per_second_and_eta_by_hand(capsys, clock):
    progress = Progress(total_steps=100, steps_per_epoch=25, every=10, start_step=40)
    rows = []
    for step in range(41, 61):
        clock[0] += 0.5
        if step == 55:
            with progress.pause():
                clock[0] += 30.0
        rows.append(progress.update(step, loss=6.5, lr=0.1, images=64, accuracy=0.25))
    assert [row["step"] for row in rows if row] == [50, 60]
    first, second = rows[9], rows[19]
    assert first == {
        "step": 50, "epoch": 2, "loss": 6.5, "lr": 0.1, "images_per_second": 10 * 64 / 5.0, "data_wait": 0.0,
        "accuracy": 0.25,
    }  # fmt: skip
    assert second["images_per_second"] == pytest.approx(10 * 64 / 5.0)  # the pause is not counted
    lines = said(capsys)
    assert lines[0].endswith(
        "INFO epoch 2/4 step 50/100 loss 6.500 acc 0.2500 lr 0.1 128.0 img/s eta 0:00:25"
    )
    assert lines[1].endswith("INFO epoch 2, time 5.0 sec")  # the 10 steps of the epoch in this run
    assert lines[2].endswith("eta 0:01:20")  # 40 steps at (10 + 30) s / 20 steps


def test_a_line_is_the_mean_over_the_samples_since_the_line_before(capsys, clock):
    """An epoch's last batch, with 24 samples instead of 256, makes no spike in the curves."""
    progress = Progress(total_steps=6, steps_per_epoch=3, every=3)
    losses, rows = [1.0, 2.0, 9.0, 4.0, math.nan, 6.0], []
    for step, (loss, images) in enumerate(zip(losses, [256, 256, 24] * 2), 1):
        clock[0] += 1.0
        means = {"accuracy": 0.5 * loss, "loss/part": paddle.full([], loss, "float64")}
        rows.append(progress.update(step, loss, 0.1, images, means=means, taken=step != 5, skipped=1))
    first, second = rows[2], rows[5]
    mean = (256 * 1.0 + 256 * 2.0 + 24 * 9.0) / 536
    assert first["loss"] == first["loss/part"] == mean and first["accuracy"] == 0.5 * mean
    assert second["loss"] == (256 * 4.0 + 24 * 6.0) / 280, "a skipped step has no loss"
    assert second["skipped"] == 1 and second["images_per_second"] == 536 / 3


def test_a_parts_loss_is_the_mean_over_the_steps_that_have_one(clock):
    progress = Progress(total_steps=4, steps_per_epoch=4, every=4)
    for step in range(1, 5):
        clock[0] += 1.0
        row = progress.update(step, 2.0, 0.1, images=8, means={"loss/part": 6.0} if step % 2 else {})
    assert row["loss"] == 2.0 and row["loss/part"] == 6.0


def test_the_time_of_an_epoch_is_that_of_its_steps(capsys, clock):
    progress = Progress(total_steps=7, steps_per_epoch=3, every=100)
    for step in range(1, 8):
        clock[0] += step
        row = progress.update(step, loss=1.0, lr=0.1, images=8)
        if step in (2, 3):  # an evaluation within an epoch, and one after its end
            with progress.pause():
                clock[0] += 50.0
    lines = [line.partition("INFO ")[2] for line in said(capsys)]
    assert lines[:2] == ["epoch 1, time 6.0 sec", "epoch 2, time 15.0 sec"]
    assert len(lines) == 3 and lines[2].startswith("epoch 3/3 step 7/7") and row["step"] == 7


def test_waiting_for_data_is_a_share(capsys, clock):
    """In each second, a step in these rows waits so long. An evaluation does not."""
    waited, rows = 0.0, []
    progress = Progress(total_steps=30, steps_per_epoch=50, every=10)
    for step in range(1, 31):
        clock[0] += 1.0
        waited += (0.9, 0.05, 0.34)[(step - 1) // 10]
        if step == 25:
            with progress.pause():
                clock[0] += 30.0
        rows.append(progress.update(step, loss=1.0, lr=0.1, images=8, waited=waited))
    assert [row["data_wait"] for row in rows if row] == pytest.approx([0.9, 0.05, 0.34])
    lines = [line.partition(" lr 0.1 ")[2].partition(" eta")[0] for line in said(capsys)]
    assert lines == ["data wait 90 % 8.000 img/s", "8.000 img/s", "data wait 34 % 8.000 img/s"]


def test_what_is_no_number_is_skipped_with_one_warning(capsys):
    progress = Progress(total_steps=4, steps_per_epoch=4, every=2)
    rows = [progress.update(n, 1.0, 0.1, 8, word="abc", rows=[1, 2], right=2) for n in range(1, 5)]
    assert [(set(row) & {"word", "rows", "right"}, row["right"]) for row in rows if row] == [
        ({"right"}, 2)
    ] * 2
    found = capsys.readouterr().out
    assert "WARNING Parts: 'word' is not a number but 'abc'; it is not" in found
    assert found.count("WARNING") == 2


def test_numbers_are_read_only_when_they_are_printed(capsys):
    class OnDevice:
        reads = 0

        def __float__(self):
            self.reads += 1
            return math.nan

    number = OnDevice()
    progress = Progress(total_steps=9, steps_per_epoch=9, every=3)
    for step in range(1, 10):
        progress.update(step, loss=1.0, lr=0.1, images=1, accuracy=number)
    assert number.reads == 3
    assert "acc nan" in capsys.readouterr().out


RUN = """
import time
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger
with Bar("reading", 60, "images") as bar:
    for step in range(1, 61):
        time.sleep(0.01)
        bar.update()
        if step % 10 == 0:
            get_logger().info(f"step {step} of 60")
print("the end")
"""
LINE = re.compile(r"\S+ \S+ INFO step \d+ of 60")


def check_run(lines):
    steps = [line for line in lines if LINE.fullmatch(line)]
    assert [re.search(r"step (\d+)", line)[1] for line in steps] == ["10", "20", "30", "40", "50", "60"]
    assert [line for line in lines if line not in steps] == ["the end"]


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
    assert re.search(r"reading: +\d+%\|", text)  # there was a bar
    check_run(screen(text))


def test_without_a_terminal_lines_in_the_log_say_how_much_is_done(capsys, clock):
    with Bar("reading \x1b[31m", 2000, "images") as bar:
        for seconds in (3, 9, 6, 6):
            clock[0] += seconds
            bar.update(250)
    done = capsys.readouterr()
    assert [line.split("INFO ")[1] for line in done.out.splitlines()] == [
        "reading \\x1b[31m: 500 of 2,000 images, eta 0:00:36",
        "reading \\x1b[31m: 1,000 of 2,000 images, eta 0:00:24",
    ]
    assert done.err == ""
