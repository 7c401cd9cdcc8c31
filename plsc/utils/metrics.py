"""Write and read metrics.jsonl, the numbers of a run, and write its copies for other programs.

Tests and tools read metrics.jsonl, never the text of log lines.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.errors import MissingFileError, UserError
from plsc.utils.appended_file import AppendedFile
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.files import read_json
from plsc.utils.loggers import LOGGERS, Logger
from plsc.utils.logging import get_logger


class Metrics:
    """Writes `<folder>/metrics.jsonl`, one JSON object a line, and copies for other programs; made on rank 0
    only.

    Rows have a "step"; a row with "eval" (the name of a pair set) is an evaluation, the others are training.
    Strict JSON: a number that is not finite becomes null, and the row's "nonfinite" lists such keys.

    The copies have the numbers as "train/loss" and "eval/<set>/accuracy". What was written there cannot be
    deleted: the points of dropped rows stay, and are not written twice; `<folder>/logged.json` keeps how far
    they go. One warning is logged if a copy cannot be written (any more), and the run goes on without it.

    Args:
        from_step: None appends to the rows that exist; s > 0 resumes and drops the rows of later steps, which
            will be written again; 0 drops all rows, and the copies.
        loggers: the copies, of Global.loggers.
    """

    def __init__(
        self, folder: str | Path, from_step: int | None = None, loggers: Sequence[str] = ("visualdl",)
    ) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._reached_file = self.path.parent / "logged.json"
        if from_step == 0:
            for path in (self._reached_file, *(self.path.parent / name for name in LOGGERS)):
                remove(path)
        self._reached = (
            self._read_reached()
        )  # the last step of "train" and of each "eval/<set>" in the copies
        self._drop_rows(from_step)
        self._rows = AppendedFile(self.path, own=True)
        self._loggers: dict[str, Logger] = {}
        for name in loggers:
            with self._may_fail(name):
                self._loggers[name] = LOGGERS[name](self.path.parent)
        self._continued = {name for name, logger in self._loggers.items() if logger.continues}

    def _read_reached(self) -> dict[str, int]:
        try:
            reached = read_json(self._reached_file)
        except UserError:
            return {}
        valid = isinstance(reached, dict) and all(type(step) is int for step in reached.values())
        return reached if valid else {}

    def _drop_rows(self, until: int | None) -> None:
        """Drop the rows of the steps after `until` (None: none, 0: all), and note how far all of them
        went."""
        rows = read_metrics(self.path) if self.path.exists() else []
        kept = [row for row in rows if until is None or row["step"] <= until and until > 0]
        if until != 0:
            for row in rows:
                kind = _kind(row.get("eval"))
                self._reached[kind] = max(row["step"], self._reached.get(kind, 0))
        if len(kept) < len(rows) and self._reached:
            replace_file(self._reached_file, json.dumps(self._reached).encode())
        replace_file(self.path, "".join(_dump(row) for row in kept).encode("utf-8", "backslashreplace"))

    def rewind(self, step: int) -> None:
        """Drop the rows of later steps, which will be written again; the copies keep their first points."""
        self._rows.close()
        self._drop_rows(step)
        self._continued = set(self._loggers)
        self._rows = AppendedFile(self.path, own=True)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row, of str, bool, None, numbers, 0-d arrays or tensors.

        Usual keys: "step", "epoch", "loss", "lr", "images_per_second", "data_wait"; or "eval", "step",
        "accuracy".
        """
        assert "step" in row, row
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}
        bad = [key for key, value in plain.items() if isinstance(value, float) and not math.isfinite(value)]
        finite = {key: None if key in bad else value for key, value in plain.items()}
        self._rows.write(_dump({**finite, "nonfinite": bad} if bad else finite))
        kind, step = _kind(plain.pop("eval", None)), plain.pop("step")
        values = {
            f"{kind}/{key}": float(value)
            for key, value in plain.items()
            if key != "epoch" and isinstance(value, (int, float))
        }
        for name, logger in list(self._loggers.items()):
            if not (name in self._continued and step <= self._reached.get(kind, -1)):
                with self._may_fail(name):
                    logger.write(values, step)

    def close(self) -> None:
        self._rows.close()
        for name, logger in list(self._loggers.items()):
            with self._may_fail(name):
                logger.close()

    @contextlib.contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (an error of that package must not end a training)
            self._loggers.pop(name, None)
            get_logger().warning(
                f"no {LOGGERS[name].__name__} log ({type(error).__name__}: {_one_line(error)}); the metrics are in {self.path}"
            )


def _one_line(error: Exception) -> str:
    """Return the text of another package's error on one line, without the user and password of a server's
    address."""
    return re.sub(r"(?<=://)[^/\s]*@", "", " ".join(str(error).split()))


def _kind(evaluated: str | None) -> str:
    return "train" if evaluated is None else f"eval/{evaluated}"


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics.jsonl; a last row cut off by a killed run is left out with a warning.

    Raises MissingFileError, and UserError for any other line that is not a JSON object with a "step".
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such metrics file, give the metrics.jsonl of a run")
    rows, lines = [], path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line_number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        elif line_number == len(lines):
            get_logger().warning(f"{path}:{line_number}: the last row is cut off, it is left out")
        else:
            raise UserError(
                f"{path}:{line_number}: not a row of metrics (got {line[:40]!r}),"
                ' a row is a JSON object with a "step"'
            )
    return rows


def _dump(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
