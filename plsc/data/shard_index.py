"""Find the pictures in tar shards, and read any of them: an index beside the shards says where each begins.

The layout is WebDataset's: the members of a sample follow one another, and have the same name up to the first
dot of its last part: `Ann/0001.jpg` and `Ann/0001.cls`. One pass over the headers writes the index, arrays in
an .npz; with it every picture is one pread, in any
order. Try it: `ShardIndex.open("shards").members[0]`.
"""

from __future__ import annotations

import bisect
import glob
import json
import os
import tarfile
import tempfile
import time
import zipfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import FileIO

import numpy as np

from plsc.data.folder import EXTENSIONS
from plsc.data.image_list import LABEL_DIGITS, SHOWN, Paths
from plsc.errors import MissingFileError, UserError, reading, shown
from plsc.utils.bar import Bar
from plsc.utils.files import open_regular
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

FORMAT = 1  # of the index
LABELS = (".cls", ".json")
_HEADER = 512  # bytes
_MOST_OPEN = 128  # shards that a process keeps open


class Members(Sequence):
    """The pictures of some shards: where each begins and ends.

    Args:
        shards: their names. locate: name -> the path where a shard can be read now.
        starts: the first picture of each shard, and the number of all, int64 [S + 1].
        offsets: int64 [N], where the pictures' bytes begin in their shards. sizes: uint32 [N].
        checksums: uint32 [N], those of the members' headers, by which a shard that was replaced is noticed.
        names: the members' names.
    """

    def __init__(
        self,
        shards: Sequence[str],
        locate: Callable[[str], str],
        starts: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        checksums: np.ndarray,
        names: Paths,
    ):
        self._shards = shards
        self._locate = locate
        self._offsets, self._sizes, self._checksums, self._names = offsets, sizes, checksums, names
        self._starts = starts.tolist()
        self._files: dict[int, FileIO] = {}  # number of a shard -> its file

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> str:
        """Name a picture for messages: by its shard and its member."""
        index = range(len(self))[index]
        return f"{self._shards[self._shard_of(index)]}: {self._names.written(index)}"

    def __getstate__(self) -> dict:
        return {**vars(self), "_files": {}}  # each process opens the shards itself

    def where(self, keep: np.ndarray) -> Members:
        """Select the pictures for which `keep`, bool [N], is True."""
        starts = np.append(0, np.cumsum(keep))[self._starts]
        arrays = (values[keep] for values in (self._offsets, self._sizes, self._checksums))
        return Members(self._shards, self._locate, starts, *arrays, self._names.where(keep))

    def read(self, index: int) -> np.ndarray:
        """Read the bytes of a picture, uint8 [n]. UserError if its shard is not the one that was indexed."""
        shard = self._shard_of(index)
        offset, size = self._offsets.item(index), self._sizes.item(index)
        file = self._files.get(shard) or self._open(shard)
        data = os.pread(file.fileno(), _HEADER + size, offset - _HEADER)
        if len(data) < _HEADER + size or _checksum_in(data) != self._checksums.item(index):
            raise UserError(
                f"{shown(self[index])}: the shard has changed since it was indexed; delete the index, and start anew"
            )
        return np.frombuffer(data, np.uint8, size, _HEADER)

    def _shard_of(self, index: int) -> int:
        return bisect.bisect_right(self._starts, index) - 1

    def _open(self, shard: int) -> FileIO:
        path = self._locate(self._shards[shard])
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - stays open
        except FileNotFoundError:  # another process made room in the cache just now
            path = self._locate(self._shards[shard])
            with reading(path):
                file = open(path, "rb", buffering=0)  # noqa: SIM115
        while len(self._files) >= _MOST_OPEN:
            self._files.pop(min(self._files), None)  # is closed once no other thread reads it
        self._files[shard] = file
        return file


def _checksum_in(header: bytes) -> int:
    """Read the checksum in the header of a member; -1 if it has none."""
    text = header[148:156].strip(b" \0")
    try:
        return int(text, 8)
    except ValueError:
        return -1


