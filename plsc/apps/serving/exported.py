"""Read what an export says of itself in preprocessing.json, and compare the files of its graph with it.

export, preprocessing = read_export(Path("output/export"))
check_files(Path("output/export"), export, ["model.onnx"])   # refuses another graph, and a damaged one
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError

from plsc.checkpoint.manifest import Preprocessing as PreprocessingFields
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, reading, shown
from plsc.utils.calibration import Calibration, Cosine
from plsc.utils.files import read_regular, sha256_of
from plsc.utils.messages import first_problem

_MOST_BYTES = 2**26


class _Part(BaseModel):
    """A part of preprocessing.json; what else stands there is for people."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Input(_Part):
    shape: list[str | int]
    """"batch", then the shape of a sample."""


class _Outside(_Part):
    dtype: str = "uint8"
    channels: str | None = None
    aligned: bool | None = None


class _Inside(_Part):
    mean: FiniteFloat
    scale: FiniteFloat


class Graph(_Part):
    """The names of a graph's files, its input and its output."""

    model: str
    params: str | None = None
    input: str
    output: str


class Export(_Part):
    """What preprocessing.json says; see plsc.apps.export.card."""

    network: str
    embedding_size: PositiveInt
    flip: bool
    threshold: Cosine | None
    calibration: Calibration | None = None
    input: _Input
    preprocessing: _Outside
    inside_the_graph: _Inside
    files: dict[str, Graph]
    """Format -> its graph."""
    sha256: dict[str, str]
    """Of each file of the graphs."""


def read_export(folder: Path) -> tuple[Export, Preprocessing]:
    """Read preprocessing.json in the folder of an export, and join what is prepared inside the graph and
    outside of it.

    Raises UserError if it is missing, or not as plsc export wrote it.
    """
    file = folder / "preprocessing.json"
    missing = "is not there; name the folder that plsc export wrote"
    with reading(file, missing=missing, remedy="export again"):
        text = read_regular(file, _MOST_BYTES)
    try:
        export = Export.model_validate_json(text)
        fields = PreprocessingFields(
            shape=export.input.shape[1:],
            **export.preprocessing.model_dump(),
            **export.inside_the_graph.model_dump(),
        )
    except ValidationError as error:
        key, message = first_problem(error)
        raise UserError(
            f"{shown(file)}: {shown(key or 'the file')}: {shown(message)}; it is not as this plsc writes it: export again"
        ) from error
    return export, Preprocessing.from_json(fields.model_dump())


def check_files(folder: Path, export: Export, names: Iterable[str]) -> None:
    """Refuse by UserError files that are missing, or not the ones that were exported."""
    for name in names:
        path = folder / name
        with reading(path, missing="is not there; export again", remedy="export again"):
            is_ours = sha256_of(path) == export.sha256.get(name)
        if not is_ours:
            raise UserError(
                f"{shown(path)}: is not the file whose SHA-256 stands in preprocessing.json: it is of another export, or damaged; "
                "export again"
            )
