"""Find a checkpoint on the disks of several machines, and hand over the files that the ranks of another one need.

Every machine looks at its own disk, all choose the same checkpoint, and each disk checks its files. What a disk lacks of the
network, and of the rows of its ranks, it gets from one that has it, piece by piece. Then each rank opens its own folder.

Try it: `pytest tests/distributed/test_local_disks.py`; what a user sees is in docs/resume.md.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.pieces import Pieces, find_whole, set_damaged_aside, settle, survey
from plsc.checkpoint.store import set_aside_after
from plsc.checkpoint.tensorfile import sync_folder, write_synced
from plsc.distributed.disks import Disks
from plsc.errors import UserError, shown
from plsc.utils.atomic_write import remove
from plsc.utils.logging import get_logger
from plsc.utils.sharding import ClassShard


class Handover(NamedTuple):
    """A file that some disks need and lack."""

    name: str
    source: int
    """The rank that sends it."""
    takers: list[int]
    """The ranks that write it."""


def with_rank_0s_statistics(
    backbone: paddle.nn.Layer, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Replace the running statistics in `arrays`, of the backbone's state, by rank 0's, which are the model's.

    Where each disk has a copy, all copies must be the same. Every rank calls it; a broadcast each.
    """
    names = [name for name, tensor in backbone.state_dict().items() if tensor.stop_gradient]
    return {
        **arrays,
        **{name: distributed.broadcast(paddle.to_tensor(arrays[name])).numpy() for name in names},
    }


def is_spread(root: Path, disks: Disks) -> bool:
    """Say whether checkpoints in `root` may lie on several disks, of this run or of an earlier one. Every rank calls it."""
    if disks.several:
        return True
    try:
        (here,) = disks.run(partial(survey, root))
    except UserError:  # whoever reads the newest one says what is wrong with it
        return False
    hosts = (info["host"] for entry in here["checkpoints"] for info in entry["files"].values())
    return any(host is not None for host in hosts)


def find_checkpoint(
    root: Path, disks: Disks, shard: ClassShard, which: str | int = "newest", before: int | None = None
) -> Path | None:
    """Find a whole checkpoint in the folders `root` of all disks, and bring to each disk what its ranks need.

    Every rank calls it. A damaged file is set aside and looked for on the other disks; where that leaves the newest checkpoint
    without a file, it is set aside with a warning, and the one before it is taken.

    Args:
        shard: the classes of this rank.
        which: "newest", "best", or a step.
        before: only checkpoints of earlier steps than this.

    Returns: the folder, on this rank's disk; None if there is none at all, or none before `before`.
    Raises UserError, on every rank, if there are checkpoints and none is whole; the line names step, host, file and classes.
    """
    while True:
        surveys = disks.run(partial(survey, root))
        pieces = distributed.run_on_rank_0(partial(_choose, surveys, which, before))
        if pieces is None:
            return None
        disks.run(partial(settle, root, pieces, disks.firsts.index(disks.mine)))
        if not any(disks.run(partial(set_damaged_aside, root, pieces))):
            break
    if which == "newest":
        disks.run(partial(_set_aside_after, root, pieces.step))
    _hand_over(root, disks, pieces, shard)
    return root / pieces.folder


def _choose(surveys: list[dict[str, Any]], which: str | int, before: int | None) -> Pieces | None:
    if which != "best":
        return find_whole(surveys, before, None if which == "newest" else which)
    newest = find_whole(surveys)
    if newest is None:
        return None
    if newest.best is None:
        raise UserError(
            f"{newest.folder}: no evaluation has been made up to this checkpoint, so none is the best; take the newest"
        )
    return find_whole(surveys, step=newest.best)


def _set_aside_after(root: Path, step: int) -> None:
    try:
        set_aside_after(root, step)
    except OSError as error:
        raise UserError(f"{root}: {error.strerror}; see that it can be written, and try again") from error


