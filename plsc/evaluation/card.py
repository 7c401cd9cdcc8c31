"""The model card of a run: what it is, what it was trained and evaluated on, and what its numbers are.

card.json has everything; card.md is the same for people, written from it by `to_markdown` and card.md.jinja.
Imports no Paddle. `plsc card verify RUN` repeats the evaluation and compares: plsc/training/card.py.
"""

import functools
import hashlib
import json
import math
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
import markupsafe
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from plsc.errors import UserError, reading, shown
from plsc.evaluation.calibration import cosine_with_interval
from plsc.evaluation.intervals import percent, with_interval
from plsc.utils.atomic_write import replace_file
from plsc.utils.calibration import Threshold
from plsc.utils.files import read_regular
from plsc.utils.messages import first_problem

JSON, MARKDOWN = "card.json", "card.md"
NOT_COMPUTED = "the numbers were not computed again"
TEMPLATE = Path(__file__).with_name("card.md.jinja")
_MOST_BYTES = 2**26
_PROBABILITIES = (0.01, 0.1, 0.5, 0.9, 0.99)  # whose cosines are listed


class Card(BaseModel):
    """The content of card.json."""

    model_config = ConfigDict(strict=True, extra="forbid")
    format: Literal[1] = 1
    run: str
    """The run's folder, from the folder that it was trained in."""
    date: str
    command: str
    licence: str | None
    """Of the training data, as the user gave it."""
    checkpoint: Annotated[str, Field(pattern=r"^step-\d{8,}(\.old)?$")]
    """Name of the folder in checkpoints/ that the numbers are of."""
    step: NonNegativeInt
    headline: str
    """The main set's result in a few words; empty where nothing was evaluated."""
    network: str
    """See plsc.checkpoint.saved.Checkpoint.network."""
    facts: dict[str, str]
    """What was trained, on what, and evaluated on what."""
    sets: dict[str, dict[str, Any]]
    """The numbers of each evaluation set by its title, the main one first, as in results.json."""
    limits: list[str]
    software: dict[str, str | None]
    machine: dict[str, str | int | bool]
    """What the rounding of the numbers depends on, together with `software`."""
    files: dict[str, str]
    """SHA-256 of the files that the numbers depend on, by what they are."""
    data: dict[str, str]
    """SHA-256 of the data sets, see plsc.data.fingerprint."""
    pictures: dict[str, str]
    """Heading -> file beside the card."""
    config: str
    """The text of config.yaml."""
    seal: str = ""
    """SHA-256 of all other fields: it shows a mistake, and stops nobody who means to change them."""

    def make_seal(self) -> str:
        """Compute what `seal` has to be."""
        content = json.dumps(self.model_dump(exclude={"seal"}), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def write_card(card: Card, folder: Path) -> None:
    """Write card.md and card.json to `folder`."""
    for name, content in files_of(card).items():
        replace_file(folder / name, content)


def files_of(card: Card) -> dict[str, bytes]:
    """Return the bytes of card.md and card.json by name."""
    fields = {**card.model_dump(), "seal": card.make_seal()}
    content = json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    texts = {MARKDOWN: to_markdown(card), JSON: content}
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}


def read_card(folder: Path) -> Card:
    """Read card.json in the folder of a run. Raises UserError if it is missing or damaged."""
    file = folder / JSON
    missing = f"no such file; plsc card write {shown(folder)} evaluates the run and writes it"
    with reading(file, missing=missing):
        text = read_regular(file, _MOST_BYTES)
    try:
        return Card.model_validate_json(text)
    except ValidationError as error:
        key, message = first_problem(error)
        raise UserError(
            f"{file}: {shown(key)}: {shown(message)}; it is not as plsc wrote it: plsc card write writes it anew"
        ) from error


def to_markdown(card: Card) -> str:
    """Write the text of card.md."""
    return _template().render(
        card=card,
        main=next(iter(card.sets.items()), None),
        points={title: _operating_points(numbers) for title, numbers in card.sets.items()},
        probabilities={title: _probabilities(numbers) for title, numbers in card.sets.items()},
        command=shown(card.command),
        verify=shown(shlex.join(["plsc", "card", "verify", card.run])),
        config=[shown(line) for line in card.config.splitlines()],
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701 (Markdown, not HTML: `finalize` escapes what Markdown would read)
        finalize=_escaped, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _escaped(value: object) -> str:
    """Return text on one line that Markdown takes as it stands; what the template calls safe stays as it
    is."""
    if isinstance(value, markupsafe.Markup):
        return value
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", shown(value))


def _operating_points(numbers: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List FAR, threshold and TAR, with intervals, of a verification."""
    intervals = numbers.get("threshold@far_confidence_95", {})
    rows = []
    for far, cosine in numbers.get("threshold@far", {}).items():
        low, high = intervals[far]
        point = Threshold(far=float(far), cosine=cosine, low=low, high=high)
        rate = f"tar@far={far}"
        rows.append(
            (far, cosine_with_interval(point), with_interval(numbers[rate], numbers["confidence_95"][rate]))
        )
    return rows


def _probabilities(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """List P(same) and the cosine that has it, of a verification, where the fit reaches it."""
    fit = numbers.get("calibration")
    if not fit:
        return []
    odds = [math.log(share / (1 - share)) for share in _PROBABILITIES]
    reached = [fit["log_odds"][0] < each < fit["log_odds"][-1] for each in odds]
    cosines = np.interp(odds, fit["log_odds"], fit["cosine"])
    return [
        (percent(share), f"{cosine:.3f}")
        for share, cosine, is_reached in zip(_PROBABILITIES, cosines, reached)
        if is_reached
    ]
