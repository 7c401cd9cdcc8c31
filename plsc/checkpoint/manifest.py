"""Read and write manifest.json, which lists the files of a checkpoint, and check that all are there and
unaltered.

Checksums are CRC-32: it detects every change of one bit and of any run up to 32 bits, and takes no extra time
while writing. SHA-256 would halve the speed and not protect from somebody who can rewrite the manifest too.
The manifest begins with the checksum of its own other bytes. The dtypes of arrays are in the safetensors
headers.

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

FORMAT = 7  # the only one that is read; 1 to 6 were written before the first release
# Errors of a missing file. Other errors of reading may be temporary (a lost network disk) and are no damage.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
_FILE_NAME = r"^(([a-z][a-z0-9_]*|head-\d{5}-of-\d{5})\.safetensors|classes\.json)$"

BACKBONE = "backbone"  # the owner of the weights that are trained


def file_of(owner: str) -> str:
    """Name the file of an owner's arrays."""
    return f"{owner}.safetensors"


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class HeadFile(_Fields):
    """One file of the rows of the classes [start, stop)."""

    file: str
    start: NonNegativeInt
    stop: NonNegativeInt


class FileSum(_Fields):
    """Size and checksum of a file."""

    bytes: NonNegativeInt
    crc32: str


class Manifest(_Fields):
    """The fields of manifest.json after "crc32"."""

    format: Literal[FORMAT]
    plsc: str
    """Version of plsc that wrote it."""
    step: NonNegativeInt
    """Optimizer steps taken."""
    epoch: NonNegativeInt
    world_size: PositiveInt
    num_classes: NonNegativeInt
    """0 in a folder that holds a backbone only, such as plsc import writes."""
    embedding_size: PositiveInt
    heads: list[HeadFile]
    """In class order; together [0, num_classes)."""
    files: dict[Annotated[str, Field(pattern=_FILE_NAME)], FileSum]
    preprocessing: Preprocessing
    """How images are prepared."""
    weights: str = BACKBONE
    """Whose arrays are the weights to use, for everything but to train on."""
    state: dict[str, dict[str, Any]]
    """What each owner of a state keeps beside arrays."""
    config: dict[str, dict[str, Any] | list[Any]]
    """The resolved config by sections; {} for what no training has written."""


def seal(rest: bytes) -> bytes:
    """Return the bytes of manifest.json: the checksum as the first field, then `rest`."""
    return b'{"crc32": "%08x",' % zlib.crc32(rest) + rest


def manifest_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json of the fields of a `Manifest` but for format and plsc."""
    manifest = Manifest(format=FORMAT, plsc=__version__, **fields)
    text = json.dumps(manifest.model_dump(), indent=1, allow_nan=False)
    return seal(text[1:].encode())


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest in the file.

    Raises DamagedError, UserError for another format, OSError.
    """
    if not path.is_file():
        raise DamagedError(f"{path}: is not there; this is no checkpoint, or was never completed")
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
                f"{path}: has format {escape(other[0])}, this plsc reads format {FORMAT} only; use the plsc "
                "that wrote it, or make it anew"
            ) from error
        key, message = first_problem(error)
        raise DamagedError(f"{path}: {escape(key)}: {escape(message)}") from error
    needed = {file_of(BACKBONE), file_of(manifest.weights), *(part.file for part in manifest.heads)}
    if not needed <= manifest.files.keys():
        raise DamagedError(f"{path}: does not list {min(needed - manifest.files.keys())!r} among its files")
    if not manifest.heads or not tiles(
        [(part.start, part.stop) for part in manifest.heads], manifest.num_classes
    ):
        raise DamagedError(f"{path}: the head files do not make up the classes [0, {manifest.num_classes})")
    return manifest


def tiles(ranges: list[tuple[int, int]], num_classes: int) -> bool:
    """Return whether the ranges [start, stop), some perhaps empty, make up [0, num_classes) in this order."""
    edges = [0, *(edge for one in ranges for edge in one), num_classes]
    return edges[::2] == edges[1::2] and edges == sorted(edges)


def open_folder(path: Path, verify: bool) -> tuple[Manifest, dict[str, TensorFile], list[str] | None]:
    """Open the checkpoint `path`: its manifest, its tensor files by name, and the classes' names if it has
    some. All are checked; with `verify` all bytes are.

    Raises DamagedError, MissingFileError, UserError for another format or what cannot be read now.
    """
    try:
        if not path.is_dir():
            raise MissingFileError(f"{path}: there is no such checkpoint folder")
        manifest = read_manifest(path / "manifest.json")
        for name, info in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise DamagedError(f"{file}: is not there")
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
            f"{error.filename or path}: cannot be read now ({error.strerror or error}); nothing was changed: "
            "see that its disk is there and that this user may read it, and try again"
        ) from error
    return manifest, tensors, classes
