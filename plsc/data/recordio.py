"""Read and write MXNet's RecordIO files.

A .rec file contains consecutive records. A .idx file contains their offsets. A record has a uint32
magic number, a uint32 (kind << 29 | length), the payload, and zeros up to a multiple of 4 bytes. If a payload
contains the magic number at a multiple of 4, the record is split there. Its parts have the kinds 1, 2, ...,
3, and the magic number itself is not stored. A reader can therefore find the next record from any position.

An image's payload is an IRHeader `<IfQQ` (flag, label, id, id2), `flag` float32 labels if
flag > 0, and the encoded image. Reading and writing were checked against mxnet 1.9.1. Try it:
`RecordFile("train.rec").payload(1)`.
"""

import contextlib
import itertools
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.errors import UserError, reading
from plsc.utils.atomic_write import atomic_write
from plsc.utils.files import open_regular, read_regular

MAGIC = 0xCED7230A
_MAGIC = struct.pack("<I", MAGIC)
_LONGEST = 2**29 - 1  # largest length that one header can store
_IR_HEADER = struct.Struct("<IfQQ")
_CHUNK = 2**20  # records whose headers are read together
EXACT = 2**24  # labels are float32, which represents every whole number up to this one


class Headers(NamedTuple):
    """All records' IRHeaders, as arrays [N]."""

    labels: np.ndarray  # float32: the label, or the first of several labels
    vectors: np.ndarray  # bool: whether the labels are stored as a vector
    image_bytes: np.ndarray  # int64: how many bytes follow the labels


def pack_image(image: bytes | np.ndarray, label: float | tuple[float, ...], number: int = 0) -> bytes:
    """Pack an image with one or several labels into a payload.

    Args:
        image: the encoded image, bytes or uint8 [n].
        label: the label, or a tuple of labels.
        number: value for the header's field `id`.
    """
    if isinstance(label, tuple):
        return _IR_HEADER.pack(len(label), 0, number, 0) + np.array(label, "<f4").tobytes() + bytes(image)
    return _IR_HEADER.pack(0, label, number, 0) + bytes(image)


def image_of(payload: np.ndarray) -> np.ndarray:
    """Return the encoded image in a payload. Both are uint8 [n]."""
    flag = _IR_HEADER.unpack_from(payload)[0]
    return payload[_IR_HEADER.size + 4 * flag :]


