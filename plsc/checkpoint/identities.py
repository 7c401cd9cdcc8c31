"""Name, rename, merge and drop the classes of a checkpoint, with all their rows.

plsc ckpt edit-identities output/checkpoints/step-00000656 --rename "Ann=Anne" --drop Bob --output edited
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from plsc.checkpoint.class_names import format_names, pick_rows, refuse_duplicates
from plsc.checkpoint.duplicates import HEADERS
from plsc.checkpoint.manifest import head_config
from plsc.checkpoint.reshard import Head, copy_later_files, fields_of, head_of, others_of, write_checkpoint
from plsc.checkpoint.saved import Checkpoint
from plsc.errors import UserError, reading, shown
from plsc.utils.sharding import split


def edit_identities(
    folder: str,
    target: str,
    rename: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep_list: str | None = None,
    names: str | None = None,
    merge: Sequence[Sequence[str]] = (),
    merge_list: str | None = None,
) -> str:
    """Write a checkpoint with other names or fewer classes to `target`; return a line for each change.

    The classes that stay keep their order and every bit of their rows; the head is cut into as many files as
    before.

    Args:
        rename: "old=new" each.
        drop: names, as they are in `folder`.
        merge: lists of names of one identity; the first one's rows become the means of all (centre, bias and
            the state of their optimizer), the others are dropped.
        merge_list: a file of pairs of names to merge too, as plsc.checkpoint.duplicates writes it; classes that pairs
            join, directly or through others, are one identity.
        keep_list: a file of names, a line each; all other classes are dropped.
        names: a file with a name a line, for a checkpoint that has none.

    Raises UserError for unknown, repeated or missing names.
    """
    saved = Checkpoint.open(folder)
    classes = _names_of(saved, folder, names)
    new = _renamings(rename)
    pairs = _pairs(merge_list) if merge_list else []
    kept = set(_lines(keep_list)) if keep_list else set(classes)
    known = set(classes)
    merging = [name for names in merge for name in names]
    listed = [name for pair in pairs for name in pair]
    asked = {
        f"--merge-list {merge_list}": listed,
        "--rename": new,
        "--drop": drop,
        f"--keep-list {keep_list}": kept,
        "--merge": merging,
    }
    for option, some in asked.items():
        if unknown := [name for name in some if name not in known]:
            raise UserError(f"{option}: {folder} has no class '{min(unknown)}'")
    merge = [*merge, *_groups(pairs, classes)]
    _refuse_merge(saved, merge, drop, kept, folder)
    merged = {name for names in merge for name in names[1:]}
    away = merged.union(drop)
    stay = np.array([n for n, name in enumerate(classes) if name in kept and name not in away], np.int64)
    if not len(stay):
        raise UserError(f"{folder}: none of its {len(classes)} classes would stay; drop fewer")
    edited = [new.get(classes[number], classes[number]) for number in stay.tolist()]
    refuse_duplicates(edited, "after the edit")
    fields = {**fields_of(saved), "num_classes": len(stay)}
    files = {**others_of(saved), "classes.json": [json.dumps(edited, indent=0).encode()]}
    head = _chosen(saved, stay, _places(classes, merge))
    made = write_checkpoint(target, split(len(stay), len(saved.manifest.heads)), head, files, fields)
    copy_later_files(saved, made)
    gone = sorted(known - {classes[number] for number in stay.tolist()} - merged)
    renamed = [f"{old} -> {name}" for old, name in new.items() if old not in gone]
    report = [f"{made}: {len(stay):,} of {len(classes):,} classes"]
    into = [f"{' and '.join(others)} into {first}" for first, *others in merge if first not in gone]
    report += [
        _format_change("renamed", renamed),
        _format_change("merged", into),
        _format_change("dropped", gone),
    ]
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
    refuse_duplicates(classes, names or folder)
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
    with reading(path, missing="no such file; give a list of names, a line each"):
        return Path(path).read_text(encoding="utf-8").splitlines()


def _pairs(path: str) -> list[tuple[str, str]]:
    """Read the pairs of a merge list: the first two columns, without the line of headings."""
    with reading(path, missing="no such file; plsc ckpt duplicates writes one"):
        text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from error
    if not rows or rows[0][:2] != list(HEADERS[:2]):
        raise UserError(
            f"{path}: the first line must be {','.join(HEADERS)}, as plsc ckpt duplicates writes it"
        )
    for number, row in enumerate(rows[1:], start=2):
        if len(row) < 2 or row[0] == row[1]:
            raise UserError(
                f"{path}: row {number}: must be two different names (got '{shown(','.join(row))}')"
            )
    return [(row[0], row[1]) for row in rows[1:]]


def _groups(pairs: Sequence[tuple[str, str]], classes: list[str]) -> list[list[str]]:
    """Join pairs that have a name in common to groups, each in the order of `classes`."""
    group: dict[str, list[str]] = {}
    for pair in pairs:
        one, other = (group.setdefault(name, [name]) for name in pair)
        if one is not other:
            one, other = sorted((one, other), key=len)
            other += one
            group.update(dict.fromkeys(one, other))
    place = {name: number for number, name in enumerate(classes)}
    different = {id(names): names for names in group.values()}.values()
    return [sorted(names, key=place.__getitem__) for names in different]


def _refuse_merge(
    saved: Checkpoint, merge: Sequence[Sequence[str]], drop: Sequence[str], kept: set[str], folder: str
) -> None:
    for names in merge:
        if len(names) < 2:
            raise UserError(f"--merge: give two names or more of one identity (got '{' '.join(names)}')")
        if names[0] not in kept:
            raise UserError(f"--merge: '{names[0]}' is not in the keep list; it is the one that stays")
    name, count = (
        Counter([*(name for names in merge for name in names), *drop]).most_common(1)[0] if merge else ("", 0)
    )
    if count > 1:
        raise UserError(f"--merge: '{name}' is named {count} times in --merge and --drop; once is enough")
    why = None
    if head_config(saved.config_yaml).get("sub_centres", 1) > 1:
        why = "has sub-centres, which stand in no order"
    elif saved.head_arrays["centres"].dtype == np.uint16:
        why = "has its rows as bfloat16, of which no means are taken"
    if merge and why:
        raise UserError(f"--merge: {folder} {why}; drop all names but one instead")


def _places(classes: list[str], merge: Sequence[Sequence[str]]) -> dict[int, list[int]]:
    """Return, for the first class of each merge, the classes whose mean it becomes."""
    place = {name: number for number, name in enumerate(classes)} if merge else {}
    return {place[names[0]]: [place[name] for name in names] for names in merge}


def _chosen(saved: Checkpoint, stay: np.ndarray, merge: dict[int, list[int]]) -> Head:
    """Return the head with the classes `stay` (rising); `merge`: class -> the classes whose mean it
    becomes."""
    head = head_of(saved)

    def read(name: str, start: int, stop: int) -> np.ndarray:
        numbers = stay[start:stop]
        rows = pick_rows(partial(head.read, name), numbers)
        for place in np.flatnonzero(np.isin(numbers, list(merge))).tolist():
            parts = pick_rows(partial(head.read, name), np.array(merge[int(numbers[place])]))
            rows[place] = parts.astype(np.float64).mean(axis=0)
        return rows

    return Head(head.arrays, read)


def _format_change(what: str, names: list[str]) -> str:
    return f"{what} {len(names):,}: {format_names(names)}" if names else ""
