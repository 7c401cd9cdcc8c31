"""Send log lines to the console and to train.log.

Lines stay whole on a terminal (with tqdm's bar below them), in a pipe and in a launcher's workerlog. Try it:

    python -c "from plsc.utils.logging import get_logger; get_logger().info('hello')"
"""

import contextlib
import logging
import sys
from logging.handlers import MemoryHandler
from pathlib import Path

from tqdm import tqdm

from plsc.errors import shown_lines

_logger = logging.getLogger("plsc")
_handlers: list[logging.Handler] = []  # ours; a user's own handlers are left alone


class _Formatter(logging.Formatter):
    """Escapes control characters, which names from data may contain, and those that cannot be encoded."""

    def format(self, record: logging.LogRecord) -> str:
        bare = getattr(record, "bare", False)
        return shown_lines(record.getMessage() if bare else super().format(record))


class _Console(logging.Handler):
    """Writes to the current sys.stdout, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Go on when the reader of a pipe has left, a terminal was closed, or the disk is full."""
        with contextlib.suppress(OSError, ValueError), tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record) + "\n", end="", flush=True)  # one write, so that lines stay whole


def setup_logging(rank: int = 0, log_file: Path | None = None) -> logging.Logger:
    """Send the log to stdout, and to `log_file` (appended to) if given.

    Lines since an earlier call without `log_file` are written to it first: a run that is refused writes
    nothing, and no line of another run is lost. Rank 0 logs INFO and above, the others warnings and errors
    only, marked `[rank k]`. A further call replaces what the call before had set.
    """
    # import paddle gives the root logger a handler: without this each line would appear twice, in two
    # formats.
    _logger.propagate = False
    _logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    early = [record for handler in _handlers for record in getattr(handler, "buffer", ())]
    for handler in _handlers:
        _logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
    if log_file is None:
        kept = MemoryHandler(sys.maxsize, sys.maxsize)  # for a log file that is not open yet
    else:
        kept = logging.FileHandler(log_file, encoding="utf-8")
        kept.handleError = lambda record: None  # as of the console
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
    """Return the logger "plsc", set up for rank 0 and to stdout if `setup_logging` has not been called."""
    return _logger if _handlers else setup_logging()


def say(text: str) -> None:
    """Log text, of lines without a time."""
    get_logger().info(text, extra={"bare": True})


def warn_on_rank_0(text: str) -> None:
    """Log a warning that all ranks give alike on rank 0 only."""
    if get_logger().level <= logging.INFO:
        get_logger().warning(text)
