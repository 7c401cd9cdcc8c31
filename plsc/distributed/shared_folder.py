"""Refuse an output folder that not all ranks see: a checkpoint is one folder, to which every rank writes its
rows.

Try it: `pytest tests/distributed/test_machines.py -k one_folder`.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

from plsc.distributed import collectives
from plsc.errors import UserError, shown, writing


def check_shared(folder: str | os.PathLike) -> None:
    """Make `folder`, and refuse it by UserError, on every rank, unless all ranks see it and can write there.

    Every rank calls it. Rank 0 writes a file with a name that never was: no network file system has an old
    answer for it.
    """
    if collectives.world_size() == 1:
        return
    folder = Path(folder)
    host = shown(socket.gethostname())
    token = folder / f".shared-{uuid.uuid4().hex}"

    def write() -> tuple[str, str]:
        with writing(f"Global.output_dir: {folder} on host {host}", remedy="name another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            token.touch(exist_ok=False)
        return token.name, host

    name, first = collectives.run_on_rank_0(write)
    sees = os.path.exists(folder / name) and os.access(folder, os.W_OK)
    hosts = collectives.gather_objects(None if sees else host)
    if collectives.rank() == 0:
        token.unlink(missing_ok=True)
    lacking = sorted({other for other in hosts if other is not None})
    if lacking:
        raise UserError(
            f"Global.output_dir: {folder} of host {first} is not there, or cannot be written, on {', '.join(lacking)}: all ranks write "
            "to one folder; mount one on all machines, and name that"
        )
