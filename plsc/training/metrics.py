"""Write and read metrics.jsonl, which has a run's numbers, and write copies for other programs.

Tests and tools read metrics.jsonl, never the log lines' text.

Try it: `read_metrics("output/faces/metrics.jsonl")`.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plsc.training.loggers import LOGGERS
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger
from plsc.utils.text import plural


class Metrics:
    """Writes `<folder>/metrics.jsonl`, one JSON object per line, and copies for other programs. Rank 0 only.

    Every row has a "step". A row with "eval" (the name of a set) is from an evaluation. The other rows are
    from training. A non-finite number becomes null. The copies name the numbers "train/loss" and
    "eval/<set>/accuracy". If a copy cannot be written, one warning is logged, and the run continues without
    that copy.

    Args:
        folder: the run's folder.
        step: step from which the run continues. Later steps' rows are dropped, because the run will write
            them again. The copies keep their points. They may get a step's points twice if a run returns to
            an earlier step twice, because only the rows tell what they have.
        loggers: the copies' names, see Global.loggers.
    """

    def __init__(self, folder: str | Path, step: int = 0, loggers: Sequence[str] = ("visualdl",)):
        self.path = Path(folder) / "metrics.jsonl"
        rows = read_metrics(self.path) if self.path.exists() else []
        self._copied = {_kind(row): row["step"] for row in rows}  # row kind -> last step in the copies
        self._rewrite(row for row in rows if row["step"] <= step)
        self._loggers: dict[str, Any] = {}
        for name in loggers:
            with self._may_fail(name):
                self._loggers[name] = LOGGERS[name](self.path.parent)

    def drop_evaluation(self, step: int) -> None:
        """Drop the rows of a step's evaluation, because the step will be evaluated again.

        A run that is killed between these rows and the evaluation.json of the checkpoint leaves them.
        """
        rows = [row for row in read_metrics(self.path) if row["step"] != step or "eval" not in row]
        with contextlib.suppress(OSError):  # the rows then stay
            before = self._file
            self._rewrite(rows)
            before.close()

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        replace_file(self.path, b"".join(map(_line, rows)))
        # If the disk is full, rows wait in the buffer.
        self._file = open(self.path, "ab", buffering=2**20)  # noqa: SIM115 (open as long as the run)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row. Its values are str, bool, None, numbers, 0-d arrays or tensors."""
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
        except Exception as error:  # noqa: BLE001 (an error in that package must not end a training)
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
    """Read the rows of a metrics.jsonl. An incomplete last line, which a killed run leaves, is ignored.

    Other damaged lines, which a power failure leaves, are dropped with one warning. A damaged log never stops
    a run.
    """
    rows, damaged = [], []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            if type(row["step"]) is not int:  # True and False are no steps
                raise TypeError
            rows.append(row)
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged.append(number)
    if damaged:
        get_logger().warning(
            f"{path}: {plural(len(damaged), 'damaged line')} dropped, the first is line {damaged[0]}"
        )
    return rows
