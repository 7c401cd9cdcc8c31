"""Warn about values of a valid config that are probably mistakes, in the log before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plsc.data.config import KEY_OF_IMAGES
from plsc.errors import shown

if TYPE_CHECKING:
    from plsc.config import Config


def advice(cfg: Config) -> list[str]:
    """List warnings about what a config evaluates on."""
    if cfg.DataLoader.Eval.dataset is None and cfg.source("DataLoader.Eval.dataset") == "default":
        line = (
            "DataLoader.Eval.dataset: none is named, so nothing is evaluated; to verify on people that "
            "training "
            "does not see, write hold_out: 0.1 in Train.dataset and in an Eval.dataset with name: ImagePairs "
            "(docs/data.md)"
        )
        return [line]
    trained: dict[str | None, float] = {}  # images -> the least share that is held out of them
    for train in (section.keywords for section in cfg.DataLoader.Train.sets):
        images = next((train[key] for key in KEY_OF_IMAGES.values() if key in train), None)
        trained[images] = min(train.get("hold_out", 0.0), trained.get(images, 1.0))
    lines = []
    for path, section in cfg.DataLoader.Eval.sets().items():
        images, share = section.keywords.get("images"), section.keywords.get("hold_out", 0)
        if not share:
            continue
        least = trained.get(images, min(trained.values()))
        if share > least:
            why = f"holds out {share:g} of the classes, the training only {least:g}"
        elif images not in trained:
            why = f"is of {shown(images)}, the training of {', '.join(map(shown, trained))}"
        else:
            continue
        lines.append(
            f"{'.'.join(path)}: {why}; unless names show otherwise, the network is verified on classes that "
            "it has "
            "seen: give both the same images and the same hold_out"
        )
    return lines
