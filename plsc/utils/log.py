"""What a run says: log lines, the progress of training, metrics.jsonl with its VisualDL copy, text tables.

People read the lines; tests and tools read metrics.jsonl, never the text. A line is whole wherever it goes: a
terminal (with tqdm's bar below the lines), a pipe, a launcher's workerlog. Knows no paddle. Try it:

    python -c "from plsc.utils.log import get_logger; get_logger().info('hello')"
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from tqdm import tqdm

from plsc.errors import MissingFileError, UserError, shown_lines
from plsc.utils.atomic_write import replace_file

_logger = logging.getLogger("plsc")
_handlers: list[logging.Handler] = []  # ours; a user's own handlers are left alone


WAIT_SHOWN = 0.1  # share of the time spent waiting for data above which it is said


class _Formatter(logging.Formatter):
    """Escapes what names from data could steer a terminal with, and what no file takes."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(super().format(record))


class _Console(logging.StreamHandler):
    """Writes to what sys.stdout is at that moment, above a progress bar if there is one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # StreamHandler's own would freeze today's stdout

    @property
    def stream(self) -> Any:
        return sys.stdout

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class _Appended:
    """A file that is appended to. What it does not take, because the disk is full, is kept and written before what comes next.

    `own`: UserError where it is not there any more, or another file is in its place.
    """

    def __init__(self, path: Path, own: bool):
        self.path = path
        self.waiting = b""  # not written yet
        with open(path, "ab") as file:
            self._identity = _identity(file.fileno()) if own else None

    def write(self, text: str) -> None:
        self.waiting += text.encode("utf-8", "backslashreplace")
        try:
            with open(self.path, "ab" if self._identity is None else "r+b", buffering=0) as file:
                if self._identity not in (None, _identity(file.fileno())):
                    raise FileNotFoundError
                file.seek(0, os.SEEK_END)
                while self.waiting:
                    self.waiting = self.waiting[file.write(self.waiting) :]
        except FileNotFoundError:
            if self._identity is not None:
                raise UserError(
                    f"{self.path}: was deleted or replaced while the run wrote it; leave Global.output_dir alone, and start anew"
                ) from None
        except OSError:
            pass

    def close(self) -> None:
        """Try once more, and say what could not be written."""
        if self.waiting:
            self.write("")
        if self.waiting:
            lines = self.waiting.count(b"\n")
            print(f"ERROR {self.path}: the last {lines} lines could not be written", file=sys.stderr)


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


class _LogFile(logging.Handler):
    """Appends to a file, which it waits for where the disk is full."""

    def __init__(self, path: Path):
        super().__init__()
        self._file = _Appended(path, own=False)

    def emit(self, record):
        self._file.write(self.format(record) + "\n")

    def close(self):
        self._file.close()
        super().close()


class _Early(logging.Handler):
    """Keeps the last lines for a file that is not open yet."""

    def __init__(self):
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=1000)

    def emit(self, record):
        self.records.append(record)


def setup(rank: int = 0, log_file: Path | None = None) -> logging.Logger:
    """Send the log to stdout, and to `log_file` (appended to) if given, with what was said since a call without one: a run that is
    refused must not have written anything, and one that is not has it all.

    Rank 0 says everything from INFO up, the others warnings and errors only, marked `[rank k]`. Calling it
    again replaces what the call before had set.
    """
    # import paddle gives the root logger a handler: without this each line would come twice, in two formats.
    _logger.propagate = False
    _logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    early = [record for handler in _handlers if isinstance(handler, _Early) for record in handler.records]
    for handler in _handlers:
        _logger.removeHandler(handler)
        handler.close()
    _handlers[:] = [_Console(), _Early()]
    if log_file is not None:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        _handlers[1:] = [_LogFile(Path(log_file))]
    mark = f"[rank {rank}] " if rank else ""
    for handler in _handlers:
        handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {mark}%(message)s", "%Y-%m-%d %H:%M:%S"))
        _logger.addHandler(handler)
    if log_file is not None:
        for record in early:
            _handlers[1].handle(record)
    return _logger


def get_logger() -> logging.Logger:
    """The logger "plsc"; set up as rank 0's, to stdout, if nobody has called `setup` yet."""
    return _logger if _handlers else setup()


def warn(text: str) -> None:
    """A warning that every rank comes to alike; rank 0 says it for all."""
    logger = get_logger()
    if logger.level <= logging.INFO:
        logger.warning(text)


