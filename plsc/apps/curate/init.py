"""Write a config for a folder of pictures: `plsc init faces/`; for vectors see init_vectors.py.

The pictures are looked at as `plsc doctor` does. `recommend` chooses by what is seen:

    fewer than 20,000 pictures             a small network, 40 epochs or 300 steps
    fewer than 500,000; more               IResNet18; IResNet50, for pictures of 112 x 112, 20 epochs
    up to 40 pixels; grey; others          32 x 32; 48 x 48; 64 x 64; in the shape of most pictures
    fewer than 2,000 classes               margin 0.1, scale 16
    fewer than 100 classes; more           `hold_out`: a half, unless that leaves fewer than two; the least share with ten classes
    colour; none                           flipped, cropped, other colours; grey, cropped, rotated
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.curate.doctor import Findings, examine
from plsc.apps.curate.init_vectors import (
    FEW_CLASSES,
    LEAST_STEPS,
    find_vectors,
    halved_to_fit,
    look_at_vectors,
    recommend_for_vectors,
)
from plsc.config import load
from plsc.data.autodetect import open_images
from plsc.data.config import KEY_OF_IMAGES
from plsc.data.folder import collected_problems
from plsc.data.hold_out import LEAST, class_keys, enough_held_out, held_out
from plsc.data.images import decode_pixels
from plsc.errors import UserError, shown, shown_lines, writing
from plsc.evaluation.sets import EvalSet, eval_set
from plsc.training.dry_run import dry_run
from plsc.utils.atomic_write import replace_file
from plsc.utils.files import check_parent
from plsc.utils.text import counted
from plsc.utils.yaml_lines import dump

_SAMPLE = 48  # pictures that are decoded once more to see whether they are grey
_FEW_PICTURES = 20_000  # below, a small network of 64 x 64 pixels learns as much in minutes
_MANY_PICTURES = 500_000
_FEW_PEOPLE = 500
_HUNDREDS = 100
_EVALUATIONS = 20  # of a run: of a few pictures an epoch takes less time than an evaluation
_HALF = 0.5
_RANKS = 2  # of the commands that are suggested


class Seen(NamedTuple):
    """What a config follows from.

    height, width: of the median picture. grey: whether all are. hold_out: share of the
    classes to verify on; None: there are too few for any.
    """

    pictures: int
    classes: int
    height: int
    width: int
    grey: bool
    hold_out: float | None


def look(images: EvalSet, findings: Findings, name: str) -> Seen:
    """Look at a set of pictures; what is wrong with it goes to `findings`."""
    scan = examine(images, name, findings)
    sizes = scan.sizes[scan.sizes[:, 0] > 0]
    if not len(sizes):
        raise UserError(f"{shown(name)}: none of its {images.count:,} pictures can be read")
    if images.num_classes < LEAST:
        hint = getattr(images.data, "nested_hint", "") or "make a folder for each identity"
        raise UserError(
            f"{shown(name)}: has {counted(images.num_classes, 'class', 'classes')}, training needs {LEAST}; {hint}"
        )
    height, width = np.median(sizes, axis=0).astype(int).tolist()
    names = class_keys(images.identities, images.num_classes)
    return Seen(
        pictures=images.count,
        classes=images.num_classes,
        height=height,
        width=width,
        grey=_all_grey(images),
        hold_out=_share_to_hold_out(names),
    )


def _all_grey(images: EvalSet) -> bool:
    """Say whether a sample of the pictures has no colour."""
    for index in np.linspace(0, images.count - 1, min(_SAMPLE, images.count)).astype(int).tolist():
        try:
            picture = decode_pixels(images.data.encoded(index), False, lambda: images.name_of(index))  # noqa: B023
        except UserError:
            continue  # `examine` has reported it
        if np.ptp(cv2.resize(picture, (16, 16), interpolation=cv2.INTER_AREA).astype(int), axis=2).max() > 8:
            return False
    return True


def _share_to_hold_out(names: Sequence[str]) -> float | None:
    """Choose the share of the classes that are not trained on: of few a half, from which a gallery learns how
    alike strangers are, else the least that has ten; None where fewer than two would be left on a side."""
    share = (enough_held_out(names) if len(names) >= _HUNDREDS else None) or _HALF
    return share if LEAST <= held_out(names, share).sum() <= len(names) - LEAST else None


def recommend(seen: Seen, dataset: dict, output: str) -> dict:
    """Choose a config: "Section.key" -> value. dataset: the class of the pictures, and its key that names
    them."""
    few = seen.pictures < _FEW_PICTURES
    size = _size(seen, few)
    trained = round(seen.pictures * (1 - (seen.hold_out or 0)))
    batch = halved_to_fit(128 if not few else 64 if seen.pictures > 4_000 else 32, trained, _RANKS)
    epochs = 40 if few else 20
    of_epoch = math.ceil(trained / (_RANKS * batch))
    length = {"Global.epochs": epochs}
    if epochs * of_epoch < LEAST_STEPS:
        length = {"Global.max_steps": LEAST_STEPS}
        epochs = math.ceil(LEAST_STEPS / of_epoch)
    augmentation = (
        {"flip": True, "crop": 0.2, "colour": 0.3} if not seen.grey else {"crop": 0.2, "rotate": 10}
    )
    pictures = {
        **dataset,
        **({"hold_out": seen.hold_out} if seen.hold_out else {}),
        "size": size,
        **({"channels": "grey"} if seen.grey else {}),
        **augmentation,
    }
    return {
        **length,
        "Global.eval_every": max(1, epochs // _EVALUATIONS),
        "Global.output_dir": output,
        **_network(seen, few, size),
        **({"Head.margin": 0.1, "Head.scale": 16.0} if seen.classes < FEW_CLASSES else {}),
        "LRScheduler.warmup_epochs": 1,
        "Optimizer.clip_norm": 5.0,
        "DataLoader.Train.dataset": pictures,
        "DataLoader.Train.batch_size": batch,
        "DataLoader.Eval.dataset": {"name": "ImagePairs"} if seen.hold_out else None,
    }


def _size(seen: Seen, few: bool) -> list[int]:
    """Choose height and width: the pictures' own shape, to whole multiples of 8, of about as many pixels as
    the square has."""
    side = 32 if min(seen.height, seen.width) <= 40 else 48 if seen.grey and few else 64 if few else 112
    ratio = math.sqrt(seen.height / seen.width)
    if 0.9 < ratio < 1.12:
        return [side, side]
    return [max(16, 8 * round(side * factor / 8)) for factor in (ratio, 1 / ratio)]


def _network(seen: Seen, few: bool, size: list[int]) -> dict:
    if not few:
        return {
            "Model.name": "IResNet18" if seen.pictures < _MANY_PICTURES else "IResNet50",
            "Model.embedding_size": 512,
        }
    widths = [16, 32, 64] if min(size) <= 48 else [16, 32, 64, 128]
    return {"Model.widths": widths, "Model.blocks": [1] * len(widths), "Model.dropout": 0.3}


def to_yaml(values: dict, lines: Sequence[str]) -> str:
    """Format a config with comments above it. values: as of `recommend`."""
    text = [f"# {line}" for line in lines]
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append((name, value))
    for section, keys in sections.items():
        text.append(f"{section}:")
        above = ""
        for name, value in keys:
            middle, _, last = name.rpartition(".")
            if middle and middle != above:
                text.append(f"  {middle}:")
            above = middle
            text.append(f"  {'  ' * bool(middle)}{last}: {dump(value)}")
    return "\n".join(text) + "\n"


def advice(seen: Seen, pictures: str, config: str, output: str) -> list[str]:
    """Say what to expect of the data, and what to do next. pictures, config, output: paths as words of a
    command."""
    lines = []
    if seen.classes < _FEW_PEOPLE:
        lines.append(
            f"if these are faces: {seen.classes:,} people do not make a network of faces; plsc gallery build "
            f"people.gallery {pictures} takes a published one, without training (docs/faces.md)"
        )
    if seen.hold_out is None:
        lines.append(f"{seen.classes:,} classes are too few to hold some out: nothing is verified")
    return [
        *lines,
        f"plsc train -c {config} --ranks {_RANKS}",
        f"plsc gallery build people.gallery -c {output} {pictures}",
        "plsc gallery search people.gallery WHO.jpg",
    ]


class Plan(NamedTuple):
    """What is written and said: the config, "Section.key" -> value; the data in a few words; what is wrong
    with them; what to do next."""

    values: dict
    about: str
    warnings: list[str]
    next_steps: list[str]


def _word(path: str | Path) -> str:
    """Return a path as a word of a command that is shown."""
    return quote(shown(path))


def _for_pictures(path: str, target: Path, output: str) -> Plan:
    findings = Findings()
    with collected_problems() as problems:
        images = open_images(path)
    for problem in problems:
        findings.add(problem.level, path, problem.text, problem.names)
    seen = look(eval_set(images), findings, path)
    kind = type(images).__name__
    wrong = [line for line in findings.lines if line["level"] != "note"]
    warnings = [shown_lines(f"{line['level'].upper()} {line['text']}") for line in wrong]
    return Plan(
        values=recommend(seen, {"name": kind, KEY_OF_IMAGES[kind]: path}, output),
        about=f"{counted(seen.pictures, 'picture')} of {counted(seen.classes, 'class', 'classes')}, {seen.height} x {seen.width}",
        warnings=[*warnings, *([f"plsc doctor {_word(path)} names them"] if wrong else [])],
        next_steps=advice(seen, _word(path), _word(target), _word(output)),
    )


def _for_vectors(files: tuple[str, str], target: Path, output: str) -> Plan:
    seen = look_at_vectors(*files)
    hold_out = _share_to_hold_out(seen.keys)
    classes = counted(len(seen.keys), "class", "classes")
    return Plan(
        values=recommend_for_vectors(seen, hold_out, _RANKS, output),
        about=f"{counted(seen.count, 'vector')} of {seen.numbers} numbers, {classes}",
        warnings=[] if hold_out else [f"{classes} are too few to hold some out: nothing is verified"],
        next_steps=[
            f"plsc train -c {_word(target)} --ranks {_RANKS}",
            f"plsc gallery build people.gallery -c {_word(output)} PEOPLE   (a folder for each, with .npy files)",
            "plsc gallery search people.gallery WHO.npy",
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc init`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc init", description="Look at pictures or vectors, and write a config that fits them."
    )
    parser.add_argument(
        "data",
        help="a folder with a folder for each identity, a list, a .rec file, or a folder with x.npy and y.npy",
    )
    parser.add_argument(
        "--output", metavar="FILE.yaml", help="default: the folder's name in the current folder"
    )
    args = parser.parse_args(argv)
    path = args.data.rstrip("/") or args.data
    target = Path(args.output or f"{Path(path).resolve().stem}.yaml")
    if target.exists():
        raise UserError(
            f"{shown(target)}: exists already, and nothing is overwritten; name another file with --output"
        )
    check_parent(target)
    output = f"output/{target.stem}"
    files = find_vectors(path)
    plan = _for_vectors(files, target, output) if files else _for_pictures(path, target, output)
    dry_run(load(plan.values), _RANKS)  # refuses what cannot be trained
    comment = f"Written by plsc init for {shown(path)}: {plan.about}."
    with writing(target):
        replace_file(target, to_yaml(plan.values, [comment]).encode())
    for line in plan.warnings:
        print(line)
    print(f"{shown(target)}: for {plan.about}; next:")
    for line in plan.next_steps:
        print(f"  {line}")
    return 0
