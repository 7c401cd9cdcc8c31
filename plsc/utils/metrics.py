"""Write and read metrics.jsonl, the numbers of a run, with its copy for VisualDL.

Tests and tools read metrics.jsonl, never the text of log lines.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plsc.errors import MissingFileError, UserError
from plsc.utils.appended_file import AppendedFile
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger


class Metrics:
    """Writes `<folder>/metrics.jsonl`, one JSON object a line, and a copy for VisualDL; made on rank 0 only.

    Rows have a "step"; a row with "eval" (the name of a pair set) is an evaluation, the others are training.
    Strict JSON: a number that is not finite becomes null, and the row's "nonfinite" lists such keys.
    VisualDL's copy is in `<folder>/visualdl`; one warning is logged if that package is missing or broken.

    Args:
        from_step: None appends to the rows that exist; s > 0 resumes and drops the rows of later steps, which
            will be written again; 0 drops all rows.
    """

    def __init__(self, folder: str | Path, from_step: int | None = None) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self._keep(from_step)
        self._rows = AppendedFile(self.path, own=True)
        records = self.path.parent / "visualdl" / "vdlrecords.train.log"
        if from_step == 0:
            records.unlink(missing_ok=True)
        # VisualDL cannot delete a point: those of dropped rows stay, and are not written twice.
        self._drawn: dict[str | None, int] = {}
        if records.exists():
            self._note_drawn(rows)
        self._visualdl: Any = None
        with self._visualdl_may_fail(), contextlib.redirect_stdout(io.StringIO()):  # it prints a greeting
            from visualdl import LogWriter  # takes 0.3 s, so only where metrics are written

            # A fixed name: with a second file in the folder, VisualDL would show only the newest.
            self._visualdl = LogWriter(str(records.parent), file_name=records.name)

    def _keep(self, until: int | None) -> list[dict[str, Any]]:
        """Drop the rows of the steps after `until` (None: none, 0: all), and return all rows as they were."""
        rows = read_metrics(self.path) if self.path.exists() else []
        kept = [row for row in rows if until is None or row["step"] <= until and until > 0]
        replace_file(self.path, "".join(_dump(row) for row in kept).encode("utf-8", "backslashreplace"))
        return rows

    def rewind(self, step: int) -> None:
        """Drop the rows of later steps, which will be written again; VisualDL keeps their first points."""
        self._rows.close()
        self._note_drawn(self._keep(step))
        self._rows = AppendedFile(self.path, own=True)

    def _note_drawn(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            kind = row.get("eval")
            self._drawn[kind] = max(row["step"], self._drawn.get(kind, 0))

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
        name, step = plain.pop("eval", None), plain.pop("step")
        if self._visualdl is None or step <= self._drawn.get(name, -1):
            return
        with self._visualdl_may_fail():
            for key, value in plain.items():
                if key != "epoch" and isinstance(value, (int, float)):
                    tag = f"train/{key}" if name is None else f"eval/{name}/{key}"
                    self._visualdl.add_scalar(tag=tag, value=float(value), step=step)

    def close(self) -> None:
        self._rows.close()
        if self._visualdl is not None:
            with self._visualdl_may_fail():
                self._visualdl.close()

    @contextlib.contextmanager
    def _visualdl_may_fail(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (an error of that package must not end a training)
            self._visualdl = None
            get_logger().warning(
                f"no VisualDL log ({type(error).__name__}: {error}); the metrics are in {self.path}"
            )


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
