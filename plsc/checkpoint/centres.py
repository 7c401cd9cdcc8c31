"""Export class centres to a file for other programs, block by block. Try it:

plsc ckpt export-centres output/checkpoints/step-00000656 --output centres.npy --normalise
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plsc.checkpoint.reshard import ANOTHER_DISK, Head, RowArray, head_of, row_blocks, row_bytes, rows_as_file
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import write_synced
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.bfloat16 import float32_of
from plsc.utils.disk import refuse_full_disk
from plsc.utils.vectors import unit_rows


def export_centres(folder: str, target: str, names: bool = False, normalise: bool = False) -> str:
    """Write the centres [num_classes, embedding_size] of a checkpoint to `target`; return a report.

    Args:
        target: NAME.safetensors, with one array "centres", or NAME.npy.
        names: write the classes' names too, as a JSON list, to target.names.json.
        normalise: divide each centre by its length, in float64, rounded to the dtype; a centre of zeros
            stays.

    Raises UserError for another ending, an existing file, a checkpoint without names, or a damaged one.
    """
    if not target.endswith((".safetensors", ".npy")):
        raise UserError(f"--output: must end in .safetensors or .npy (got '{target}')")
    listed = f"{target}.names.json"
    for path in (target, f"{target}.tmp", *([listed] if names else [])):
        if Path(path).exists():
            raise UserError(f"{path}: is there already, and nothing is overwritten; name another file")
    saved = Checkpoint.open(folder)
    classes = saved.classes()
    if names and classes is None:
        raise UserError(f"{folder}: has no names of classes; leave --names out, or give it some first")
    head = _centres_of(saved, normalise)
    refuse_full_disk(target, row_bytes(head) * saved.num_classes, *ANOTHER_DISK)
    blocks = rows_as_file if target.endswith(".safetensors") else _npy_blocks
    with writing(target):
        with atomic_write(target) as beside:
            write_synced(beside, blocks(head, 0, saved.num_classes))
        if names:
            text = json.dumps(classes, indent=0, ensure_ascii=False) + "\n"
            replace_file(Path(listed), text.encode("utf-8", "backslashreplace"))
    length = ", of length 1" if normalise else ""
    also = f", names in {listed}" if names else ""
    return f"{target}: {saved.num_classes:,} centres of {saved.embedding_size} numbers{length}{also}"


def _centres_of(saved: Checkpoint, normalise: bool) -> Head:
    """Return the head of a checkpoint with the centres only; bfloat16 is read as float32."""
    head = head_of(saved)
    entry = head.arrays["centres"]
    dtype = np.dtype(np.float32) if entry.dtype == np.uint16 else entry.dtype

    def plain(name: str, start: int, stop: int) -> np.ndarray:
        return float32_of(head.read(name, start, stop))

    def unit(name: str, start: int, stop: int) -> np.ndarray:
        rows = plain(name, start, stop)
        return unit_rows(rows.astype(np.float64)).astype(rows.dtype)

    return Head({"centres": RowArray(dtype, entry.shape)}, unit if normalise else plain)


def _npy_blocks(head: Head, start: int, stop: int) -> Iterator:
    """Yield the bytes of a .npy file (version 1.0) of the centres, in blocks."""
    entry = head.arrays["centres"]
    shape = (stop - start, *entry.shape[1:])
    text = repr({"descr": entry.dtype.str, "fortran_order": False, "shape": shape})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    yield b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin-1")
    for _, rows in row_blocks(head, "centres", start, stop):
        yield rows.reshape(-1).view(np.uint8)