def _hand_over(root: Path, disks: Disks, pieces: Pieces, shard: ClassShard) -> None:
    """Bring the files of `pieces` that each disk's ranks need to its folder in `root`, where they are lacking."""
    shards = distributed.gather_objects((shard.start, shard.stop))
    wanted = [
        _wanted(pieces, [rows for rows, first in zip(shards, disks.of_ranks) if first == disk])
        for disk in disks.firsts
    ]
    handovers = _plan(disks.firsts, pieces, wanted)
    new = [disk for number, disk in enumerate(disks.firsts) if number not in pieces.names]
    if not handovers and not new:
        return
    source = disks.firsts[min(pieces.names)]
    (manifest,) = distributed.run_on_ranks([source], partial(_read, root / pieces.folder / "manifest.json"))
    folder = root / (f"{pieces.folder}.tmp" if disks.mine in new else pieces.folder)
    disks.run(partial(_prepare, folder))
    for handover in handovers:
        _send(handover, root / pieces.folder, folder, pieces.files[handover.name])
    disks.run(partial(_finish, folder, manifest, root / pieces.folder))


def _wanted(pieces: Pieces, shards: Sequence[tuple[int, int]]) -> list[str]:
    """List the files that ranks with these classes read."""
    heads = {name: info["classes"] for name, info in pieces.files.items() if info["classes"]}
    rows = [
        name
        for name, (start, stop) in heads.items()
        if any(max(start, low) < min(stop, high) for low, high in shards)
    ]
    # A rank without classes looks into a head file too, for the arrays' names.
    rows = rows or [min(heads, key=lambda name: pieces.files[name]["bytes"])]
    return [name for name in pieces.files if name not in heads or name in rows]


def _plan(firsts: Sequence[int], pieces: Pieces, wanted: Sequence[Sequence[str]]) -> list[Handover]:
    """List the files that a disk lacks; wanted: of each disk, the files that its ranks read."""
    handovers = []
    for name, holders in pieces.holders.items():
        lacking = [number for number, names in enumerate(wanted) if name in names and number not in holders]
        if lacking:
            handovers.append(Handover(name, firsts[holders[0]], [firsts[number] for number in lacking]))
    return handovers


def _prepare(folder: Path) -> None:
    """Make the folder for the files, empty if it is a new one."""
    try:
        if folder.suffix:
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}; see that it can be written") from error


def _send(handover: Handover, source: Path, target: Path, info: dict[str, Any]) -> None:
    """Send the file from the folder `source` of one rank to the folder `target` of others. Every rank calls it.

    No rank leaves before all pieces were sent, since the others would wait for it; then all raise the same UserError.
    """
    name, rank = handover.name, distributed.rank()
    hosts = distributed.gather_objects(shown(socket.gethostname()))
    takers = ", ".join(hosts[taker] for taker in handover.takers)
    if rank == 0:
        get_logger().info(f"{source.name}: {name} goes from host {hosts[handover.source]} to {takers}")
    problems: list[str] = []

    def read(start: int, stop: int) -> bytes:
        try:
            with open(source / name, "rb") as file:
                return os.pread(file.fileno(), stop - start, start).ljust(stop - start, b"\0")
        except OSError as error:
            problems.append(f"{_here(source / name)}: cannot be read: {error.strerror}")
            return bytes(stop - start)

    parts = distributed.broadcast_bytes(info["bytes"], handover.source, read)
    if rank in handover.takers:
        beside = target / f"{name}.tmp"
        try:
            remove(beside)
            written = write_synced(beside, parts)
            if written["crc32"] == info["crc32"]:
                beside.rename(target / name)
            else:
                problems.append(f"{_here(beside)}: did not arrive as it was sent")
        except OSError as error:
            problems.append(f"{_here(beside)}: cannot be written: {error.strerror}; make space there")
    for _ in parts:
        pass
    for problem in itertools.chain(*distributed.gather_objects(problems)):
        raise UserError(f"{problem}; start again")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{_here(path)}: cannot be read: {error.strerror}; start again") from error


def _finish(folder: Path, manifest: bytes, final: Path) -> None:
    """Give a new folder its manifest and its name; sync any."""
    try:
        if folder != final:
            write_synced(folder / "manifest.json", [manifest])
        sync_folder(folder)
        if folder != final:
            folder.rename(final)
            sync_folder(final.parent)
    except OSError as error:
        raise UserError(f"{final}: cannot be written: {error.strerror}; make space there") from error


def _here(path: Path) -> str:
    return f"host {shown(socket.gethostname())}: {path}"
