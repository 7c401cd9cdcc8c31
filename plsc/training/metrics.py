"""Write and read metrics.jsonl, the numbers of a run, and write its copies for other programs.

Tests and tools read metrics.jsonl, never the text of log lines.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.training.loggers import LOGGERS
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger
from plsc.utils.text import plural


class Metrics:
    """Writes `<folder>/metrics.jsonl`, one JSON object a line, and copies for other programs; on rank 0 only.

    Rows have a "step"; a row with "eval" (the name of a set) is an evaluation, the others are training. A
    number that is not finite becomes null. The copies have the numbers as "train/loss" and
    "eval/<set>/accuracy". One warning is logged if a copy cannot be written (any more), and the run goes on
    without it.

    step: where the run goes on; rows of later steps are dropped, and will be written again, while the copies
    keep their points. loggers: the copies, of Global.loggers.
    """

    def __init__(self, folder: str | Path, step: int = 0, loggers: Sequence[str] = ("visualdl",)):
        self.path = Path(folder) / "metrics.jsonl"
        rows = read_metrics(self.path) if self.path.exists() else []
        self._copied = {_kind(row): row["step"] for row in rows}  # the last of each
        replace_file(self.path, b"".join(_line(row) for row in rows if row["step"] <= step))
        # What a full disk refuses waits in the buffer.
        self._file = open(self.path, "ab", buffering=2**20)  # noqa: SIM115 (as long as the run)
        self._loggers: dict[str, Any] = {}
        for name in loggers:
            with self._may_fail(name):
                self._loggers[name] = LOGGERS[name](self.path.parent)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row, of str, bool, None, numbers, 0-d arrays or tensors."""
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}
        with contextlib.suppress(OSError):
            self._file.write(_line(plain))
            self._file.flush()
        kind = _kind(plain)
        if plain["step"] <= self._copied.get(kind, -1):
            return
        values = {
            f"{kind}/{key}": float(value)
            for key, value in plain.items()
            if key not in ("step", "epoch") and isinstance(value, (int, float))
        }
        for name, logger in list(self._loggers.items()):
            with self._may_fail(name):
                logger.write(values, plain["step"])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
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
                f"no log for {name} ({type(error).__name__}: {' '.join(str(error).split())}); the metrics "
                f"are in {self.path}"
            )


def _kind(row: Mapping[str, Any]) -> str:
    return f"eval/{row['eval']}" if "eval" in row else "train"


def _line(row: Mapping[str, Any]) -> bytes:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(finite, allow_nan=False).encode() + b"\n"


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics.jsonl, without a last one that a killed run has cut off.

    Other lines that are damaged, as a power failure leaves them, are dropped with one warning: a log never
    stops a run.
    """
    rows, damaged = [], []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            assert isinstance(row["step"], int)
            rows.append(row)
        except (AssertionError, ValueError, KeyError, TypeError, RecursionError):
            damaged.append(number)
    if damaged:
        get_logger().warning(
            f"{path}: {plural(len(damaged), 'damaged line')} dropped, the first is line {damaged[0]}"
        )
    return rows
