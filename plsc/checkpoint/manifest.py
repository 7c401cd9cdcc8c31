"""Read and write manifest.json, which lists a checkpoint's files, and check these files.

The check finds files that are missing or altered. Checksums are CRC-32. It detects every change within up to
32 consecutive bits, and it adds no time to writing. SHA-256 would halve the speed, and it would not protect
against somebody who can also rewrite the manifest. The manifest begins with the checksum of the rest of its
bytes. The safetensors headers contain the arrays' dtypes.

Try it: `pytest tests/checkpoint/test_manifest.py`.
"""

import errno
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from plsc.checkpoint.tensorfile import DamagedError, TensorFile, crc32_of
from plsc.errors import MissingFileError, UserError, escape
from plsc.utils.files import read_json
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.section import first_problem
from plsc.utils.version import __version__

FORMAT = 8  # The only format that can be read. Formats 1 to 7 were used before the first release.
# Errors for a missing file. Other read errors may be temporary, such as a lost network disk. They do not mean
# that the checkpoint is damaged.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
_FILE_NAME = r"^(([a-z][a-z0-9_]*|head-\d{5}-of-\d{5})\.safetensors|classes\.json)$"

BACKBONE = "backbone"  # owner of the trained weights


def file_of(owner: str) -> str:
    """Return the name of the file that contains an owner's arrays."""
    return f"{owner}.safetensors"


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class HeadFile(_Fields):
    """A file with rows for the classes [start, stop)."""

    file: str
    start: NonNegativeInt
    stop: NonNegativeInt


class FileSum(_Fields):
    """A file's size and checksum."""

    bytes: NonNegativeInt
    crc32: str


class Manifest(_Fields):
    """The fields of manifest.json that follow "crc32"."""

    format: Literal[FORMAT]
    plsc: str
    """The plsc version that wrote it."""
    step: NonNegativeInt
    """Optimizer steps taken."""
    epoch: NonNegativeInt
    world_size: PositiveInt
    num_classes: NonNegativeInt
    """Class count. It is 0 if the folder contains only a backbone, as after `plsc import`."""
    row_width: PositiveInt
    """Length of a class's row of centres: the embedding size times the number of sub-centres."""
    heads: list[HeadFile]
    """The head files in class order. Together they cover [0, num_classes)."""
    files: dict[Annotated[str, Field(pattern=_FILE_NAME)], FileSum]
    preprocessing: Preprocessing
    """How images are prepared for the network."""
    weights: str = BACKBONE
    """The owner whose arrays are the weights for everything except training."""
    state: dict[str, dict[str, Any]]
    """The values in each owner's state that are not arrays."""
    config: dict[str, dict[str, Any] | list[Any]]
    """The resolved config by section. It is {} if the checkpoint was not written by training."""


def seal(rest: bytes) -> bytes:
    """Return the bytes of manifest.json: the checksum as the first field, then `rest`."""
    return b'{"crc32": "%08x",' % zlib.crc32(rest) + rest


def manifest_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json. `fields`: those of a `Manifest`, except format and plsc."""
    manifest = Manifest(format=FORMAT, plsc=__version__, **fields)
    text = json.dumps(manifest.model_dump(), indent=1, allow_nan=False)
    return seal(text[1:].encode())


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest in a file.

    Raises DamagedError if the file is missing or damaged, UserError if it has another format, and OSError if
    it cannot be read.
    """
    if not path.is_file():
        raise DamagedError(f"{path}: does not exist; this is not a checkpoint, or it was never completed")
    data = path.read_bytes()
    fields = data[len(seal(b"")) :]
    if data != seal(fields):
        raise DamagedError(f"{path}: fails its checksum")
    try:
        manifest = Manifest.model_validate_json(b"{" + fields)
    except ValidationError as error:
        other = [problem["input"] for problem in error.errors() if problem["loc"] == ("format",)]
        if other:
            raise UserError(
                f"{path}: has format {escape(other[0])}, this plsc reads format {FORMAT} only; use the "
                "plsc that wrote it, or write it again"
            ) from error
        key, message = first_problem(error)
        raise DamagedError(f"{path}: {escape(key)}: {escape(message)}") from error
    needed = {file_of(BACKBONE), file_of(manifest.weights), *(part.file for part in manifest.heads)}
    if not needed <= manifest.files.keys():
        raise DamagedError(f"{path}: does not list {min(needed - manifest.files.keys())!r} among its files")
    if not manifest.heads or not tiles(
        [(part.start, part.stop) for part in manifest.heads], manifest.num_classes
    ):
        raise DamagedError(f"{path}: the head files do not cover the classes [0, {manifest.num_classes})")
    return manifest


def tiles(ranges: list[tuple[int, int]], num_classes: int) -> bool:
    """Return whether the ranges [start, stop), in this order, cover [0, num_classes) without gap or overlap.

    A range may be empty.
    """
    edges = [0, *(edge for one in ranges for edge in one), num_classes]
    return edges[::2] == edges[1::2] and edges == sorted(edges)


def open_folder(path: Path, verify: bool) -> tuple[Manifest, dict[str, TensorFile], list[str] | None]:
    """Open the checkpoint in the folder `path` and check that its files are there and have the right size.

    Args:
        path: the checkpoint's folder.
        verify: whether to read every file and compare its checksum, too.

    Returns the manifest, the tensor files by file name, and the class names, or None if it has none.

    Raises DamagedError if a file is missing or altered, MissingFileError if the folder does not exist, and
    UserError if the checkpoint has another format or cannot be read now.
    """
    try:
        if not path.is_dir():
            raise MissingFileError(f"{path}: there is no such checkpoint folder")
        manifest = read_manifest(path / "manifest.json")
        for name, info in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise DamagedError(f"{file}: does not exist")
            if file.stat().st_size != info.bytes:
                raise DamagedError(f"{file}: has {file.stat().st_size} bytes, the manifest says {info.bytes}")
            if verify and crc32_of(file) != info.crc32:
                raise DamagedError(f"{file}: fails its checksum")
        names = [name for name in manifest.files if name.endswith(".safetensors")]
        tensors = {name: TensorFile(path / name) for name in names}
        classes = read_json(path / "classes.json") if "classes.json" in manifest.files else None
    except OSError as error:
        if error.errno in _ABSENT:
            raise DamagedError(f"{path}: {error}") from error
        raise UserError(
            f"{error.filename or path}: cannot be read now ({error.strerror or error}); nothing was "
            "changed; make sure that its disk is mounted and that this user may read it, then try again"
        ) from error
    return manifest, tensors, classes
