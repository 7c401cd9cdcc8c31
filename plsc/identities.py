"""The names of a checkpoint's classes: given, changed, and classes dropped by name, with all their rows.

plsc-ckpt edit-identities output/checkpoints/step-00000656 --rename "Ann=Anne" --drop Bob --output edited
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from plsc.checkpoint import Checkpoint
from plsc.errors import MissingFileError, UserError
from plsc.names import pick_rows, refuse_twins, told_names
from plsc.rewrite import Head, fields_of, head_of, others_of, write_checkpoint
from plsc.sharding import split


def edit_identities(
    folder: str,
    target: str,
    rename: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep_list: str | None = None,
    names: str | None = None,
) -> str:
    """Write the checkpoint `folder` with other names or fewer classes as the folder `target`; a line for each change.

    The classes that stay keep their order and every bit of their rows; the head is cut into as many files as before.

    Args:
        rename: "old=new" each. drop: names, as they are in `folder`.
        keep_list: a file of names, a line each; all other classes are dropped.
        names: a file with a name a line, for a checkpoint that has none.

    Raises UserError: unknown, repeated or missing names.
    """
    saved = Checkpoint.open(folder)
    classes = _names_of(saved, folder, names)
    new = _renamings(rename)
    kept = set(_lines(keep_list)) if keep_list else set(classes)
    known = set(classes)
    for option, asked in (("--rename", new), ("--drop", drop), (f"--keep-list {keep_list}", kept)):
        if unknown := [name for name in asked if name not in known]:
            raise UserError(f"{option}: {folder} has no class '{min(unknown)}'")
    stay = np.array([n for n, name in enumerate(classes) if name in kept and name not in set(drop)], np.int64)
    if not len(stay):
        raise UserError(f"{folder}: none of its {len(classes)} classes would stay; drop fewer")
    edited = [new.get(classes[number], classes[number]) for number in stay.tolist()]
    refuse_twins(edited, "after the edit")
    fields = {**fields_of(saved), "num_classes": len(stay)}
    files = {**others_of(saved), "classes.json": [json.dumps(edited, indent=0).encode()]}
    made = write_checkpoint(
        target, split(len(stay), len(saved.manifest.heads)), _chosen(saved, stay), files, fields
    )
    gone = sorted(known - {classes[number] for number in stay.tolist()})
    renamed = [f"{old} -> {name}" for old, name in new.items() if old not in gone]
    report = [f"{made}: {len(stay):,} of {len(classes):,} classes"]
    report += [_told("renamed", renamed), _told("dropped", gone)]
    return "\n".join(filter(None, report))


def _names_of(saved: Checkpoint, folder: str, names: str | None) -> list[str]:
    classes = saved.classes()
    if classes is not None and names is not None:
        raise UserError(f"--names: {folder} has names already; change them with --rename")
    if classes is None:
        if names is None:
            raise UserError(f"{folder}: has no names of classes; give them with --names FILE, a line a class")
        classes = _lines(names)
        if len(classes) != saved.num_classes:
            raise UserError(f"{names}: has {len(classes)} names, {folder} has {saved.num_classes} classes")
    refuse_twins(classes, names or folder)
    return classes


def _renamings(rename: Sequence[str]) -> dict[str, str]:
    new: dict[str, str] = {}
    for text in rename:
        old, equals, name = text.partition("=")
        if not equals or not old or not name or old in new:
            raise UserError(f"--rename: must be old=new, once for each class (got '{text}')")
        new[old] = name
    return new


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file; give a list of names, a line each") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{os.fspath(path)}: cannot be read as text: {error}") from error


def _chosen(saved: Checkpoint, stay: np.ndarray) -> Head:
    """The head's rows of the classes `stay` (ascending), which are contiguous in runs."""
    head = head_of(saved)

    def read(name: str, start: int, stop: int) -> np.ndarray:
        return pick_rows(partial(head.read, name), stay[start:stop])

    return Head(head.arrays, read)


def _told(what: str, names: list[str]) -> str:
    return f"{what} {len(names):,}: {told_names(names)}" if names else ""