@dataclass
class _Found:
    """What has been found in shards so far; a list or an array has an entry for each picture."""

    starts: list[int] = field(default_factory=list)
    offsets: array = field(default_factory=lambda: array("q"))
    sizes: array = field(default_factory=lambda: array("I"))
    checksums: array = field(default_factory=lambda: array("I"))
    labels: array = field(default_factory=lambda: array("q"))
    text: bytearray = field(default_factory=bytearray)
    stops: array = field(default_factory=lambda: array("q"))
    texts: dict[str, int] = field(
        default_factory=dict
    )  # labels that are text, and the numbers that stand for them
    folders: dict[int, str] = field(default_factory=dict)  # label -> the folder of its pictures' names
    one_folder_each: bool = True
    numbered: bool = False  # whether there is a label that is a number
    faults: list[str] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)  # extension of members that are not used -> how many

    def add(self, shard: str, sample: list[tuple[str, tarfile.TarInfo]], pread: Callable) -> None:
        """Add a sample, its members by their extensions. What is wrong with it becomes a fault."""
        pictures = [info for extension, info in sample if extension in EXTENSIONS]
        labels = [info for extension, info in sample if extension in LABELS]
        labels = [info for info in labels if info.name.lower().endswith(LABELS[0])] or labels
        for extension, info in sample:
            if info not in (*pictures, *labels):
                self.others[extension] = self.others.get(extension, 0) + 1
        if not pictures and not labels:
            return
        name = f"{shard}: {(pictures or labels)[0].name}"
        if len(pictures) != 1 or len(labels) != 1:
            what = [f"has no label, {' or '.join(LABELS)}"] * (not labels) + ["has no picture"] * (
                not pictures
            )
            self.faults.append(
                f"{name} {' and '.join(what) or f'is one of {len(pictures)} pictures of one name'}"
            )
            return
        (picture,), (label,) = pictures, labels
        if not 0 < picture.size < 2**32:
            self.faults.append(f"{name} has {picture.size} bytes")
            return
        try:
            number = self._number(label, pread(label.size, label.offset_data))
        except ValueError as error:
            self.faults.append(f"{shard}: {label.name} {error}")
            return
        folder = os.path.dirname(picture.name)
        self.one_folder_each &= self.folders.setdefault(number, folder) == folder
        self.labels.append(number)
        self.offsets.append(picture.offset_data)
        self.sizes.append(picture.size)
        self.checksums.append(picture.chksum)
        self.text += os.fsencode(picture.name)
        self.stops.append(len(self.text))

    def _number(self, info: tarfile.TarInfo, content: bytes) -> int:
        """Return the number of a label; ValueError says what is wrong."""
        value: object = content.decode(errors="replace").strip()
        if info.name.lower().endswith(LABELS[1]):
            try:
                value = json.loads(content)["label"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ValueError("has no value 'label'") from None
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= LABEL_DIGITS:
            value = int(value)
        if type(value) is int and 0 <= value < 10**LABEL_DIGITS:
            self.numbered = True
            return value
        if not isinstance(value, str) or not value or len(value) > 1000:
            raise ValueError(
                f"has label {shown(str(value)[:60])!r}; it must be a whole number from 0 up, or a name"
            )
        return self.texts.setdefault(value, len(self.texts))


@dataclass(frozen=True)
class ShardIndex:
    """What some shards have: the pictures, their labels int64 [N], and the classes' names, text [C], if they
    have some."""

    members: Members
    labels: np.ndarray
    names: np.ndarray | None

    @classmethod
    def open(cls, shards: str) -> ShardIndex:
        """Open a folder of .tar files, or one .tar file; the index beside them is read, or made and written.

        UserError names what is damaged or lacks a part; MissingFileError a shard that the index has and the
        folder lacks.
        """
        paths = find_shards(shards)
        target = index_path(shards)
        arrays = read_index(target)
        present = _described(paths)
        if arrays is not None and arrays["shards"].tolist() != present:
            _refuse_missing(arrays["shards"].tolist(), present, target)
            get_logger().info(f"{shown(target)}: is of other shards; made anew")
            arrays = None
        if arrays is None:
            arrays = {"shards": np.array(present), **scan(paths)}
            write_index(target, arrays)
        folder = os.path.dirname(paths[0])
        return cls.of(arrays, partial(os.path.join, folder))

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], locate: Callable[[str], str]) -> ShardIndex:
        """Take the arrays of an index. locate: as in Members."""
        shards = [_name_of(text) for text in arrays["shards"].tolist()]
        names = Paths("", arrays["text"], arrays["stops"])
        where = (arrays[name] for name in ("starts", "offsets", "sizes", "checksums"))
        classes = arrays["classes"]
        return cls(
            Members(shards, locate, *where, names), arrays["labels"], classes if len(classes) else None
        )


