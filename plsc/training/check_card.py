"""Compare a model card with its run: the hashes of all that its numbers depend on, then the evaluation again.

`plsc-card verify` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import paddle

from plsc import distributed
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import DamagedError
from plsc.config import Config
from plsc.errors import MissingFileError
from plsc.evaluation.card import JSON, MARKDOWN, NOT_COMPUTED, Card
from plsc.evaluation.results import numbers_of
from plsc.training.build import build_training_set
from plsc.training.card import TRAINING_DATA, hash_data, hash_files, machine_of, software
from plsc.training.evaluator import build_saved_evaluator, build_saved_sets
from plsc.utils.files import sha256_of

# Another machine rounds sums otherwise. That moves cosines in the seventh digit, and a few pairs across a threshold.
TOLERANCE = 0.002
# Made from the numbers by rounding or counting: a cosine that moves may put pairs into another bin.
_COARSE = ("notes", "table", "bins")


class Outcome(NamedTuple):
    """What `check` has seen: a line for each difference, and what was compared, how."""

    differences: list[str]
    compared: str


def check(
    cfg: Config, card: Card, model: paddle.nn.Layer | None = None, training_data: bool = True
) -> Outcome:
    """Compare the card with the run in cfg.Global.output_dir; the numbers only where all else is equal. Every rank calls it.

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

    lines = distributed.run_on_rank_0(partial(_check_data, cfg, card, sets, training_data))
    if lines:
        return Outcome(lines, NOT_COMPUTED)
    evaluator = build_saved_evaluator(cfg, saved, sets, model)
    evaluator.evaluate(saved.step)
    return distributed.run_on_rank_0(lambda: _check_numbers(cfg, card, evaluator.results))


def _check_files(cfg: Config, card: Card, checkpoint: Path) -> list[str]:
    """Compare the card's text, the config, every byte of the checkpoint, and the files that the evaluation sets name."""
    folder = Path(cfg.Global.output_dir)
    lines = []
    if card.seal != card.make_seal():
        lines.append(f"{folder / JSON}: was changed since it was written")
    text = folder / MARKDOWN
    if not text.is_file() or sha256_of(text) != card.markdown:
        lines.append(f"{text}: is not the text that was written with card.json")
    try:
        saved = Checkpoint.open(checkpoint)
    except (DamagedError, MissingFileError) as error:
        return [*lines, str(error)]
    return lines + _differences(card.files, hash_files(cfg, saved))


def _check_data(cfg: Config, card: Card, sets: Mapping[str, Any], training_data: bool) -> list[str]:
    if training_data:
        return _differences(card.data, hash_data(build_training_set(cfg), sets))
    there = {name: digest for name, digest in card.data.items() if name != TRAINING_DATA}
    return _differences(there, hash_data(None, sets))


def _check_numbers(cfg: Config, card: Card, results: Mapping[str, Any]) -> Outcome:
    now = json.loads(json.dumps(numbers_of(results)))
    if not (now or card.sets):
        return Outcome([], "nothing was evaluated")
    what = card.headline
    if now == card.sets:
        return Outcome([], f"{what}, equal to the last bit")
    here, there = {**software(), **machine_of(cfg)}, {**card.software, **card.machine}
    changed = [name for name, value in here.items() if there.get(name) != value]
    if here["device"] != "CPU" and not cfg.Global.deterministic:
        changed.append("algorithms (Global.deterministic: false)")
    lines = [
        f"{place}: {known} in the card, {value} now"
        for place, known, value in _unequal(card.sets, now, TOLERANCE if changed else 0.0)
    ]
    within = f"within {TOLERANCE}, since rounding may differ where these do: {', '.join(changed)}"
    return Outcome(lines, f"{what}, compared {within if changed else 'to the last bit'}")


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {there.get(name, 'not')[:16]} in the card, {here.get(name, 'not here')[:16]} now"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]


def _unequal(there: Any, here: Any, tolerance: float, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, value, value) where plain values differ by more than `tolerance`; with one, texts and bins are not compared."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**there, **here}:
            if not (tolerance and key in _COARSE):
                yield from _unequal(
                    there.get(key), here.get(key), tolerance, f"{place}: {key}" if place else key
                )
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, pair in enumerate(zip(there, here)):
            yield from _unequal(*pair, tolerance, f"{place} {number}")
    elif isinstance(there, float) and isinstance(here, float):
        if abs(there - here) > tolerance:
            yield place, there, here
    elif there != here:
        yield place, there, here
