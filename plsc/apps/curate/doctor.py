"""Find errors in image sets.

`plsc doctor` reads and decodes every image once. It reports:

- images that cannot be decoded, images that are almost black or have one colour, and transparent images
- images with the same bytes: within one identity, in two identities, or in training and validation
- identities that are both in training and in validation

`--trained output` also finds wrong labels with the network of a run (wrong_labels.py). `--list clean.txt`
writes a list of the images without an error. The exit code is 0 if nothing was found, 1 if there were
warnings, and 2 if there were errors. Try it:

    plsc doctor train.rec --validation lfw.bin
    plsc doctor -c my.yaml
"""

import argparse
import csv
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.curate.scan import TRANSPARENT, Scan, about_lone_images, same_content, scan
from plsc.config import load
from plsc.data.autodetect import open_images
from plsc.data.bin_packs import BinPairs
from plsc.data.build import build_dataset
from plsc.data.config import TRAIN_SET
from plsc.data.dataset import Dataset, PairSet, shared_identities
from plsc.data.image_list import ImageFiles
from plsc.data.joined import Joined
from plsc.data.pairs import PairList, is_lfw
from plsc.errors import UserError, escape, writing
from plsc.evaluation.sets import EvalSet, eval_set
from plsc.utils.atomic_write import replace_file
from plsc.utils.options import add_overrides
from plsc.utils.text import plural

_SHOWN = 20  # most examples that are printed for a finding


class Findings:
    """Prints findings, and counts them by level. The level is `note`, `warning` or `error`."""

    def __init__(self):
        self.counts = Counter()

    def note(self, level: str, about: str, text: str, examples: Iterable[str] = ()) -> None:
        """Print a finding.

        Args:
            level: "note", "warning" or "error".
            about: the set's name.
            text: the finding.
            examples: image or identity names. The first _SHOWN are printed.
        """
        self.counts[level] += 1
        examples = [*examples]
        lines = [f"{level.upper()} {escape(about)}: {text}", *map(escape, examples[:_SHOWN])]
        if len(examples) > _SHOWN:
            lines.append(f"... and {len(examples) - _SHOWN:,} more")
        print("\n    ".join(lines))


class Examined(NamedTuple):
    """A set that was examined: its name, its images and their scan."""

    name: str
    images: EvalSet
    seen: Scan


def examine(name: str, images: EvalSet, findings: Findings) -> Examined:
    """Examine one set on its own, and report its findings."""
    images.check()
    seen = scan(images)
    note = partial(findings.note, about=name)
    classes = "" if images.num_classes is None else f" of {images.num_classes:,} classes"
    note("note", text=f"{images.count:,} images{classes}")
    if seen.faults:
        note("error", text=f"{len(seen.faults):,} images cannot be read", examples=seen.faults.values())
    if seen.dark:
        examples = [f"{images.name_of(index)}: {why}" for index, why in seen.dark.items()]
        note("warning", text=f"{len(seen.dark):,} images are almost empty", examples=examples)
    if seen.transparent:
        text = f"{len(seen.transparent):,} images have {TRANSPARENT}"
        note("warning", text=text, examples=map(images.name_of, seen.transparent))
    if text := about_lone_images(images.labels):
        note("note", text=text)
    for doubt in images.doubts:
        note("warning", text=doubt)
    groups = same_content(seen.digests)
    labels = images.labels
    across = [group for group in groups if labels is not None and len(np.unique(labels[group])) > 1]
    within = [group for group in groups if labels is None or len(np.unique(labels[group])) == 1]
    for found, text in (
        (across, "images belong to two or more identities, byte for byte"),
        (within, "images occur more than once, byte for byte"),
    ):
        if found:
            examples = [" = ".join(map(images.name_of, group.tolist())) for group in found]
            # A pack contains an image once for each pair.
            note("note" if labels is None else "warning", text=f"{len(found):,} {text}", examples=examples)
    return Examined(name, images, seen)


def compare(one: Examined, other: Examined, together: bool, findings: Findings) -> None:
    """Report the identities and the images that two sets have in common.

    Args:
        together: the two sets may share identities.
    """
    about = f"{one.name} and {other.name}"
    both = shared_identities(one.images.identities, other.images.identities)
    if both is None:
        findings.note("note", about, "the identities have no names, so the sets are compared by content only")
    elif len(both):
        level = "note" if together else "error"
        findings.note(level, about, f"{len(both):,} identities are in both", map(str, both))
    count = len(one.seen.digests)
    groups = same_content(np.concatenate([one.seen.digests, other.seen.digests]))
    shared = [group for group in groups if group[0] < count <= group[-1]]
    if shared:
        names = [
            f"{one.images.name_of(int(group[0]))} = {other.images.name_of(int(group[-1]) - count)}"
            for group in shared
        ]
        level = "warning" if together else "error"
        findings.note(level, about, f"{len(shared):,} images are in both, byte for byte", names)


def doctor(
    sets: dict[str, Callable[[], Any]], trained: int, of_config: bool, findings: Findings
) -> list[Examined]:
    """Examine each set on its own, and each training set against the other sets.

    Args:
        sets: name -> function that opens the set. If it raises UserError, that is reported as a finding.
        trained: how many are training sets. They come first in `sets`.
        of_config: the sets come from a config. A labelled set for evaluation then has the trained classes, so
            it may share their identities.

    Returns the sets that could be opened.
    """
    examined = []
    for name, make in sets.items():
        try:
            examined.append(examine(name, eval_set(make()), findings))
        except UserError as error:
            findings.note("error", name, str(error).removeprefix(f"{name}: "))
    names = [*sets][:trained]
    for one, other in itertools.combinations(examined, 2):
        if one.name in names:
            together = other.name in names or (of_config and other.images.labels is not None)
            compare(one, other, together, findings)
    return examined