def find_shards(path: str) -> list[str]:
    """List the shards of a folder in the order of their names, or the one file. MissingFileError, UserError
    if there is none."""
    if not os.path.isdir(path):
        if not os.path.isfile(path):
            raise MissingFileError(f"shards: '{path}' does not exist")
        return [path]
    found = sorted(glob.glob(os.path.join(glob.escape(path), "*.tar")))
    if not found:
        packed = glob.glob(os.path.join(glob.escape(path), "*.tar.*")) + glob.glob(
            os.path.join(glob.escape(path), "*.tgz")
        )
        remedy = (
            f"; {shown(os.path.basename(min(packed)))} is packed: unpack it, pictures are packed already"
            if packed
            else ""
        )
        raise UserError(f"shards: {shown(path)} has no .tar file{remedy}")
    return found


def index_path(shards: str) -> str:
    """Name the index of a folder of shards, or of one."""
    return (
        os.path.join(shards, "index.npz")
        if os.path.isdir(shards)
        else f"{shards.removesuffix('.tar')}.index.npz"
    )


def _described(paths: Sequence[str]) -> list[str]:
    """Describe shards by name and bytes: an index belongs to just these."""
    return [f"{os.path.basename(path)} {os.path.getsize(path)}" for path in paths]


def _name_of(described: str) -> str:
    return described.rpartition(" ")[0]


