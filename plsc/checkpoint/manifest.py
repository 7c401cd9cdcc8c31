"""Read and write manifest.json, which lists the files of a checkpoint, and check that all are there and
unaltered.

Checksums are CRC-32: it detects every change of one bit and of any run up to 32 bits, and takes no extra time
while writing. SHA-256 would halve the speed and not protect from somebody who can rewrite the manifest too.
The manifest begins with the checksum of its own other bytes. The dtypes of arrays are in the safetensors
headers.

Try it: `pytest tests/checkpoint/test_manifest.py`.
"""

from __future__ import annotations

import errno
import json
import stat
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
    field_serializer,
    field_validator,
)

from plsc.checkpoint.tensorfile import DamagedError, TensorFile, crc32_of
from plsc.errors import MissingFileError, UserError, shown
from plsc.utils.files import read_regular
from plsc.utils.messages import first_problem
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.version import __version__

FORMAT = 7  # the only one that is read; 1 to 6 were written before the first release
# Errors of a missing file. Other errors of reading may be temporary (a lost network disk) and are no damage.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_OWNER = r"[a-z][a-z0-9_]*"
_FILE_NAME = rf"^(({_OWNER}|head-\d{{5}}-of-\d{{5}})\.safetensors|classes\.json)$"

BACKBONE = "backbone"  # the owner of the weights that are trained
_MOST_BYTES = 2**26  # of manifest.json; 99,999 head files take 30 MB


def file_of(owner: str) -> str:
    """Name the file of an owner's arrays."""
    return f"{owner}.safetensors"


def head_file(number: int, count: int) -> str:
    """Name one of `count` files of class rows."""
    return f"head-{number:05d}-of-{count:05d}.safetensors"


class HeadFile(BaseModel):
    """One file of class rows."""

    model_config = ConfigDict(strict=True, extra="forbid")
    file: str
    start: NonNegativeInt
    """First class."""
    stop: NonNegativeInt
    """The class after the last one."""


class FileSum(BaseModel):
    """Size and checksum of a file."""

    model_config = ConfigDict(strict=True, extra="forbid")
    bytes: NonNegativeInt
    crc32: str


class Manifest(BaseModel):
    """The fields of manifest.json after "crc32"."""

    model_config = ConfigDict(strict=True, extra="forbid")
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
    state: dict[Annotated[str, Field(pattern=rf"^{_OWNER}$")], dict[str, Any]]
    """What each owner of a state keeps beside arrays."""
    config: dict[str, dict[str, Any] | list[Any]]
    """The resolved config by sections; {} for what no training has written."""

    @field_validator("preprocessing", mode="before")
    @classmethod
    def _read_preprocessing(cls, fields: Any) -> Any:
        return Preprocessing.from_json(fields) if isinstance(fields, dict) else fields

    @field_serializer("preprocessing")
    def _write_preprocessing(self, preprocessing: Preprocessing) -> dict[str, Any]:
        return preprocessing.to_json()

    @field_validator("state")
    @classmethod
    def _check_state(cls, state: dict) -> dict:
        json.dumps(state, allow_nan=False)  # ValueError for a number that is not finite
        return state


def seal(rest: bytes) -> bytes:
    """Return the bytes of manifest.json: the checksum as the first field, then `rest`."""
    return b'{"crc32": "%08x",' % zlib.crc32(rest) + rest


def manifest_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json of the fields of a `Manifest` but for format and plsc."""
    manifest = Manifest(format=FORMAT, plsc=__version__, **fields)
    text = json.dumps(manifest.model_dump(), indent=1)
    return seal(text[1:].encode())


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest in the file.

    Raises: DamagedError (absent, altered, inconsistent, or lists files that do not belong to a checkpoint),
    UserError (of another format), OSError.
    """
    if not path.exists():
        raise DamagedError(f"{path}: is not there; the checkpoint was never completed")
    try:
        data = read_regular(path, _MOST_BYTES)
    except UserError as error:  # not a regular file, or too large for a manifest
        raise DamagedError(str(error)) from error
    if data != seal(data[len(seal(b"")) :]):
        raise DamagedError(f"{path}: fails its checksum")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: is not JSON") from error
    if type(fields.get("format")) is int and fields["format"] != FORMAT:
        raise UserError(
            f"{path}: has format {fields['format']}, this plsc reads format {FORMAT} only; use the plsc that "
            "wrote it, or make it anew"
        )
    del fields["crc32"]
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        key, message = first_problem(error)
        what = shown(message.removeprefix("Value error, "))
        raise DamagedError(f"{path}: {shown(key)}: {what}") from error
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


def open_folder(path: Path, verify: bool) -> tuple[Manifest, dict[str, TensorFile]]:
    """Open the checkpoint `path`: its manifest and tensor files by name, checked; with `verify` all bytes.

    Raises: DamagedError, MissingFileError, UserError (of another format, not readable now or by this
    user).
    """
    try:
        if not path.is_dir():
            raise MissingFileError(f"{path}: there is no such checkpoint folder")
        manifest = read_manifest(path / "manifest.json")
        for name, info in manifest.files.items():
            _check_file(path / name, info, verify)
        names = [name for name in manifest.files if name.endswith(".safetensors")]
        tensors = {name: TensorFile(path / name) for name in names}
    except PermissionError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give this user the right to read it") from error
    except OSError as error:
        if error.errno in _ABSENT:
            raise DamagedError(f"{path}: {error}") from error
        raise UserError(
            f"{error.filename or path}: cannot be read now ({error.strerror or error}); nothing was changed: "
            "see that its disk is there, and try again"
        ) from error
    _check_heads(path, manifest, tensors)
    _check_weights(path, manifest.weights, tensors)
    return manifest, tensors


def _check_file(path: Path, info: FileSum, verify: bool) -> None:
    if not path.exists():
        raise DamagedError(f"{path}: is not there")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path}: is not a plain file")
    if status.st_size != info.bytes:
        raise DamagedError(f"{path}: has {status.st_size} bytes, the manifest says {info.bytes}")
    if verify and crc32_of(path) != info.crc32:
        raise DamagedError(f"{path}: fails its checksum")


def _check_heads(path: Path, manifest: Manifest, tensors: dict[str, TensorFile]) -> None:
    """Check that each head file has the rows of the manifest and the same arrays as the first."""
    first = tensors[manifest.heads[0].file].arrays
    centres = first.get("centres")
    if centres is None or centres.shape[1:] != (manifest.embedding_size,):
        raise DamagedError(
            f"{path}: the head has no array 'centres' of embedding size {manifest.embedding_size}"
        )
    for part in manifest.heads:
        arrays = tensors[part.file].arrays
        alike = arrays.keys() == first.keys() and all(
            arrays[name].dtype == first[name].dtype
            and arrays[name].shape == (part.stop - part.start, *first[name].shape[1:])
            for name in arrays
        )
        if not alike:
            raise DamagedError(
                f"{path}/{part.file}: its arrays are not the rows [{part.start}, {part.stop}) of the head"
            )


def _check_weights(path: Path, owner: str, tensors: dict[str, TensorFile]) -> None:
    """Check that the weights to use have the arrays of the backbone."""
    trained, used = (
        {name: (entry.dtype, entry.shape) for name, entry in tensors[file_of(one)].arrays.items()}
        for one in (BACKBONE, owner)
    )
    if trained != used:
        raise DamagedError(f"{path}/{file_of(owner)}: its arrays are not those of {file_of(BACKBONE)}")
