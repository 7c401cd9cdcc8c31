"""Send log lines to the console and to train.log.

Lines stay whole on a terminal (with tqdm's bar below them), in a pipe, and in a launcher's workerlog. Try it:

    python -c "from plsc.utils.logging import get_logger; get_logger().info('hello')"
"""

import collections
import contextlib
import functools
import logging
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from plsc.errors import escape_lines

_logger = logging.getLogger("plsc")
_handlers: list[logging.Handler] = []  # plsc's own. A user's handlers are not touched
KEPT = 10_000  # most lines that wait for a log file. A service, which never opens one, logs without an end


class _Formatter(logging.Formatter):
    """Escapes control characters and characters that cannot be encoded. Names from data may contain them."""

    def format(self, record: logging.LogRecord) -> str:
        bare = getattr(record, "bare", False)
        return escape_lines(record.getMessage() if bare else super().format(record))


class _Console(logging.Handler):
    """Writes to the current sys.stdout, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record. Ignore a closed pipe, a closed terminal and a full disk."""
        with contextlib.suppress(OSError, ValueError), tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record) + "\n", end="", flush=True)  # one write, so that lines stay whole


class _Kept(logging.Handler):
    """Keeps the last KEPT records for a log file that is opened later."""

    def __init__(self) -> None:
        super().__init__()
        self.records: collections.deque[logging.LogRecord] = collections.deque(maxlen=KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def setup_logging(rank: int = 0, log_file: Path | None = None) -> logging.Logger:
    """Send the log to stdout, and append it to `log_file` if given.

    Lines that were logged after an earlier call without `log_file` are written to it first. A run that is
    refused therefore writes nothing, and no other run's line is lost. Rank 0 logs INFO and above. The
    other ranks log only warnings and errors, marked `[rank k]`. A further call replaces the last
    one's settings. A call without `log_file` begins a new run, for which `warn_once` logs each text again.
    """
    # `import paddle` gives the root logger a handler. Without this line, each line would appear twice.
    _logger.propagate = False
    _logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    early = [record for handler in _handlers for record in getattr(handler, "records", ())]
    for handler in _handlers:
        _logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
    if log_file is None:
        warn_once.cache_clear()
        kept = _Kept()
    else:
        kept = logging.FileHandler(log_file, encoding="utf-8")
        kept.handleError = lambda record: None  # like the console
    _handlers[:] = [_Console(), kept]
    mark = f"[rank {rank}] " if rank else ""
    for handler in _handlers:
        handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {mark}%(message)s", "%Y-%m-%d %H:%M:%S"))
        _logger.addHandler(handler)
    if log_file is not None:
        for record in early:
            kept.handle(record)
    return _logger


def get_logger() -> logging.Logger:
    """Return the logger "plsc". If `setup_logging` has not been called, it logs rank 0's lines to stdout."""
    return _logger if _handlers else setup_logging()


def print_lines(text: str) -> None:
    """Log text without time and level. The text may have several lines."""
    get_logger().info(text, extra={"bare": True})


@functools.lru_cache(maxsize=KEPT)
def warn_once(text: str) -> None:
    """Log a warning unless this run has logged the same text. A run opens the same images more than once."""
    get_logger().warning(text)


def log_skipped(lines: Iterable[str]) -> list[str]:
    """Log a warning for each picture that is skipped, and return the lines: its name and the reason."""
    lines = [*lines]
    for line in lines:
        get_logger().warning(f"skipped {line}")
    return lines


def warn_on_rank_0(text: str) -> None:
    """Log a warning on rank 0 only. All ranks call it with the same text."""
    if get_logger().level <= logging.INFO:
        get_logger().warning(text)