class Progress:
    """The training run as one line each `every` steps and, on a terminal, a bar below the lines.

    Steps and epochs count from 1; `start_step` steps were done before this run. A line:

        epoch 1/8 step 150/2000 loss 7.000 acc 0.1200 lr 0.1 1512 img/s eta 0:10:22

    and at the end of an epoch `epoch 1, time 20.4 sec`: of its steps in this run, pauses left out.

    img/s: over the steps since the line before, pauses left out. `data wait 34 %` comes before it where more than a tenth
    of that time was spent waiting for batches, and from the second line on, once, `advice` what to do; images replaced
    because they are corrupt are counted in the line at the end of the epoch. eta: from the mean time of a step in this
    run, pauses (evaluations, checkpoints) counted, because they will come again.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        epochs: int,
        global_batch: int,
        every: int,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        data: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        advice: str = "",
    ) -> None:
        """`data`: how many seconds were spent waiting for batches, since its start, and how many images of this epoch were
        replaced. It is called when a line is due, which is at the same steps on every rank."""
        self._total, self._per_epoch, self._epochs = total_steps, steps_per_epoch, epochs
        self._global_batch, self._every, self._start_step, self._clock = (
            global_batch,
            every,
            start_step,
            clock,
        )
        self._data, self._waited, self._advice = data, data()[0], advice
        self._start = self._window = self._epoch_start = clock()
        self._paused = 0.0
        self._images = 0
        self._epoch = 0
        quiet = not get_logger().isEnabledFor(logging.INFO)
        self._bar = tqdm(
            desc="training",
            total=steps_per_epoch,
            disable=quiet or None,  # None: only on a terminal
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
        )

    def update(
        self,
        step: int,
        epoch: int,
        loss: SupportsFloat,
        lr: float,
        images: int | None = None,
        **extra: SupportsFloat,
    ) -> dict[str, Any] | None:
        """Report that `step` is done, on `images` images if not a whole global batch.

        Logs each `every` steps and after the last one, and then returns the metrics row, else None. `loss`
        and `extra` (accuracy=...) are made floats only then: no step waits for a number on a GPU.
        """
        self._images += self._global_batch if images is None else images
        self._draw(step, epoch)
        row = None
        said, ends = step % self._every == 0 or step == self._total, step % self._per_epoch == 0
        waited, replaced = self._data() if said or ends else (0.0, 0)
        if said:
            row = self._say(step, epoch, loss, lr, extra, waited)
            row.update({"replaced": replaced} if replaced else {})
        if ends:
            now = self._clock()
            corrupt = f", corrupt images replaced: {replaced}" if replaced else ""
            get_logger().info(f"epoch {epoch}, time {now - self._epoch_start:.1f} sec{corrupt}")
            self._epoch_start = now
        return row

    def _say(
        self,
        step: int,
        epoch: int,
        loss: SupportsFloat,
        lr: float,
        extra: Mapping[str, SupportsFloat],
        waited: float,
    ) -> dict[str, Any]:
        now = self._clock()
        seconds = max(now - self._window - self._paused, 1e-9)
        rate, data_wait = self._images / seconds, min((waited - self._waited) / seconds, 1.0)
        left = (now - self._start) / max(step - self._start_step, 1) * (self._total - step)
        first = self._window == self._start  # the workers start then
        self._window, self._waited, self._paused, self._images = now, waited, 0.0, 0
        numbers = {"loss": float(loss), **{name: float(value) for name, value in extra.items()}}
        said = " ".join(
            f"{'acc' if name == 'accuracy' else name} {number(value)}" for name, value in numbers.items()
        )
        waiting = f" data wait {100 * data_wait:.0f} %" if data_wait > WAIT_SHOWN else ""
        get_logger().info(
            f"epoch {epoch}/{self._epochs} step {step}/{self._total} {said} lr {lr:.4g}{waiting}"
            f" {number(rate)} img/s eta {duration(left)}"
        )
        if waiting and self._advice and not first:
            get_logger().warning(f"{waiting.strip()}: {self._advice}")
            self._advice = ""
        loss_value = numbers.pop("loss")
        return {
            "step": step,
            "epoch": epoch,
            "loss": loss_value,
            "lr": lr,
            "images_per_second": rate,
            "data_wait": data_wait,
            **numbers,
        }

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What happens inside (an evaluation, a checkpoint) does not count as training time in images/s and epochs."""
        start = self._clock()
        try:
            yield
        finally:
            paused = self._clock() - start
            self._paused += paused
            self._epoch_start += paused

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def _draw(self, step: int, epoch: int) -> None:
        if self._bar.disable:
            return
        done = (step - 1) % self._per_epoch + 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._bar.set_description_str(f"epoch {epoch}/{self._epochs}", refresh=False)
            self._bar.reset(total=min(self._per_epoch, self._total - step + done))
            self._bar.n = self._bar.initial = done - 1  # not 0 where a run resumes within an epoch
        self._bar.update(done - self._bar.n)


