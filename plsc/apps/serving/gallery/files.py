"""Read and write a gallery's folder: gallery.json names the files of its present generation.

    gallery.json             the network, the threshold and the other facts; lists the next two with their checksums
    rows-1.safetensors       "embeddings" float32 [N, D], "owners" int64 [N], "lengths" float32 [N]; and the pictures that the
                             threshold is measured by: "own" float32 [P, D], "own_people" int64 [P], "others", "other_people"
    people-1.json            names, and the paths of each one's pictures
    log-1                    what was added and removed since, see log.py
    .lock                    held while a process writes

A new generation is written beside the old one, and becomes the gallery's when gallery.json is replaced.
"""

import contextlib
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, PositiveInt

from plsc.checkpoint.manifest import FileSum, parse_sealed, seal
from plsc.checkpoint.manifest import Preprocessing as PreprocessingFields
from plsc.checkpoint.tensorfile import DamagedError, TensorFile, crc32_of, layout, sync_folder, write_synced
from plsc.errors import UserError, reading, shown, writing
from plsc.utils.atomic_write import remove
from plsc.utils.calibration import Calibration
from plsc.utils.disk import nearest_folder
from plsc.utils.files import read_regular, refuse_irregular
from plsc.utils.version import __version__

FORMAT = 2
HEADER = "gallery.json"
_INVISIBLE = {
    "Cc",
    "Cf",
    "Zs",
    "Zl",
    "Zp",
}  # categories of Unicode: control and format characters, white space
_Pictures = TypeVar("_Pictures")
_OTHER = "restore the gallery, or build it again"


class Mapped(BaseModel):
    """How rows came from another network by a map; see plsc.apps.serving.gallery.mapping."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    network: str
    """Identity of the network that had made the rows."""
    described: str
    pictures: PositiveInt
    """That the map was fitted on."""
    people: PositiveInt
    """Whom they show."""
    penalty: FiniteFloat
    """Of the ridge regression."""
    cosine: FiniteFloat
    """Between a mapped embedding and the new network's of the same picture: the mean over people that the map was not fitted on."""


class Measured(BaseModel):
    """How the threshold of a search was measured; see plsc.apps.serving.gallery.strangers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    fpir: FiniteFloat
    """The share of strangers' searches that gives a name."""
    low: FiniteFloat
    """95 % of tests with a thousand strangers find it between these."""
    high: FiniteFloat
    by: str
    """Whose pictures were searched."""
    pictures: PositiveInt
    people: PositiveInt
    size: PositiveInt
    """People in the gallery at that time."""


class Threshold(BaseModel):
    """The threshold of a search, measured anew."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    threshold: FiniteFloat | None
    measured: Measured | None


class Header(BaseModel):
    """The fields of gallery.json after "crc32"."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: Literal[2] = FORMAT
    plsc: str = __version__
    """Version of plsc that wrote it."""
    generation: PositiveInt
    network: str
    """Identity of the network, see `Checkpoint.network`."""
    compatible_with: str | None = None
    """Identity of the network that it was trained to be compatible with; not in the file where there is none."""
    described: str
    """Where the network was from, for messages."""
    origin: dict[str, Any] | None = None
    """How to open the network again, see plsc.apps.serving.embedder.from_origin; null: not known."""
    flip: bool
    preprocessing: PreprocessingFields
    embedding_size: PositiveInt
    template: Literal["mean", "images"]
    """One row for each person, or one for each picture."""
    threshold: FiniteFloat | None = None
    """Of a search; None: not known."""
    measured: Measured | None = None
    """How; None: the threshold is not known, or was set by hand."""
    others: str = ""
    """Whose pictures the "others" in the rows' file are."""
    pair_threshold: FiniteFloat | None = None
    """The checkpoint's: two pictures with a higher cosine show the same person."""
    calibration: dict[str, Any] | None = None
    mapped: Mapped | None = None
    """How the rows came from another network without pictures; not in the file where they are the network's own."""
    people: NonNegativeInt = 0
    """When the generation was written."""
    files: dict[str, FileSum] = {}

    @property
    def rows_file(self) -> str:
        return f"rows-{self.generation}.safetensors"

    @property
    def people_file(self) -> str:
        return f"people-{self.generation}.json"

    @property
    def log_file(self) -> str:
        return f"log-{self.generation}"


class Pictures(NamedTuple):
    """Embeddings of pictures of people whom the network was not trained on: they are searched to measure the threshold."""

    own: np.ndarray
    """float32 [P, D] of length 1, of people in the gallery."""
    own_people: np.ndarray
    """int64 [P]: their numbers in the gallery."""
    others: np.ndarray
    """float32 [Q, D] of length 1, of people who are not in the gallery."""
    other_people: np.ndarray
    """int64 [Q]: numbers of their own."""


