"""Append to a file without losing anything: text that a full disk refuses waits in memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from plsc.errors import UserError


class AppendedFile:
    """A file for appending that keeps in memory what a full disk refuses, and writes it before the next text.

    Args:
        own: raise UserError in `write` if the file was deleted or replaced by another.
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
                    f"{self.path}: was deleted or replaced while the run wrote it; "
                    "do not change Global.output_dir during a run, and start anew"
                ) from None
        except OSError:
            pass

    def close(self) -> None:
        """Try to write the waiting text once more, and print how many lines are lost."""
        if self.waiting:
            self.write("")
        if self.waiting:
            lines = self.waiting.count(b"\n")
            print(f"ERROR {self.path}: the last {lines} lines could not be written", file=sys.stderr)


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino
