"""Warn about values of a valid config that are probably mistakes, in the log before the first step.

>>> advice(load(None, ["LRScheduler.learning_rate=100"]), ranks=1, ranks_here=1)
['LRScheduler.learning_rate: 100 is ...']
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plsc.data.config import KEY_OF_IMAGES
from plsc.errors import shown
from plsc.utils.text import counted

if TYPE_CHECKING:
    from plsc.config import Config

USUAL_RATE = 0.1  # of SGD with momentum at USUAL_BATCH; it grows with the global batch
USUAL_BATCH = 128
USUAL_RATE_OF_ADAM = 0.001  # and of its kin, at any batch
TOO_HIGH = 10  # times the usual rate


def usual_rate(optimizer: str, batch: int = USUAL_BATCH) -> float | None:
    """Return the learning rate that is usual for an optimizer and a global batch; None if none is known."""
    if optimizer in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lamb"):
        return USUAL_RATE_OF_ADAM
    if optimizer in ("Momentum", "SGD"):
        return USUAL_RATE * max(1.0, batch / USUAL_BATCH)
    return None


def advice(cfg: Config, ranks: int, ranks_here: int) -> list[str]:
    """List warnings about a config for `ranks` processes, `ranks_here` of them on this machine."""
    lines = []
    if cfg.evaluation_dropped:
        lines.append(
            "DataLoader.Eval.dataset: none is named, so nothing is evaluated (the default, GlyphPairs, belongs to Glyphs); to "
            "verify on people that training does not see, write hold_out: 0.1 in Train.dataset and in an Eval.dataset with "
            "name: ImagePairs (docs/data.md)"
        )
    lines += _hold_out_advice(cfg)
    rate, batch = cfg.LRScheduler.learning_rate, cfg.DataLoader.Train.global_batch_on(ranks)
    usual = usual_rate(cfg.Optimizer.name, batch)
    if usual and rate > TOO_HIGH * usual:
        lines.append(
            f"LRScheduler.learning_rate: {rate:g} is more than {TOO_HIGH} times what is usual for {cfg.Optimizer.name} and a "
            f"global batch of {batch} ({usual:.2g}); the training will probably diverge"
        )
    threads, processors = cfg.Global.threads, os.cpu_count() or 1
    if threads is not None and threads * ranks_here > processors:
        here = f" for each of {ranks_here} ranks" if ranks_here > 1 else ""
        lines.append(
            f"Global.threads: {counted(threads, 'thread')}{here} share this machine's {counted(processors, 'processor')}, which is slower than fewer"
        )
    elif threads is None and ranks_here > processors:
        lines.append(
            f"{ranks_here} ranks share this machine's {counted(processors, 'processor')}, which is slower than fewer"
        )
    return lines


def _hold_out_advice(cfg: Config) -> list[str]:
    """Say of each evaluation set that may hold out others than the training: names are compared where there
    are some, numbers are not."""
    trained: dict[str | None, float] = {}  # images -> the least share that is held out of them
    for train in (each.keywords for each in cfg.DataLoader.Train.sets):
        images = next((train[key] for key in KEY_OF_IMAGES.values() if key in train), None)
        trained[images] = min(train.get("hold_out", 0.0), trained.get(images, 1.0))
    lines = []
    for path, section in cfg.DataLoader.Eval.sets().items():
        given = section.keywords
        if not given.get("hold_out"):
            continue
        images = given.get("images")
        least = trained.get(images, min(trained.values()))
        if given["hold_out"] > least:
            why = f"holds out {given['hold_out']:g} of the classes, the training only {least:g}"
        elif images not in trained:
            why = f"is of {shown(images)}, the training of {', '.join(map(shown, trained))}"
        else:
            continue
        lines.append(
            f"{'.'.join(path)}: {why}; unless names show otherwise, the network is verified on classes that it has seen: give both the same "
            "images and the same hold_out"
        )
    return lines
