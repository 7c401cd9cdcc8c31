"""Read images from Parquet, which `plsc convert` turns into another format: a column of images, and one of
labels.

An image is a struct {bytes, path}, as Hugging Face's datasets have it, bytes, or a path. What is read of a
file at a time is a row group, of which training in random order would use one row, so Parquet is converted,
not trained from. Try it: `ParquetImages("set/").num_classes`.
"""

from __future__ import annotations

import bisect
import glob
import json
import os
from typing import Any

import numpy as np

from plsc.data.images import EncodedImages, read_file
from plsc.errors import CorruptImageError, MissingFileError, UserError, reading, shown
from plsc.utils.text import counted

IMAGES = (
    "image",
    "img",
    "picture",
    "jpg",
    "path",
    "file_name",
)  # names of the column of images, the first that is there
LABELS = ("label", "labels", "identity", "cls")


def parquet_files(path: str) -> list[str]:
    """List the Parquet files that a path names, itself or those in the folder, sorted; [] if there is
    none."""
    if os.path.isdir(path):
        return sorted(glob.glob(os.path.join(glob.escape(path), "*.parquet")))
    return [path] if path.endswith(".parquet") else []


class ParquetImages(EncodedImages):
    """The images of Parquet files.

    `path`: a file, or a folder of files, which are read in the order of their names. `root`: where relative
    paths of images start; empty = the files' folder. Labels are whole numbers 0, 1, ... without gaps, or
    names; numbers have the names that Hugging Face's datasets keep of them.
    """

    def __init__(self, path: str, root: str = ""):
        super().__init__()
        paths = parquet_files(path)
        if not os.path.exists(path):
            raise MissingFileError(f"'{path}' does not exist")
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise UserError(
                f'{shown(path)}: Parquet is read by pyarrow: pip install "plsc[parquet]"'
            ) from error
        self._errors = ArrowException
        self._root = root or os.path.dirname(paths[0])
        try:
            with reading(path):
                self._files = [parquet.ParquetFile(file) for file in paths]
            self._paths = paths
            names = self._files[0].schema_arrow.names
            self._image = _column(names, IMAGES, paths[0])
            label = _column(names, LABELS, paths[0])
            for file in self._files:
                file.schema_arrow.field(self._image)  # KeyError if it has none
            columns = [file.read([label]).column(label) for file in self._files]
        except (ArrowException, KeyError) as error:
            raise UserError(
                f"{shown(path)}: is damaged, or has other columns than its first file: {_line(error)}"
            ) from error
        groups = [
            (number, group) for number, file in enumerate(self._files) for group in range(file.num_row_groups)
        ]
        sizes = [self._files[number].metadata.row_group(group).num_rows for number, group in groups]
        self._groups, self._starts = groups, np.cumsum([0, *sizes]).tolist()
        self._read: tuple[int, Any] = (-1, None)  # the row group that was read last: its number, its images
        labels, self.identities = _labels_of(columns, label, path)
        if self.identities is None:
            self.identities = _names_of(self._files[0], label, int(labels.max()) + 1)
        self._set_labels(labels, path)

    def encoded(self, index: int) -> np.ndarray:
        number = bisect.bisect_right(self._starts, index) - 1
        if self._read[0] != number:
            file, group = self._groups[number]
            try:
                self._read = number, self._files[file].read_row_group(group, [self._image]).column(0)
            except self._errors as error:
                raise UserError(
                    f"{shown(self._paths[file])}: row group {group} is damaged: {_line(error)}"
                ) from error
        value = self._read[1][index - self._starts[number]].as_py()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if isinstance(data, str):
            data, path = None, data
        if data is None and path is None:
            raise CorruptImageError(f"{self.name(index)}: has no image")
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        if data is None and isinstance(path, str):
            return read_file(self._below_root(path, index))
        raise UserError(
            f"{self.name(index)}: {self._image} must be the bytes of a file, its path, or a struct of them, is "
            f"{_line(self._read[1].type)}; write such a column"
        )

    def _below_root(self, path: str, index: int) -> str:
        """Return where the image at `path` is. UserError outside of the root: a file from outside could copy
        any file of this machine."""
        whole = os.path.normpath(os.path.join(self._root, path))
        root = os.path.abspath(self._root)
        if os.path.commonpath([root, os.path.abspath(whole)]) != root:
            raise UserError(
                f"{self.name(index)}: {shown(path)} lies outside of {shown(root)}; name the folder of the images by --root"
            )
        return whole

    def name(self, index: int) -> str:
        """Name an image by its file and its row there."""
        number = bisect.bisect_right(self._starts, index) - 1
        file = self._groups[number][0]
        first = next(start for (other, _), start in zip(self._groups, self._starts) if other == file)
        return f"{self._paths[file]}: row {index - first}"


def _line(text: object) -> str:
    return shown(" ".join(str(text).split())[:200])


def _column(names: list[str], wanted: tuple[str, ...], path: str) -> str:
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise UserError(
            f"{shown(path)}: must have a column {' or '.join(wanted)}, has {', '.join(map(shown, names))}; rename one"
        )
    return found


def _labels_of(columns: list[Any], label: str, path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the labels, int64 [N], and where they are text the classes' names. UserError for anything else,
    and for a row without one."""
    values = [column.to_numpy() for column in columns if len(column)]
    missing = sum(column.null_count for column in columns)
    if missing or not values:
        raise UserError(
            f"{shown(path)}: {counted(missing, 'row')} without a {label}"
            if missing
            else f"{shown(path)}: has no row"
        )
    given = np.concatenate(values)
    if given.dtype.kind in "iu":
        if given.min() < 0:
            raise UserError(
                f"{shown(path)}: {label} must be 0 or more, has {given.min()}; leave these rows out"
            )
        return given.astype(np.int64), None
    if given.dtype.kind != "O" or not isinstance(given[0], str):
        raise UserError(f"{shown(path)}: {label} must be whole numbers or text, is {columns[0].type}")
    names, labels = np.unique(given.astype(str), return_inverse=True)
    return labels.astype(np.int64), names


def _names_of(file: Any, label: str, count: int) -> np.ndarray | None:
    """Find the names of numbered classes in what Hugging Face's datasets write beside the schema."""
    try:
        features = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
        return (
            np.array(names) if len(names) == count and all(isinstance(name, str) for name in names) else None
        )
    except (KeyError, TypeError, ValueError):
        return None
