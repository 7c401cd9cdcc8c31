"""metrics.jsonl, and what is said of a copy that fails."""

import contextlib
import errno
import json
import math
import os
import sys

import numpy as np

from plsc.training.metrics import Metrics, read_metrics


def rows_up_to(last, loss=1.0):
    return [
        {"step": s, "epoch": 1, "loss": loss, "lr": 0.1, "images_per_second": 9.5} for s in range(1, last + 1)
    ]


def write(metrics, rows):
    for row in rows:
        metrics.write(row)
    metrics.close()


def test_rows_come_back_and_those_of_later_steps_are_replaced(tmp_path):
    evaluated = {"eval": os.fsdecode(b"J\xf6rg"), "step": 4, "accuracy": 0.975, "threshold": None}
    write(Metrics(tmp_path), [*rows_up_to(4), evaluated, *rows_up_to(6)[4:]])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')  # the process was killed here
    resumed = Metrics(tmp_path, 4)
    assert read_metrics(tmp_path / "metrics.jsonl") == [*rows_up_to(4), evaluated]
    later = rows_up_to(7, loss=2.0)[4:]
    write(resumed, later)
    assert read_metrics(tmp_path / "metrics.jsonl") == [*rows_up_to(4), evaluated, *later]


def test_a_damaged_line_anywhere_is_dropped_with_one_warning(tmp_path, capsys):
    write(Metrics(tmp_path), rows_up_to(6))
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = b"\0" * 40 + b"\n"  # what ext4 and XFS leave after a power failure
    lines[3] = b"\xff{}\n"
    lines[4] = b'{"step": true}\n'
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    left = [rows_up_to(6)[index] for index in (0, 2, 5)]
    capsys.readouterr()
    write(Metrics(tmp_path, 6), [])
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1 and "3 damaged lines dropped, the first is line 2" in said
    assert read_metrics(tmp_path / "metrics.jsonl") == left and "WARNING" not in capsys.readouterr().out


def test_metrics_are_strict_json(tmp_path):
    row = {"step": np.int64(3), "loss": np.float32("nan"), "lr": math.inf, "accuracy": np.array(0.5)}
    write(Metrics(tmp_path), [row])
    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in line and "Inf" not in line
    assert json.loads(line) == {"step": 3, "loss": None, "lr": None, "accuracy": 0.5}


def test_rows_wait_for_space_on_the_disk(tmp_path):
    metrics = Metrics(tmp_path, loggers=())
    full = metrics._file.raw.fileno()
    kept = os.dup(full)
    with open("/dev/full", "wb") as device:
        os.dup2(device.fileno(), full)
    metrics.write({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    os.dup2(kept, full)
    os.close(kept)
    write(metrics, [{"step": 2}])
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_a_full_disk_stops_no_evaluation_that_is_made_again(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with contextlib.closing(Metrics(tmp_path, loggers=())) as metrics:
        metrics.write({"step": 1, "eval": "pairs", "accuracy": 0.5})
        monkeypatch.setattr("plsc.training.metrics.replace_file", full)
        metrics.drop_evaluation(1)
        metrics.write({"step": 2, "loss": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_missing_visualdl_is_reported_once_and_not_fatal(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "visualdl", None)
    write(Metrics(tmp_path), rows_up_to(2))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(2)
    assert capsys.readouterr().out.count("no log for visualdl (ModuleNotFoundError") == 1


def test_visualdl_that_breaks_later_is_reported_once_and_not_fatal(tmp_path, capsys):
    metrics = Metrics(tmp_path)

    class Broken:
        def write(self, values, step):
            raise TypeError("proto\nbuf")

    metrics._loggers["visualdl"] = Broken()
    write(metrics, rows_up_to(2))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows_up_to(2)
    assert capsys.readouterr().out.count("no log for visualdl (TypeError: proto buf)") == 1