def _refuse_missing(indexed: Sequence[str], present: Sequence[str], target: str) -> None:
    here = {*map(_name_of, present)}
    missing = [name for name in map(_name_of, indexed) if name not in here]
    if missing:
        named = ", ".join(map(shown, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
        raise MissingFileError(
            f"{shown(target)}: {counted(len(missing), 'shard')} that it has {'is' if len(missing) == 1 else 'are'} not there: {named}; "
            "fetch them again, or delete the index to go without"
        )


def scan(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the headers of shards: the arrays of an index. UserError names and counts what is wrong."""
    found = _Found()
    with Bar("indexing", len(paths), "shards") as bar:
        for path in paths:
            found.starts.append(len(found.labels))
            _scan_shard(path, found)
            bar.update()
    if found.texts and found.numbered:
        found.faults.append(
            f"some labels are numbers, others names, such as {shown(next(iter(found.texts)))!r}"
        )
    if found.faults or not found.labels:
        named = "; ".join(map(shown, found.faults[:SHOWN]))
        more = "; ..." if len(found.faults) > SHOWN else ""
        what = f"{counted(len(found.faults), 'fault')}: {named}{more}" if found.faults else "has no picture"
        raise UserError(f"{shown(os.path.dirname(paths[0]) or paths[0])}: {what}")
    if found.others:
        kinds = ", ".join(
            f"{shown(kind) or 'without extension'} ({count:,})"
            for kind, count in sorted(found.others.items())
        )
        get_logger().info(
            f"{shown(os.path.dirname(paths[0]))}: members that are neither a picture nor its label are left out: {kinds}"
        )
    labels = np.array(found.labels, np.int64)
    return {
        "format": np.array(FORMAT),
        "made": np.array(time.time_ns()),  # tells shards of one name apart in a cache
        "starts": np.array([*found.starts, len(labels)], np.int64),
        "offsets": np.array(found.offsets, np.int64),
        "sizes": np.array(found.sizes, np.uint32),
        "checksums": np.array(found.checksums, np.uint32),
        "text": np.frombuffer(bytes(found.text), np.uint8),
        "stops": np.array(found.stops, np.int64),
        **_named(labels, found),
    }


def _named(labels: np.ndarray, found: _Found) -> dict[str, np.ndarray]:
    """Number labels that are text by their sorted order; name numbered classes by their folders, if each has
    one of its own."""
    if found.texts:
        classes = np.array(list(found.texts))
        order = np.argsort(classes)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return {"labels": places[labels], "classes": classes[order]}
    folders = [found.folders[label] for label in sorted(found.folders)]
    own = found.one_folder_each and all(folders) and len({*folders}) == len(folders)
    return {"labels": labels, "classes": np.array(folders if own else [], str)}


def _scan_shard(path: str, found: _Found) -> None:
    shard = os.path.basename(path)
    with reading(path), open_regular(path) as file:
        pread = partial(os.pread, file.fileno())
        sample: list[tuple[str, tarfile.TarInfo]] = []
        key = None
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (info := tar.next()) is not None:
                    tar.members.clear()  # it would keep them all
                    if info.isdir():
                        continue
                    if not info.isreg() or info.issparse():
                        found.faults.append(f"{shard}: {info.name} is no regular file")
                        continue
                    folder, _, name = info.name.rpartition("/")
                    stem, dot, extension = name.partition(".")
                    if (folder, stem) != key:
                        found.add(shard, sample, pread)
                        sample, key = [], (folder, stem)
                    sample.append((f"{dot}{extension}".lower(), info))
                end = tar.offset
        except tarfile.TarError as error:
            found.faults.append(f"{shard} is cut off, or no tar archive ({error})")
            return
        # tarfile takes the end of the file, and a damaged header after a good one, for the end of the
        # archive.
        rest = pread(2**20, end)
        if len(rest) < _HEADER:
            found.faults.append(f"{shard} is cut off: it ends at byte {end:,} without the mark of an end")
        elif rest.strip(b"\0"):
            found.faults.append(
                f"{shard} is damaged at byte {end:,}, or is several archives one after the other"
            )
        else:
            found.add(shard, sample, pread)


def read_index(path: str) -> dict[str, np.ndarray] | None:
    """Read an index; None if there is none, or one that is damaged or of another format."""
    if not os.path.exists(path):
        return None
    with reading(path), open_regular(path) as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                index = {name: arrays[name] for name in arrays.files}
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile):
            index = {}
    if not _is_sound(index):
        get_logger().info(f"{shown(path)}: is damaged, or of another version; made anew")
        return None
    return index


def _is_sound(index: dict[str, np.ndarray]) -> bool:
    """Say whether the arrays are of this format and fit each other: an index may come from outside."""
    try:
        count, shards = len(index["labels"]), len(index["shards"])
        starts, stops = index["starts"], index["stops"]
        return (
            index["format"] == FORMAT
            and index["made"].shape == ()
            and all(index[name].shape == (count,) for name in ("offsets", "sizes", "checksums", "stops"))
            and all(
                index[name].dtype.kind in "iu"
                for name in ("labels", "offsets", "sizes", "checksums", "starts", "stops")
            )
            and (starts[0], starts[-1], len(starts)) == (0, count, shards + 1)
            and bool(
                (np.diff(starts) >= 0).all()
                and (np.diff(stops) >= 0).all()
                and stops[-1] == len(index["text"])
            )
            and min(index["labels"].min(), index["offsets"].min() - _HEADER) >= 0
            and index["classes"].dtype.kind == index["shards"].dtype.kind == "U"
        )
    except (KeyError, IndexError, TypeError, ValueError):
        return False


def write_index(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write an index; processes that do so at once do not disturb each other. Where it cannot be written,
    that is said."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=os.path.dirname(path) or ".", prefix=".index-", delete=False
        ) as file:
            np.savez(file, **arrays)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        get_logger().info(
            f"{shown(path)}: cannot be written ({error.strerror}); the shards are indexed at each start"
        )
