"""Append changes of a gallery to its log, each with checksums, and read them back.

    16 bytes        length of the text, length of the array, CRC-32 of these 8 bytes, CRC-32 of text and array; uint32 each
    text            JSON: {"add": name, "sources": [...], "trained": whether the network was trained on the person}, {"remove": name},
                    or a files.Threshold
    array           of an "add": embeddings float32 [n, D]

A process that is killed leaves the beginning of its last record. That is no damage: the change was not acknowledged.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.serving.gallery.files import Threshold
from plsc.checkpoint.tensorfile import DamagedError

_HEAD = struct.Struct("<IIII")
_LENGTHS = struct.Struct("<II")


class Record(NamedTuple):
    """A change of a gallery."""

    fields: dict[str, Any]
    embeddings: np.ndarray
    """float32 [n, D]; n is 0 unless something is added."""
    stop: int
    """Where it ends in the log."""


def encode(fields: dict[str, Any], embeddings: np.ndarray | None = None) -> bytes:
    """Return a record as bytes. embeddings: float32 [n, D]."""
    text = json.dumps(fields).encode()
    array = b"" if embeddings is None else np.ascontiguousarray(embeddings, "<f4").tobytes()
    lengths = _LENGTHS.pack(len(text), len(array))
    return lengths + struct.pack("<II", zlib.crc32(lengths), zlib.crc32(text + array)) + text + array


def append(path: Path, at: int, record: bytes) -> None:
    """Write `record` at the offset `at`, in place of what follows it, and sync it to the disk. Raises OSError.

    After an error the log ends at `at`, as before.
    """
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(file, at)
        os.lseek(file, at, os.SEEK_SET)
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, at)
            raise
    finally:
        os.close(file)


def read(path: Path, start: int, width: int) -> Iterator[Record]:
    """Yield the whole records from the offset `start` on; `width` is the embedding size.

    It ends before a record of which only the beginning is there, and before nothing but zeros, which a power failure may
    leave. Raises DamagedError for other bytes that are no record; OSError.
    """
    with open(path, "rb") as file:
        file.seek(start)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            text_bytes, array_bytes, crc_of_lengths, crc = _HEAD.unpack(head)
            if crc_of_lengths != zlib.crc32(head[: _LENGTHS.size]):
                if not any(head) and not any(file.read()):
                    return
                raise DamagedError(_damaged(path, start))
            payload = file.read(text_bytes + array_bytes)
            if len(payload) < text_bytes + array_bytes:
                return
            if crc != zlib.crc32(payload):
                raise DamagedError(_damaged(path, start))
            try:
                embeddings = np.frombuffer(payload, "<f4", offset=text_bytes).reshape(-1, width)
                fields = _check(json.loads(payload[:text_bytes]), embeddings)
            except (ValueError, RecursionError) as error:  # whoever wrote it can compute checksums
                raise DamagedError(_damaged(path, start)) from error
            start += _HEAD.size + len(payload)
            yield Record(fields, embeddings, start)


def _check(fields: Any, embeddings: np.ndarray) -> dict[str, Any]:
    """Return the fields of a change with these embeddings. Raises ValueError if they are something else."""
    removal = isinstance(fields, dict) and fields.keys() == {"remove"} and isinstance(fields["remove"], str)
    addition = (
        isinstance(fields, dict)
        and fields.keys() == {"add", "sources", "trained"}
        and isinstance(fields["sources"], list)
        and isinstance(fields["trained"], bool)
        and all(isinstance(text, str) for text in (fields["add"], *fields["sources"]))
    )
    threshold = isinstance(fields, dict) and fields.keys() == {"threshold", "measured"}
    if threshold:
        Threshold.model_validate(fields)  # raises ValueError
    fits = len(embeddings) > 0 if addition else len(embeddings) == 0
    if not (removal or addition or threshold) or not fits or not np.isfinite(embeddings).all():
        raise ValueError("is no change of a gallery")
    return fields


def _damaged(path: Path, start: int) -> str:
    return f"{path}: the record at byte {start:,} fails its checksum; the file is damaged: restore the gallery, or build it again"
