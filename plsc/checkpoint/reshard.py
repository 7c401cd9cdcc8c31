"""Rewrite a checkpoint in blocks of rows, so that a head may be larger than the memory.

A training run calls plsc.checkpoint.store.save with arrays on every rank; this module is for one process and
another folder. Both write the same bytes, since plsc.checkpoint.tensorfile makes the files. Try it:

    reshard(Checkpoint.open("step-00000120"), "cut/step-00000120", ranks=3)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plsc.checkpoint.manifest import head_file, manifest_bytes
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import header_of, sync_folder, write_synced
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.disk import refuse_full_disk
from plsc.utils.sharding import split

ANOTHER_DISK = ("it", "name a target on another disk")
BLOCK = 8 << 20  # bytes of rows, or of a copied file, in memory at once


class RowArray(NamedTuple):
    """Dtype and shape of an array of a head file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    """The first axis is classes."""
    code: str | None = None
    """The dtype in the file, if numpy has no such dtype (bfloat16)."""


class Head(NamedTuple):
    """The rows of all classes, read by a function."""

    arrays: Mapping[str, Any]
    """Name -> anything with .dtype and .shape, the first axis of any length; has "centres"."""
    read: Callable[[str, int, int], np.ndarray]
    """(name, start, stop) -> the rows of the classes [start, stop), contiguous."""


def write_checkpoint(
    target: str | os.PathLike,
    ranges: Sequence[tuple[int, int]],
    head: Head,
    files: Mapping[str, FileBlocks | Sequence],
    fields: Mapping[str, Any],
) -> Path:
    """Write the checkpoint folder `target`, which must not exist; target.tmp until it is complete.

    Args:
        ranges: the classes [start, stop) of each head file, in order.
        files: the other files by name, copied or as blocks of bytes; the backbone's and the optimizer's are
            required.
        fields: all fields of the manifest but those about files.

    Raises UserError, before anything is written where the disk has too little space.
    """
    target = Path(os.path.abspath(target))
    for path in (target, target.with_name(f"{target.name}.tmp")):
        if path.exists():
            raise UserError(f"{path}: is there already, and nothing is overwritten; name another folder")
    need = row_bytes(head) * (ranges[-1][1] - ranges[0][0])
    need += sum(
        blocks.size if isinstance(blocks, FileBlocks) else sum(map(len, blocks)) for blocks in files.values()
    )
    refuse_full_disk(target, need, *ANOTHER_DISK)
    with writing(target):
        with atomic_write(target) as beside:
            beside.mkdir(parents=True)
            _fill(beside, ranges, head, files, fields)
        sync_folder(target.parent)
    return target


def _fill(tmp: Path, ranges: Sequence, head: Head, files: Mapping, fields: Mapping) -> None:
    sums = {name: write_synced(tmp / name, blocks) for name, blocks in files.items()}
    heads = []
    for number, (start, stop) in enumerate(ranges):
        name = head_file(number, len(ranges))
        sums[name] = write_synced(tmp / name, rows_as_file(head, start, stop))
        heads.append({"file": name, "start": start, "stop": stop})
    write_synced(tmp / "manifest.json", [manifest_bytes({**fields, "heads": heads, "files": sums})])
    sync_folder(tmp)


def rows_as_file(head: Head, start: int, stop: int) -> Iterator:
    """Yield the bytes of a safetensors file of the rows [start, stop) of all arrays, in blocks."""
    header, order = header_of(
        {
            name: RowArray(entry.dtype, (stop - start, *entry.shape[1:]), getattr(entry, "code", None))
            for name, entry in head.arrays.items()
        }
    )
    yield header
    for name in order:
        for _, rows in row_blocks(head, name, start, stop):
            yield rows.reshape(-1).view(np.uint8)


def row_bytes(head: Head) -> int:
    """Return the bytes of one class in all of the head's arrays."""
    return sum(entry.dtype.itemsize * math.prod(entry.shape[1:]) for entry in head.arrays.values())


def row_blocks(head: Head, name: str, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first class, rows) of [start, stop), as many classes at a time as fit into BLOCK bytes."""
    count = max(1, BLOCK // max(row_bytes(Head({name: head.arrays[name]}, head.read)), 1))
    for first in range(start, stop, count):
        yield first, head.read(name, first, min(first + count, stop))


class FileBlocks:
    """The bytes of a file, BLOCK at a time; `size` of them in all."""

    def __init__(self, path: str | os.PathLike):
        self.path = path
        self.size = os.path.getsize(path)

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            while block := file.read(BLOCK):
                yield block


def head_of(saved: Checkpoint) -> Head:
    """Return the head of a checkpoint."""
    return Head(saved.head_arrays, saved.rows)


def fields_of(saved: Checkpoint) -> dict[str, Any]:
    """Return the manifest fields that a rewritten checkpoint keeps: all but files, format and version."""
    fields = saved.manifest.model_dump()
    return {name: fields[name] for name in fields if name not in ("format", "plsc", "heads", "files")}


def others_of(saved: Checkpoint) -> dict[str, FileBlocks]:
    """Return the files of a checkpoint but the head's, for write_checkpoint."""
    heads = {part.file for part in saved.manifest.heads}
    return {name: FileBlocks(saved.path / name) for name in saved.manifest.files if name not in heads}


def copy_later_files(saved: Checkpoint, target: Path) -> None:
    """Copy what later programs have stored beside a checkpoint, and what its manifest does not list."""
    listed = {"manifest.json", *saved.manifest.files}
    for file in saved.path.glob("*.json"):
        if file.name not in listed and file.is_file():
            with writing(target / file.name):
                replace_file(target / file.name, file.read_bytes())


def reshard(saved: Checkpoint, target: str | os.PathLike, ranks: int) -> Path:
    """Write `saved` to `target` with its classes split into `ranks` head files, by plsc.utils.sharding.split.

    The other files are copied byte for byte; of the manifest's fields only world_size changes. Resharding
    back to the former number of ranks gives the former bytes. Raises UserError.
    """
    fields = {**fields_of(saved), "world_size": ranks}
    path = write_checkpoint(target, split(saved.num_classes, ranks), head_of(saved), others_of(saved), fields)
    copy_later_files(saved, path)
    return path