def no_pictures(width: int) -> Pictures:
    """Make an empty `Pictures` of embeddings [0, width]."""
    embeddings, people = np.empty((0, width), np.float32), np.empty(0, np.int64)
    return Pictures(embeddings, people, embeddings, people)


class Content(NamedTuple):
    """The people of a gallery and their rows."""

    names: list[str]
    sources: list[list[str]]
    """Of each person the paths of the pictures; [] where they came as arrays."""
    embeddings: Any
    """float32 [N, D] of length 1; an array, or what gives its rows by slice."""
    owners: np.ndarray
    """int64 [N]: the number of the person of each row."""
    lengths: np.ndarray
    """float32 [N]: of the sum of the pictures' embeddings that a row is made of."""
    pictures: Pictures


def write(folder: Path, header: Header, content: Content) -> Header:
    """Write a generation, and make it the gallery's; return its header. The caller holds the lock.

    Raises OSError; the generation before is then untouched.
    """
    people = {"names": content.names, "sources": content.sources}
    arrays = {"embeddings": content.embeddings, "owners": content.owners, "lengths": content.lengths}
    arrays.update(content.pictures._asdict())
    buffers = {
        header.rows_file: layout(arrays),
        header.people_file: [json.dumps(people).encode()],
        header.log_file: [],
    }
    sums = {}
    for name, parts in buffers.items():
        (folder / name).unlink(missing_ok=True)  # of a process that was killed
        sums[name] = write_synced(folder / name, parts)
    del sums[header.log_file]  # it grows
    header = header.model_copy(
        update={"files": {name: FileSum(**each) for name, each in sums.items()}, "people": len(content.names)}
    )
    write_header(folder, header)
    return header


def write_header(folder: Path, header: Header) -> None:
    """Replace gallery.json. The caller holds the lock. Raises OSError; the one before is then untouched."""
    beside = folder / f"{HEADER}.tmp"
    beside.unlink(missing_ok=True)
    # Older versions refuse keys that they do not know.
    unset = {key for key in ("compatible_with", "mapped") if getattr(header, key) is None}
    write_synced(beside, [seal(json.dumps(header.model_dump(exclude=unset)).encode()[1:])])
    sync_folder(folder)
    os.replace(beside, folder / HEADER)
    sync_folder(folder)


def remove_others(folder: Path, header: Header) -> None:
    """Remove the files of other generations than the header's."""
    kept = {header.rows_file, header.people_file, header.log_file}
    for pattern in ("rows-*.safetensors", "people-*.json", "log-*"):
        for path in folder.glob(pattern):
            if path.name not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()


def read_header(folder: Path) -> Header:
    """Read gallery.json. Raises MissingFileError, DamagedError, UserError (another format, not readable)."""
    file = folder / HEADER
    missing = f"is no gallery, it has no {HEADER}; make one with plsc gallery build"
    with reading(folder, missing=missing):
        data = read_regular(file)
    header = parse_sealed(data, shown(file), Header, FORMAT, f"; {_OTHER}")
    if header.calibration is not None:
        Calibration.from_json(header.calibration, f"{shown(file)}: calibration")
    return header


def read(folder: Path, header: Header) -> Content:
    """Read a generation: every checksum is compared, and the embeddings are mapped into memory.

    Raises FileNotFoundError where another process has just replaced it; DamagedError, OSError.
    """
    for name in (header.rows_file, header.people_file, header.log_file):
        refuse_irregular(folder / name, (folder / name).stat().st_mode)
    for name in (header.rows_file, header.people_file):
        path = folder / name
        if name not in header.files or path.stat().st_size != header.files[name].bytes:
            raise DamagedError(f"{shown(path)}: has another size than {HEADER} says; {_OTHER}")
        if crc32_of(path) != header.files[name].crc32:
            raise DamagedError(f"{shown(path)}: fails its checksum; {_OTHER}")
    tensors = TensorFile(folder / header.rows_file)
    try:
        people = json.loads((folder / header.people_file).read_bytes())
        embeddings, owners = tensors.map("embeddings"), tensors.read("owners")
        pictures = Pictures(*map(tensors.read, Pictures._fields))
        content = Content(
            people["names"], people["sources"], embeddings, owners, tensors.read("lengths"), pictures
        )
        sound = _fit(content, header)
    except (KeyError, TypeError, ValueError, RecursionError):
        sound = False
    if not sound:  # whoever wrote them can compute checksums
        raise DamagedError(f"{shown(folder / header.rows_file)}: does not fit {header.people_file}; {_OTHER}")
    return content


