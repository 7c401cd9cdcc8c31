"""The facts by which machines are compared before a run: a field each, which is checked as it comes and has a
row in the table."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict

from plsc.errors import shown
from plsc.utils.yaml_lines import dump

# Of what machines send each other. Another version may say more: versions are compared.
MESSAGE = ConfigDict(strict=True, extra="ignore")
_LONGEST_NAME = 255


def _as_sent(value: Any) -> Any:
    """Return data as they arrive: text that UTF-8 cannot hold, as of file names, escaped, and infinity as
    text."""
    if isinstance(value, dict):
        return {shown(key): _as_sent(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_sent(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return shown(value) if isinstance(value, str) else value


def _as_name(text: str) -> str:
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"has more than {_LONGEST_NAME} characters")
    return shown(text)


Text = Annotated[str, AfterValidator(shown)]
Name = Annotated[str, AfterValidator(_as_name)]
_Data = Annotated[dict[str, Any], AfterValidator(_as_sent)]


def text_of(value: object) -> str:
    return "none" if value is None else shown(value if isinstance(value, str) else dump(value))


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def _any(first: object, second: object) -> bool:
    """Take what each machine has of its own for the same."""
    return True


def _same_minor(first: object, second: object) -> bool:
    """Compare versions by their first two numbers."""
    return re.findall(r"\d+", str(first))[:2] == re.findall(r"\d+", str(second))[:2]


def _seconds(offset: float) -> str:
    return f"{round(offset, 1) + 0.0:+.1f} s"


def _short(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=4).hexdigest()


Same = Callable[[Any, Any], bool]


class Row(NamedTuple):
    """How a fact is called, compared and shown."""

    title: str
    remedy: str = ""
    """What to do if a machine has another value than most. "": nothing, the table marks it."""
    same: Same = operator.eq
    text: Callable[[Any], str] = text_of


_INSTALL = "install the same version on all machines"
_PYTHON = "use the same minor version on all machines"
_BUILD = (
    "build them alike on all machines (python setup.py build_ext --inplace), or set PLSC_KERNELS=0 on all"
)
_FAILED = "a GPU may have failed (nvidia-smi); leave the machine out, or set CUDA_VISIBLE_DEVICES"
_MINOR = "install the same minor version on all machines: others draw other random numbers"
_DATA = "give all machines the same data"


class DataFacts(BaseModel):
    """A data set."""

    model_config = MESSAGE
    samples: Annotated[int, Row("number of samples", _DATA)]
    classes: Annotated[int | None, Row("number of classes", _DATA)]
    labels: Annotated[Text, Row("labels, checksum", _DATA)]
    names: Annotated[Text, Row("names of the samples, checksum", _DATA)]


class DataMistake(BaseModel):
    """Why a data set cannot be read."""

    model_config = MESSAGE
    error: Text


class Facts(BaseModel):
    """The facts of a machine, in the order of the table; what it has not, such as a GPU, is None."""

    model_config = MESSAGE

    host: Annotated[Name, Row("host", same=_any)] = ""
    address: Annotated[Name, Row("address", same=_any)] = ""
    interface: Annotated[Name, Row("interface", same=_any)] = ""
    python: Annotated[Text | None, Row("Python", _PYTHON, _same_minor)] = None
    plsc: Annotated[Text | None, Row("plsc", _INSTALL)] = None
    paddle: Annotated[Text | None, Row("Paddle", _INSTALL)] = None
    numpy: Annotated[Text | None, Row("numpy", _MINOR, _same_minor)] = None
    kernels: Annotated[Text | None, Row("kernels", _BUILD)] = None
    driver: Annotated[Text | None, Row("driver", "install the same driver on all machines")] = None
    nccl: Annotated[Text | None, Row("NCCL", _INSTALL)] = None
    gpus: Annotated[int, Row("GPUs", _FAILED)] = 0
    ranks: Annotated[int, Row("ranks", "give the same --nproc_per_node on all machines")] = 0
    gpu: Annotated[Text | None, Row("GPU")] = None
    """Their models, which may differ: the slowest sets the pace."""
    processors: Annotated[int, Row("processors", same=_any)] = 0
    free_memory: Annotated[int, Row("free memory", same=_any, text=gigabytes)] = 0
    free_disk: Annotated[int, Row("free disk", same=_any, text=gigabytes)] = 0
    clock_offset: Annotated[float, Row("clock", same=_any, text=_seconds)] = 0.0
    """Seconds by which the clock is ahead, as whoever receives the facts computes them."""
    config: Annotated[_Data, Row("config", text=_short)] = {}
    data: dict[Text, DataFacts | DataMistake] = {}
    """By the key of the config."""
    needed_memory: int = 0
    """What the class centres of the machine's ranks take at least; 0 where that is not known."""
    needed_disk: int = 0


def rows_of(model: type[BaseModel]) -> dict[str, Row]:
    """Return the row of each field that has one, by the field's name."""
    return {
        name: row
        for name, field in model.model_fields.items()
        for row in field.metadata
        if isinstance(row, Row)
    }
