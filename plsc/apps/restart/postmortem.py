"""Find the rank that failed first, and why, from the files of plsc.distributed.guard in output_dir/errors.

Paddle's launcher names the failed rank of the lowest number. Here the earliest failure counts: of ranks that
wrote an exception the first, unless it tells of a lost connection; else the rank that vanished without one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plsc.errors import UserError
from plsc.utils import disk
from plsc.utils.files import read_json

_LOST_PEER = re.compile(
    r"gloo|nccl|tcp_utils|TCP (send|receive)|only \d+ of \d+ ranks|TCPStore|connection (reset|closed) by peer"
    r"|CustomDevice error",
    re.IGNORECASE,
)
_HUNG = re.compile(r"^Timeout \((\d+:\d+:\d+)\)!$", re.MULTILINE)  # of faulthandler, by the guard
_TAIL = 100_000  # bytes of a rank's log
_FULL = 1 << 20  # a disk with fewer free bytes counts as full


class Failure(NamedTuple):
    """Why a start has failed. user: by a mistake of the user. traceback: of the exception, "" without one."""

    text: str
    user: bool = False
    traceback: str = ""


class Watch:
    """Watches the ranks of one start; call `look` several times a second, then `failure`.

    Args:
        folder: output_dir/errors; files of an earlier start are deleted.
        logs: folder of the ranks' logs.
    """

    def __init__(self, folder: Path, logs: Path):
        self._folder = folder
        self._logs = logs
        self._seen: dict[int, float] = {}  # rank -> when it was last seen running
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("rank*"):
            path.unlink()

    def look(self) -> list[int]:
        """Note which ranks run; return their processes."""
        alive = self._records("alive")
        running = {rank: record["pid"] for rank, record in alive.items() if _runs(record["pid"])}
        self._seen.update(dict.fromkeys(running, time.monotonic()))
        return list(running.values())

    def is_clean(self) -> bool:
        """Return whether all ranks have closed their files, and none has failed."""
        return not list(self._folder.glob("rank*"))

    def failure(self, code: int, last_lines: Sequence[str]) -> Failure:
        """Find the first failure when all have ended. code, last_lines: of the launcher."""
        raised = sorted(self._records("json").items(), key=lambda item: item[1]["time"])
        alive = self._records("alive")
        vanished = sorted(alive.keys() - dict(raised).keys(), key=lambda rank: self._seen.get(rank, 0.0))
        causes = [item for item in raised if not _LOST_PEER.search(item[1]["message"])]
        if vanished and not causes and code >= 0:
            return Failure(self._of_vanished(vanished[0], alive[vanished[0]]["step"], last_lines))
        if raised:
            return _of_raised(*(causes or raised)[0])
        if code == 2:  # before the training began; the first rank has printed why
            return Failure("", user=True)
        if code < 0:
            return Failure(f"the launcher was killed (signal {-code})")
        return Failure(f"the launcher ended with {code}: {''.join(last_lines[-1:]).strip()}")

    def keep_tracebacks(self, log: Path) -> None:
        """Append the tracebacks of all ranks to a log."""
        with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(
                f"rank {rank} failed in step {record['step'] + 1}\n{record['traceback']}\n"
                for rank, record in sorted(self._records("json").items())
            )

    def close(self) -> None:
        """Remove the folder, after a run that ended well."""
        for path in self._folder.glob("rank*"):
            path.unlink()
        self._folder.rmdir()

    def _records(self, kind: str) -> dict[int, dict[str, Any]]:
        """Read rank -> what its file says; files that are being written are left out."""
        records = {}
        for path in self._folder.glob(f"rank*.{kind}"):
            try:
                records[int(path.stem.removeprefix("rank"))] = read_json(path)
            except UserError:
                continue
        return records

    def _of_vanished(self, rank: int, step: int, last_lines: Sequence[str]) -> str:
        """Describe a rank that has left no exception."""
        log = self._logs / f"workerlog.{rank}"
        tail = log.read_bytes()[-_TAIL:].decode(errors="replace") if log.exists() else ""
        if found := _HUNG.findall(tail):
            where = f"in step {step + 1}; its stack is in {log}"
            return f"rank {rank} hung for {found[-1]} (Global.hang_seconds) {where}"
        code = re.search(rf"Container rank {rank} status failed .* code (-?\d+) log", "".join(last_lines))
        if code and int(code[1]) < 0:
            text = f"rank {rank} was killed (signal {-int(code[1])}) in step {step + 1}"
        else:
            text = f"rank {rank} was killed, or did not answer, in step {step + 1}"
        if disk.free_bytes(self._folder) < _FULL:
            text += f"; the disk of {self._folder} is full"
        return text


def _of_raised(rank: int, record: dict[str, Any]) -> Failure:
    """Describe the exception that a rank has recorded."""
    if record["user"]:
        where = f"rank {rank}, step {record['step'] + 1}: " if record["step"] else ""
        return Failure(where + record["message"], user=True)
    text = f"{record['type']}: {record['message'][:500]}"
    if record["type"] == "MemoryError":
        text += "; lower DataLoader.Train.batch_size"
    when = f"in step {record['step'] + 1}" if record["step"] else "before its first step was done"
    return Failure(f"rank {rank} failed {when}: {text}", traceback=record["traceback"])


def _runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