class RecordFile:
    """Gives random access to the records in the .rec file `path`.

    Position i of all arrays belongs to line i of the .idx file beside it. The constructor checks both files.
    Raises UserError, which names the bad record.

    Attributes:
        keys: int64 [N], the records' keys.
        offsets: int64 [N], positions in bytes at which the records begin.
        spans: int64 [N], the records' lengths in bytes with headers and padding.
    """

    def __init__(self, path: str):
        self.path = path
        self.index = os.fspath(Path(path).with_suffix(".idx"))
        with reading(path), open_regular(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            start = file.read(4)
        if start != _MAGIC:
            raise UserError(
                f"{path}: is not a RecordIO file: it begins with 0x{start[::-1].hex()}, must be {MAGIC:#x}"
            )
        self.keys, self.offsets = read_index(self.index)
        self.spans = self._checked_spans()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - it is closed with this object

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state, _file=open(state["path"], "rb", buffering=0))  # noqa: SIM115 - as above

    def __len__(self) -> int:
        return len(self.offsets)

    def name(self, position: int) -> str:
        """Return a record's name for messages, which contains its key and its offset."""
        return f"record {self.keys[position]} ({os.path.basename(self.path)} @ {self.offsets[position]})"

    def payload(self, position: int) -> np.ndarray:
        """Read a record's payload, uint8 [n]. It uses pread, so that threads can share the file."""
        span, offset = int(self.spans[position]), int(self.offsets[position])
        data = os.pread(self._file.fileno(), span, offset)
        parts, kinds, start = [], [], 0
        while data[start : start + 4] == _MAGIC and len(data) >= start + 8:
            (header,) = struct.unpack_from("<I", data, start + 4)
            length = header & _LONGEST
            kinds.append(header >> 29)
            parts.append(data[start + 8 : start + 8 + length])
            start += 8 + _padded(length)
        if start != span or kinds != ([1, *[2] * (len(kinds) - 2), 3] if len(kinds) > 1 else [0]):
            self._refuse(position, "is damaged; fetch or make the file again")
        return np.frombuffer(_MAGIC.join(parts), np.uint8)

    def headers(self) -> Headers:
        """Read all labels without the images.

        5 million records take about 3 s if the file is in the page cache.
        """
        count = len(self)
        headers = Headers(np.empty(count, np.float32), np.empty(count, bool), np.empty(count, np.int64))
        words = np.memmap(self.path, "<u4", "r", shape=self.size // 4)
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK)
            first = self.offsets[part] // 4
            length = (words[first + 1] & _LONGEST).astype(np.int64)
            # A record that is too short for an IRHeader may end the file. The loop below checks it.
            flag = words[np.minimum(first + 2, len(words) - 1)].astype(np.int64)
            headers.image_bytes[part] = length - _IR_HEADER.size - 4 * flag
            headers.labels[part] = words[np.minimum(first + 3, len(words) - 1)].view("<f4")
            headers.vectors[part] = flag > 0
            has = np.flatnonzero((flag >= 1) & (headers.image_bytes[part] >= 0))
            headers.labels[start + has] = words[first[has] + 8].view("<f4")
        split = words[self.offsets // 4 + 1] >> 29 != 0
        for position in np.flatnonzero(split | (headers.image_bytes < 0)).tolist():
            payload = self.payload(position)
            if len(payload) < _IR_HEADER.size:
                self._refuse(position, "is not an image: its payload is too short for an IRHeader")
            flag, label, *_ = _IR_HEADER.unpack_from(payload)
            headers.image_bytes[position] = len(payload) - _IR_HEADER.size - 4 * flag
            if headers.image_bytes[position] < 0:
                self._refuse(position, "is damaged: its header promises more labels than it has bytes")
            numbers = payload[_IR_HEADER.size : _IR_HEADER.size + 4 * flag].view("<f4")
            headers.labels[position] = numbers[0] if flag else label
            headers.vectors[position] = flag > 0
        return headers

    def _checked_spans(self) -> np.ndarray:
        """Compute each record's length.

        Raises UserError if the index does not contain where all records begin, or if a record is
        incomplete. Records in several parts are checked when they are read.
        """
        order = np.argsort(self.offsets, kind="stable")
        starts = self.offsets[order]
        ends = np.append(starts[1:], self.size)
        words = np.memmap(self.path, "<u4", "r", shape=self.size // 4)
        good = (starts % 4 == 0) & (starts <= self.size - 8)
        good[good] = words[starts[good] // 4] == MAGIC
        header = words[starts[good] // 4 + 1]
        ended = starts[good] + 8 + _padded((header & _LONGEST).astype(np.int64))
        good[good] = np.where(header >> 29, ended <= ends[good], ended == ends[good])
        if not good.all():
            position = int(order[np.argmin(good)])
            raise UserError(
                f"{self.path}: {self.name(position)} is damaged or truncated, or {self.index} does not "
                "belong "
                "to the file; fetch or make both again"
            )
        spans = np.empty_like(starts)
        spans[order] = ends - starts
        return spans

    def _refuse(self, position: int, what: str) -> None:
        raise UserError(f"{self.path}: {self.name(position)} {what}")


def read_index(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a .idx file's keys and offsets, int64 [N] each. A line is `key<TAB>offset`."""
    with reading(path, missing="no such file, which MXNet's tools write beside a .rec"):
        text = read_regular(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy gives it for text that is not a number
        try:
            numbers = np.fromstring(text, np.int64, sep=" ")
        except (DeprecationWarning, ValueError):
            numbers = np.empty(0, np.int64)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    offsets = numbers[1::2]
    ordered = np.sort(offsets)  # faster than np.unique, as in count_classes
    repeated = (ordered[1:] == ordered[:-1]).any()
    if not numbers.size or numbers.size != 2 * lines or repeated or ordered[0] < 0:
        raise UserError(
            f"{path}: is not a record index, whose lines are 'key<TAB>offset'; fetch or make it again"
        )
    return numbers[0::2].copy(), offsets.copy()


@contextlib.contextmanager
def write_records(path: str) -> Iterator[Callable[[bytes], None]]:
    """Write a .rec file and its .idx file.

    The context manager yields a function that appends a payload. A payload's key counts the payloads
    before it. Both files get their names when the `with` block ends without an error. Raises UserError if
    another process has created them.
    """
    with contextlib.ExitStack() as stack:
        # The context entered last ends first: the .rec gets its name before the .idx that points into it.
        index, record = (
            stack.enter_context(open(stack.enter_context(atomic_write(name, new=True)), "xb"))
            for name in (Path(path).with_suffix(".idx"), Path(path))
        )
        count = itertools.count()

        def write(payload: bytes) -> None:
            index.write(b"%d\t%d\n" % (next(count), record.tell()))
            words = np.frombuffer(payload, "<u4", len(payload) // 4)
            starts = [0, *(4 * np.flatnonzero(words == MAGIC) + 4).tolist()]
            stops = [*(start - 4 for start in starts[1:]), len(payload)]
            kinds = [1, *[2] * (len(starts) - 2), 3] if len(starts) > 1 else [0]
            for kind, start, stop in zip(kinds, starts, stops):
                record.write(_MAGIC + struct.pack("<I", kind << 29 | stop - start) + payload[start:stop])
            record.write(bytes(-len(payload) % 4))

        yield write


def _padded(length: int) -> int:
    return (length + 3) // 4 * 4
