"""Compare a model card with its run: the hashes of all that its numbers depend on, then the card that the run
gives now.

`plsc card verify` calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import paddle

from plsc import distributed
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import DamagedError
from plsc.config import Config
from plsc.data.dataset import Dataset
from plsc.errors import MissingFileError
from plsc.evaluation.card import JSON, MARKDOWN, NOT_COMPUTED, Card, files_of
from plsc.training.build import build_training_set
from plsc.training.card import (
    PICTURES,
    TRAINED_ON,
    TRAINED_ON_IS_NOT_KNOWN,
    TRAINING_DATA,
    hash_data,
    hash_files,
    make_card,
)
from plsc.training.evaluator import build_saved_evaluator, build_saved_sets

# Another machine rounds sums otherwise. That moves cosines in the seventh digit, and a few pairs across a
# threshold.
TOLERANCE = 0.002
# Counted from the numbers: a cosine that moves may put pairs into another bin.
_COUNTED = ("bins",)
# What no evaluation gives again.
_AS_THEY_STAND = ("folder", "date", "command", "pictures")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MOST = 80  # characters of a value in a line


class Outcome(NamedTuple):
    """What `check` has seen: a line for each difference, and what was compared, how."""

    differences: list[str]
    compared: str


def check(
    cfg: Config, card: Card, model: paddle.nn.Layer | None = None, training_data: bool = True
) -> Outcome:
    """Compare the card with the run in cfg.Global.output_dir: its files and data, then the card that they
    give now. Every rank calls it.

    Args:
        model: a Layer that takes the weights instead of Model.name's.
        training_data: compare it, too.

    Raises UserError where data are missing.
    """
    folder = Path(cfg.Global.output_dir) / "checkpoints" / card.checkpoint
    lines = distributed.run_on_rank_0(partial(_check_files, cfg, card, folder))
    if lines:
        return Outcome(lines, NOT_COMPUTED)
    saved = Checkpoint.open(folder, verify=False)
    sets = build_saved_sets(cfg, saved)
    dataset: Dataset | None = None

    def check_data() -> list[str]:
        nonlocal dataset
        dataset = build_training_set(cfg) if training_data else None
        there = {name: digest for name, digest in card.data.items() if training_data or name != TRAINING_DATA}
        return _differences(there, hash_data(dataset, sets))

    lines = distributed.run_on_rank_0(check_data)
    if lines:
        return Outcome(lines, NOT_COMPUTED)
    evaluator = build_saved_evaluator(cfg, saved, sets, model)
    evaluator.evaluate(saved.step)

    def check_content() -> Outcome:
        now = make_card(cfg, saved, dataset, evaluator.sets, evaluator.results, card.pictures)
        return _check_content(card, now, training_data, cfg.Global.deterministic)

    return distributed.run_on_rank_0(check_content)


def _check_files(cfg: Config, card: Card, checkpoint: Path) -> list[str]:
    """Compare the card's text, the config, every byte of the checkpoint, and the files that the evaluation
    sets name."""
    folder = Path(cfg.Global.output_dir)
    lines = []
    if card.seal != card.make_seal():
        lines.append(f"{folder / JSON}: was changed since it was written")
    text = folder / MARKDOWN
    if not text.is_file() or text.read_bytes() != files_of(card)[MARKDOWN]:
        lines.append(f"{text}: is not the text that this plsc writes of card.json")
    try:
        saved = Checkpoint.open(checkpoint)
    except (DamagedError, MissingFileError) as error:
        return [*lines, str(error)]
    return lines + _differences(card.files, hash_files(cfg, saved))


def _check_content(card: Card, now: Card, training_data: bool, deterministic: bool) -> Outcome:
    """Compare what the card says with what the run gives now.

    training_data: it is part of `now`. deterministic: on this device the same sums are rounded in the same
    way.
    """
    here, there = {**now.software, **now.machine}, {**card.software, **card.machine}
    changed = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    reasons = [*changed]
    if here["device"] != "CPU" and not deterministic:
        reasons.append("algorithms (Global.deterministic: false)")

    ours, theirs = _said(now), _said(card)
    if not training_data:
        theirs["facts"].pop(TRAINED_ON, None)
        unknown = {f"{title}: {TRAINED_ON_IS_NOT_KNOWN}" for title in card.sets}
        theirs["limits"] = [limit for limit in theirs["limits"] if limit not in unknown]
    unequal = [*_unequal(theirs, ours, 0.0)]
    if there.keys() != here.keys():
        unequal.append(("software and machine", [*there], [*here]))
    if unknown := card.pictures.items() - PICTURES.items():
        unequal.append(("pictures", dict(unknown), "not such"))

    headline = now.headline or "nothing was evaluated"
    numbers = {"headline": card.headline, **card.sets}, {"headline": now.headline, **now.sets}
    if numbers[0] == numbers[1] and [*card.sets] == [*now.sets]:
        how = ", equal to the last bit" if now.sets else ""
    else:
        tolerance = TOLERANCE if reasons else 0.0
        unequal += _unequal(*numbers, tolerance)
        if card.sets.keys() == now.sets.keys() and [*card.sets] != [*now.sets]:
            unequal.append(("order of the sets", [*card.sets], [*now.sets]))
        within = f"within {TOLERANCE}, since rounding may differ where these do: {', '.join(reasons)}"
        how = f", compared {within if reasons else 'to the last bit'}"
    lines = [f"{place}: {_short(known)} in the card, {_short(value)} now" for place, known, value in unequal]
    left_out = [*_AS_THEY_STAND, *changed, *([] if training_data else ["training data"])]
    return Outcome(lines, f"{headline}{how}; not compared: {', '.join(left_out)}")


def _said(card: Card) -> dict[str, Any]:
    """Return what the card says but for numbers and hashes, by where it stands."""
    return card.model_dump(include={"licence", "step", "network", "facts", "limits", "config"})


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {there.get(name, 'not')[:16]} in the card, {here.get(name, 'not here')[:16]} now"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]


def _unequal(there: Any, here: Any, tolerance: float, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, value, value) where plain values differ by more than `tolerance`; with one, bins are not
    compared."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**there, **here}:
            if not (tolerance and key in _COUNTED):
                yield from _unequal(
                    there.get(key), here.get(key), tolerance, f"{place}: {key}" if place else key
                )
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, pair in enumerate(zip(there, here)):
            yield from _unequal(*pair, tolerance, f"{place} {number}")
    elif isinstance(there, float) and isinstance(here, float):
        if abs(there - here) > tolerance:
            yield place, there, here
    elif there != here and not (
        tolerance and isinstance(there, str) and isinstance(here, str) and _alike(there, here, tolerance)
    ):
        yield place, there, here


def _alike(there: str, here: str, tolerance: float) -> bool:
    """Say whether two texts differ in fractions only, by at most `tolerance` and the rounding of the last
    digit."""
    if _NUMBER.sub("0", there) != _NUMBER.sub("0", here):
        return False
    if "%" in there:
        tolerance *= 100
    for pair in zip(_NUMBER.findall(there), _NUMBER.findall(here)):
        one, other = (text.replace(",", "") for text in pair)
        digits = len(one.partition(".")[2])
        if digits != len(other.partition(".")[2]):
            return False
        if abs(float(one) - float(other)) > (tolerance + 10.0**-digits if digits else 0):
            return False
    return True