def write_list(path: str, examined: Examined, labels: np.ndarray) -> None:
    """Write a list with the set's images that have no error. Each line has a path and a label.

    The labels are the classes' names if they are known, else numbers without gaps. Of copies in one class the
    list contains only the first. It contains no copy that is in several classes.

    Args:
        labels: int64 [N], each image's label, or -1 to omit it.

    Raises UserError if the images have no separate files.
    """
    data = examined.images.data
    if not isinstance(data, ImageFiles):
        raise UserError(
            f"--list: needs images in separate files; plsc convert {escape(examined.name)} FOLDER writes them"
        )
    labels = labels.copy()
    labels[[*examined.seen.faults]] = -1
    for group in same_content(examined.seen.digests):
        group = group[labels[group] >= 0]
        labels[group[1:] if len(np.unique(labels[group])) == 1 else group] = -1
    kept = np.flatnonzero(labels >= 0)
    classes = np.unique(labels[kept], return_inverse=True)[1].tolist()
    names = data.class_names
    if names and not any(map(_is_no_label, names)):
        classes = [names[label] for label in labels[kept].tolist()]
    lines = [
        f"{os.path.abspath(data.name(index))}\t{label}\n" for index, label in zip(kept.tolist(), classes)
    ]
    with writing(path):
        replace_file(path, "".join(lines).encode("utf-8", "surrogateescape"))
    print(f"{escape(path)}: {len(kept):,} of {len(labels):,} images; to train on it, set name: ImageList")


def _is_no_label(name: str) -> bool:
    """Return whether a list with a class name as a label would be read otherwise."""
    return name.isdigit() or not name.isprintable() or name != name.strip()


def _open(path: str) -> Dataset | PairSet:
    if _is_pair_list(path):
        return PairList(path)
    return BinPairs(path) if path.endswith(".bin") else open_images(path)


def _is_pair_list(path: str) -> bool:
    """Return whether a path is a text file whose first line contains a pair or LFW's numbers."""
    if not path.endswith((".txt", ".csv", ".tsv")) or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(10_000).replace("\0", " ")  # Python 3.10's csv refuses NUL
    fields = line.split("\t") if "\t" in line else next(csv.reader([line]), [])
    return is_lfw(line.split()) or len(fields) == 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc doctor`. Raises UserError."""
    parser = argparse.ArgumentParser("plsc doctor", description="Find errors in sets of images.")
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("train", nargs="?", help="images to train on: .rec, folder or list")
    sources.add_argument("-c", "--config", metavar="FILE", help="examine a config's data sets instead")
    what = "a run's folder: find wrong labels in its training set with its network"
    sources.add_argument("--trained", metavar="RUN", help=what)
    what = "the same formats, .bin packs and lists of pairs"
    parser.add_argument("--validation", nargs="+", default=[], metavar="SET", help=what)
    what = "write a new list of the training images without errors, with their labels"
    parser.add_argument("--list", metavar="FILE", help=what)
    add_overrides(parser, "a key to change in that config, or in the run's")
    args = parser.parse_args(argv)
    if args.override and args.train:
        raise UserError("-o: changes a config's keys; give the config with -c instead of a set of images")
    if args.validation and not args.train:
        raise UserError("--validation: the config names the sets; add another to DataLoader.Eval.more")
    if args.train and os.path.realpath(args.train) in map(os.path.realpath, args.validation):
        raise UserError(f"--validation: {escape(args.train)} is the training set; name another")
    if args.list and os.path.lexists(args.list):
        raise UserError(f"{escape(args.list)}: exists already; name a new list")
    findings, trained = Findings(), 1
    if args.train:
        sets = {path: partial(_open, path) for path in (args.train, *args.validation)}
        examined = doctor(sets, trained, False, findings)
    else:
        cfg = load(args.config or args.trained, args.override)
        build = partial(build_dataset, cfg.DataLoader, cfg.Global.seed)
        sets = {key: partial(build, key) for key in cfg.DataLoader.sets()}
        trained = len(cfg.DataLoader.Train.sets)
        if args.list and trained > 1:
            raise UserError(
                f"--list: the config has {trained} training sets, and a list names the images of one; "
                'name one set with -o "DataLoader.Train.dataset={name: ..., ...}"'
            )
        examined = doctor(sets, trained, True, findings)
    train = [each for each in examined if each.name in [*sets][:trained]]
    labels = train[0].images.labels if train else None
    if args.trained and train:
        from plsc.apps.curate.wrong_labels import find_wrong_labels  # it imports Paddle

        parts = {each.name: each.images.data for each in train}
        labels, found = find_wrong_labels(cfg, Joined(parts) if len(parts) > 1 else train[0].images.data)
        for text, examples in found.items():
            findings.note("warning", TRAIN_SET if len(parts) > 1 else train[0].name, text, examples)
    print(f"{plural(findings.counts['error'], 'error')}, {plural(findings.counts['warning'], 'warning')}")
    if args.list and train:
        if labels is None:
            raise UserError(f"--list: {escape(train[0].name)} has pairs, not labelled images; omit --list")
        write_list(args.list, train[0], labels)
    return 2 if findings.counts["error"] else 1 if findings.counts["warning"] else 0
