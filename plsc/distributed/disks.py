"""Find out which ranks see the same folder: one disk for all, or a disk for each machine.

Each rank writes an empty file with a name that never was before, and looks for those of the others. So it depends on no setting
and no launcher; a network file system has no old answer for such a name.

Try it: `pytest tests/distributed/test_local_disks.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from plsc.distributed import collectives
from plsc.errors import UserError, shown

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Disks:
    """The disks of the ranks.

    of_ranks: for each rank the first rank that sees the same folder; it does there what is to be done once.
    """

    of_ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = [[str(r) for r, disk in enumerate(self.of_ranks) if disk == first] for first in self.firsts]
        return f"{len(ranks)} disks, of the ranks {'; '.join(', '.join(each) for each in ranks)}"

    @property
    def firsts(self) -> list[int]:
        """The first rank of each disk, in rank order."""
        return sorted(set(self.of_ranks))

    @property
    def several(self) -> bool:
        return len(self.firsts) > 1

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first one of its disk."""
        return self.mine == collectives.rank()

    @property
    def mine(self) -> int:
        """The first rank of this rank's disk."""
        return self.of_ranks[collectives.rank()]

    def run(self, function: Callable[[], _Value]) -> list[_Value]:
        """Call `function` on the first rank of each disk; return their values, in the order of `firsts`, on every rank.

        Every rank calls it. The values have to be small. Raises the first UserError of theirs, on every rank; of several
        disks it names the host.
        """
        call = partial(_name_host_of_error, function) if self.several else function
        return collectives.run_on_ranks(self.firsts, call)


def _name_host_of_error(function: Callable[[], _Value]) -> _Value:
    try:
        return function()
    except UserError as error:
        raise UserError(f"host {shown(socket.gethostname())}: {error}") from error


def find_disks(folder: str | os.PathLike) -> Disks:
    """Find out which ranks see the same `folder`, which is made where it is missing. Every rank calls it.

    Raises UserError, on every rank, that names the host where the folder cannot be written.
    """
    if collectives.world_size() == 1:
        return Disks((0,))
    folder = Path(folder)
    token = folder / f".disk-{uuid.uuid4().hex}"

    def write() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            token.touch(exist_ok=False)
        except OSError as error:
            host = shown(socket.gethostname())
            raise UserError(
                f"Global.output_dir: cannot write to {folder} on host {host}: {error.strerror}; name another folder"
            ) from error
        return token.name

    everyone = range(collectives.world_size())
    try:
        names = collectives.run_on_ranks(everyone, write)
        seen = collectives.gather_objects([(folder / name).exists() for name in names])
    finally:
        with contextlib.suppress(OSError):  # what kept it from being written is the error to be seen
            token.unlink()
    return Disks(_group(seen))


def _group(seen: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Return for each rank the first one on its disk; seen[r][q]: rank r sees the file of rank q."""
    firsts: list[int] = []
    for rank in range(len(seen)):
        earlier = (other for other in range(rank) if seen[rank][other] and seen[other][rank])
        other = next(earlier, None)
        firsts.append(rank if other is None else firsts[other])
    return tuple(firsts)