class Metrics:
    """Writes `<folder>/metrics.jsonl`, one JSON object a line, and a copy for VisualDL; made on rank 0 only.

    Rows have a "step"; a row with "eval" (the name of a pair set) is an evaluation, the others are training.
    Strict JSON: a number that is not finite becomes null, and the row's "nonfinite" lists such keys.

    `from_step`: None appends to what is there; s > 0 resumes: the rows of later steps go, they will be
    written again; 0 begins anew. VisualDL's copy is in `<folder>/visualdl`; if that package is missing or
    broken, it is said once.
    """

    def __init__(self, folder: str | Path, from_step: int | None = None) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self._keep(from_step)
        self._rows = _Appended(self.path, own=True)
        records = self.path.parent / "visualdl" / "vdlrecords.train.log"
        if from_step == 0:
            records.unlink(missing_ok=True)
        # VisualDL cannot forget a point: those of dropped rows are there already, they are not drawn twice.
        self._drawn: dict[str | None, int] = {}
        if records.exists():
            self._note_drawn(rows)
        self._visualdl: Any = None
        with self._visualdl_may_fail(), contextlib.redirect_stdout(io.StringIO()):  # it greets on stdout
            from visualdl import LogWriter  # takes 0.3 s: only when there is something to write

            # A fixed name: with a second file in the folder, VisualDL would show only the newest.
            self._visualdl = LogWriter(str(records.parent), file_name=records.name)

    def _keep(self, until: int | None) -> list[dict[str, Any]]:
        """Drop the rows of the steps after `until` (None: none of them, 0: all); the rows that were there."""
        rows = read_metrics(self.path) if self.path.exists() else []
        kept = [row for row in rows if until is None or row["step"] <= until and until > 0]
        replace_file(self.path, "".join(_dump(row) for row in kept).encode("utf-8", "backslashreplace"))
        return rows

    def rewind(self, step: int) -> None:
        """Drop the rows of later steps, which will be written again; VisualDL keeps their first points."""
        self._rows.close()
        self._note_drawn(self._keep(step))
        self._rows = _Appended(self.path, own=True)

    def _note_drawn(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            kind = row.get("eval")
            self._drawn[kind] = max(row["step"], self._drawn.get(kind, 0))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row: {"step", "epoch", "loss", "lr", "images_per_second", "data_wait"} or {"eval", "step", "accuracy"}
        and what else there is. Values: str, bool, None, numbers, 0-d arrays or tensors.
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
        except Exception as error:  # noqa: BLE001 (whatever that package stumbles over must not end a training)
            self._visualdl = None
            get_logger().warning(
                f"no VisualDL log ({type(error).__name__}: {error}); the metrics are in {self.path}"
            )


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. A last row cut off by a killed run is left out with a warning.

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


def number(value: float) -> str:
    """4 significant digits, and no exponent below 1e7: 7.000, 0.01235, 15123; nan and inf by name."""
    if 1e4 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:#.4g}".rstrip(".")


def duration(seconds: float) -> str:
    """h:mm:ss, with as many hours as it takes."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    """A plain text table, columns two spaces apart; columns of numbers to the right, None as "-"."""

    def cell(value: Any) -> str:
        return "-" if value is None else number(value) if isinstance(value, float) else str(value)

    columns = []
    for header, values in zip(headers, zip(*rows) if rows else [()] * len(headers)):
        right = bool(values) and all(value is None or isinstance(value, (int, float)) for value in values)
        cells = [header, *map(cell, values)]
        width = max(map(len, cells))
        cells.insert(1, "-" * width)
        columns.append([text.rjust(width) if right else text.ljust(width) for text in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))