def _fit(content: Content, header: Header) -> bool:
    """Say whether the parts of a content have the types, sizes and ranges that they must have."""
    rows, people = len(content.owners), len(content.names)
    return (
        isinstance(content.names, list)
        and isinstance(content.sources, list)
        and content.embeddings.shape == (rows, header.embedding_size)
        and content.embeddings.dtype == content.lengths.dtype == np.float32
        and content.owners.dtype == np.int64
        and content.lengths.shape == (rows,)
        and len(content.sources) == people == len(set(content.names))
        and all(isinstance(name, str) for name in content.names)
        and all(isinstance(sources, list) for sources in content.sources)
        and all(isinstance(path, str) for sources in content.sources for path in sources)
        and (rows == 0 or (content.owners.min() >= 0 and content.owners.max() < people))
        and np.bincount(content.owners, minlength=people).all()  # everybody has a row
        and bool(np.isfinite(content.lengths).all())
        and _of_length_1_or_0(content.embeddings)
        and _pictures_fit(content.pictures, header.embedding_size, people)
    )


def _pictures_fit(pictures: Pictures, width: int, people: int) -> bool:
    own, others = pictures.own_people, pictures.other_people
    return (
        pictures.own.shape == (len(own), width)
        and pictures.others.shape == (len(others), width)
        and pictures.own.dtype == pictures.others.dtype == np.float32
        and own.dtype == others.dtype == np.int64
        and (len(own) == 0 or (own.min() >= 0 and own.max() < people))
        and _of_length_1_or_0(pictures.own)
        and _of_length_1_or_0(pictures.others)
    )


def _of_length_1_or_0(embeddings: np.ndarray) -> bool:
    """Say whether all rows have this length. One that is not finite would hide others from a search."""
    squares = np.einsum("ij,ij->i", embeddings, embeddings)
    return bool(np.all((np.abs(squares - 1) < 1e-3) | (squares == 0)))


def make_folder(folder: Path, header: Header, content: Content) -> Header:
    """Write the first generation of a new gallery; the folder appears when all of it is on the disk."""
    folder = Path(os.path.abspath(folder))
    beside = _beside(folder)
    with writing(beside, remedy="name another folder"):
        beside.mkdir(parents=True)  # outside of `try`: what is there may be another process's, and stays
    try:
        with writing(folder, remedy="name another folder"):
            header = write(beside, header, content)
            os.rename(beside, folder)  # onto an empty folder, or none
            sync_folder(folder.parent)
    finally:
        remove(beside)
    return header


def composed(name: str) -> str:
    """Return a name as galleries have it: accents are part of their letters (NFC). File systems and keyboards give either form."""
    return unicodedata.normalize("NFC", name)


def name_of(person: object) -> str:
    """Return the name of a person to be added, composed. Raises UserError for one that is no text, or is empty or seems to be another."""
    if not isinstance(person, str) or not person:
        raise UserError(f"a person needs a name, text that is not empty; got {shown(repr(person))}")
    if any(unicodedata.category(end) in _INVISIBLE for end in (person[0], person[-1])):
        raise UserError(
            f"a person's name must not begin or end with white space or an invisible character; got {shown(repr(person))}"
        )
    return composed(person)


def by_name(people: Mapping[str, _Pictures]) -> dict[str, _Pictures]:
    """Return people to be added by their names as of `name_of`. UserError, too, where two names become one."""
    named: dict[str, _Pictures] = {}
    for person, pictures in people.items():
        name = name_of(person)
        if name in named:
            raise UserError(
                f"'{shown(name)}': two names are the same text, of other Unicode characters (NFC and NFD); rename one, or join the two"
            )
        named[name] = pictures
    return named


def refuse_existing(folder: Path) -> None:
    """Refuse by UserError to build where something is already, or nothing can be written."""
    folder = Path(os.path.abspath(folder))
    empty = folder.is_dir() and not any(folder.iterdir())
    taken = next((path for path in (folder, _beside(folder)) if os.path.lexists(path)), None)
    if taken and not (taken == folder and empty):
        raise UserError(f"{shown(taken)}: exists already; remove it, or name another folder")
    above = nearest_folder(folder.parent)
    if not os.access(above, os.W_OK):
        raise UserError(f"{shown(above)}: cannot be written to; name another folder for the gallery")


def _beside(folder: Path) -> Path:
    return Path(f"{folder}.tmp")


def concatenated(parts: Sequence[np.ndarray]) -> Any:
    """Join arrays [n, D] without a copy, for `write`, which reads rows by slice."""
    return _Joined(parts)


class _Joined:
    def __init__(self, parts: Sequence[np.ndarray]):
        self._parts = parts
        self.dtype = parts[0].dtype
        self.shape = (sum(map(len, parts)), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        cut = []
        first = 0
        for part in self._parts:
            cut.append(part[max(0, start - first) : max(0, stop - first)])
            first += len(part)
        return np.concatenate(cut)
