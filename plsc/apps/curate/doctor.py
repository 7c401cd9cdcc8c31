"""Find errors in sets of images: `plsc doctor train.rec --validation lfw.bin`, or `plsc doctor -c my.yaml`.
With `--trained output` find wrong labels by the network of a run (doctor_trained.py).

Every image is read and decoded once. It finds labels with gaps, images that cannot be decoded or have another
size, the same bytes twice (in one identity, in two, in training and validation), identities in both sets,
and classes with few images. It writes report.txt, doctor.json and
images_per_class.png. The exit code: 0 nothing, 1 warnings, 2 errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plsc.apps.curate.scan import Scan, same_content, scan
from plsc.config import add_overrides, load
from plsc.data.autodetect import open_any
from plsc.data.build import build_dataset, keys_of_sets
from plsc.data.dataset import Dataset, PairSet, class_names, misnumbered_class, shared_identities
from plsc.data.folder import collected_problems
from plsc.data.hold_out import few_identities
from plsc.data.pairs import PairList, is_pair_list
from plsc.errors import UserError, shown, shown_lines, writing
from plsc.evaluation.figures import COLOURS, new_figure, png_of, styled
from plsc.evaluation.sets import EvalSet, eval_set
from plsc.evaluation.verification import ONE_KIND, folds_of_one_kind
from plsc.utils.atomic_write import replace_file
from plsc.utils.text import table

SHOWN = 5  # examples of a finding that report.txt names; doctor.json has them all
LONGEST = 300  # characters of an example in report.txt
STRETCHED = 1.02  # a change of the ratio of width to height above this is reported
LEVELS = ("note", "warning", "error")


class Findings:
    """The result: lines with a level of LEVELS, and numbers."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.sets: dict[str, dict[str, Any]] = {}
        self.spreads: dict[str, dict[str, int]] = {}  # of sets with classes, see spread()

    def add(self, level: str, about: str, text: str, examples: Iterable[str] = ()) -> None:
        self.lines.append({"level": level, "set": about, "text": text, "examples": [*examples]})

    @property
    def severity(self) -> int:
        """0, 1 or 2: the worst level; the exit code."""
        return max((LEVELS.index(line["level"]) for line in self.lines), default=0)

    def text(self) -> str:
        """Format the report as text."""
        names = {key: None for numbers in self.sets.values() for key in numbers}
        rows = [
            [key.replace("_", " "), *(numbers.get(key) for numbers in self.sets.values())] for key in names
        ]
        blocks = [table([[_shown(value) for value in row] for row in rows], ["", *self.sets])] if rows else []
        for name, classes in self.spreads.items():
            blocks.append(table([*classes.items()], ["images per class", f"classes of {name}"]))
        for level in reversed(LEVELS):
            for line in self.lines:
                if line["level"] == level:
                    examples = _first(line["examples"])
                    about = "" if line["text"].startswith(line["set"]) else f"{line['set']}: "
                    blocks.append(f"{level.upper()} {about}{line['text']}{examples}")
        counts = {level: sum(line["level"] == level for line in self.lines) for level in LEVELS}
        return "\n\n".join([*blocks, f"errors: {counts['error']}, warnings: {counts['warning']}"])


def _first(examples: Sequence[str]) -> str:
    """Format the first examples as lines, and the number of the others."""
    names = map(shown, examples[:SHOWN])
    lines = [name if len(name) <= LONGEST else f"{name[:LONGEST]} ..." for name in names]
    if len(examples) > SHOWN:
        lines.append(f"... and {len(examples) - SHOWN:,} more, all of them in doctor.json")
    return "".join(f"\n    {line}" for line in lines)


def _shown(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else value


def examine(images: EvalSet, name: str, findings: Findings) -> Scan:
    """Examine one set, and add the findings under its name."""
    began = time.perf_counter()
    seen = scan(images)
    seconds = time.perf_counter() - began
    preprocessing = images.preprocessing
    decoded = seen.sizes[seen.sizes[:, 0] > 0]
    kinds, counts = np.unique(decoded, axis=0, return_counts=True)
    usual = kinds[np.argmax(counts)].tolist() if len(kinds) else [0, 0]
    findings.sets[name] = numbers = {
        "images": images.count,
        "size": f"{usual[0]} x {usual[1]}" + (f" ({len(kinds)} sizes)" if len(kinds) > 1 else "")
        if preprocessing.is_image
        else preprocessing.samples,
        "mean": round(seen.mean, 2),
        "std": round(seen.std, 2),
        "images_per_second": round(images.count / max(seconds, 1e-9)),
    }
    if seen.faults:
        findings.add("error", name, f"{len(seen.faults):,} images cannot be read", seen.faults.values())
    other = np.flatnonzero((seen.sizes != usual).any(axis=1) & (seen.sizes[:, 0] > 0))
    if len(other):
        examples = (f"{images.name_of(i)}: {seen.sizes[i, 0]} x {seen.sizes[i, 1]}" for i in other.tolist())
        findings.add(
            "warning", name, f"{len(other):,} images are not {usual[0]} x {usual[1]} as most are", examples
        )
    if preprocessing.is_image:
        _examine_sizes(decoded, usual, [*preprocessing.size], name, findings)
    if images.labels is not None:
        _examine_classes(images, name, numbers, findings)
    elif images.pairs is not None:
        _examine_pairs(images, name, numbers, findings)
    _examine_duplicates(images, seen, name, findings)
    return seen


def _examine_sizes(
    decoded: np.ndarray, usual: list[int], wanted: list[int], name: str, findings: Findings
) -> None:
    """Note what resizing changes; `decoded`: heights and widths, int32 [N, 2]; `usual`, `wanted`: [height,
    width]."""
    if not len(decoded):
        return
    from_to = f"from {usual[0]} x {usual[1]} to {wanted[0]} x {wanted[1]}"
    if usual != wanted:
        findings.add("note", name, f"its images are resized {from_to} (height x width)")
    wider = (wanted[1] / decoded[:, 1]) / (wanted[0] / decoded[:, 0])
    change = np.maximum(wider, 1 / wider)
    count = int((change > STRETCHED).sum())
    if count:
        worst, middle = float(wider[np.argmax(change)]), float(np.median(wider))
        text = (
            f"{count:,} images are stretched: for their height they become {middle:.2f} times as wide (median; the most: "
            f"{worst:.2f} times); crop or pad them to the ratio of size, {wanted[0]} x {wanted[1]}, or set size to theirs"
        )
        findings.add("note", name, text)


def _examine_classes(images: EvalSet, name: str, numbers: dict[str, Any], findings: Findings) -> None:
    counts = np.bincount(images.labels, minlength=images.num_classes)
    findings.spreads[name] = spread(images.labels, images.num_classes)
    single = findings.spreads[name]["1"]
    empty = findings.spreads[name].get("0", 0)
    numbers.update(
        classes=images.num_classes,
        images_per_class=f"{counts.min()} to {counts.max()}, median {np.median(counts):g}",
    )
    hint = getattr(images.data, "nested_hint", "")
    if images.num_classes < 2:
        text = "has 1 class, and nothing to tell it from; training needs at least 2"
        findings.add("error", name, text + f"; {hint}" * bool(hint))
    elif hint:
        findings.add(
            "warning", name, f"each of its {images.num_classes:,} classes has folders of its own: {hint}"
        )
    if empty:
        text = (
            f"{empty:,} of {images.num_classes:,} classes have no image: their centres are only pushed away"
        )
        findings.add("warning", name, text)
    if single:
        share = f"{single:,} of {images.num_classes:,} classes have a single image"
        findings.add("note", name, f"{share}: nothing shows how the images of such a class vary")


def _examine_pairs(images: EvalSet, name: str, numbers: dict[str, Any], findings: Findings) -> None:
    same = images.data.same
    if few := few_identities(images.data):
        findings.add("warning", name, few)
    positive = int(same.sum())
    numbers.update(pairs=len(same), positive_pairs=positive)
    if positive in (0, len(same)):
        findings.add(
            "warning", name, f"all of its {len(same):,} pairs are {'positive' if positive else 'negative'}"
        )
    if folds_of_one_kind(same):
        findings.add("warning", name, ONE_KIND)


def _examine_duplicates(images: EvalSet, seen: Scan, name: str, findings: Findings) -> None:
    groups = same_content(seen.digests)
    labels = images.labels
    two = [labels is not None and len(np.unique(labels[group])) > 1 for group in groups]
    across = [group for group, differ in zip(groups, two) if differ]
    within = [group for group, differ in zip(groups, two) if not differ]
    if across:
        findings.add(
            "warning",
            name,
            f"{len(across):,} images are under two or more identities, byte for byte",
            _named(images, across),
        )
    if within:
        of, level = ("of one identity", "warning") if labels is not None else ("in it", "note")
        findings.add(
            level, name, f"{len(within):,} images {of} are there twice or more", _named(images, within)
        )


def _named(images: EvalSet, groups: Iterable[np.ndarray]) -> Iterable[str]:
    return (" = ".join(images.name_of(index) for index in group.tolist()) for group in groups)


def compare(
    train: tuple[str, EvalSet, Scan],
    other: tuple[str, EvalSet, Scan],
    findings: Findings,
    same_classes: bool = False,
) -> None:
    """Find images and identities that training and another set have in common but should not.

    same_classes: the other set's images are of the classes that are trained on, as a labelled set's of
        DataLoader.Eval are.
    """
    (name, images, _), (other_name, other_images, _) = train, other
    about = f"{name} and {other_name}"
    both = shared_identities(images.identities, other_images.identities)
    if same_classes:
        pass  # they share the identities, see check_classes
    elif both is None:
        findings.add("note", about, "who is in one of them is not known by name; compared by content only")
    elif len(both):
        findings.add("error", about, f"{len(both):,} identities are in both", map(str, both))
    else:
        findings.add("note", about, "no identity is in both, by name")
    if shared := _shared_images(train, other):
        findings.add("error", about, f"{len(shared):,} images are in both, byte for byte", shared)


def compare_trained(
    one: tuple[str, EvalSet, Scan], other: tuple[str, EvalSet, Scan], findings: Findings
) -> None:
    """Find what two sets that are trained on together have in common."""
    (name, images, _), (other_name, other_images, _) = one, other
    about = f"{name} and {other_name}"
    both = shared_identities(images.identities, other_images.identities)
    if both is None:
        findings.add("note", about, "who is in both is not known by name")
    else:
        findings.add("note", about, f"{len(both):,} identities are in both, by name", map(str, both[:SHOWN]))
    if shared := _shared_images(one, other):
        findings.add("warning", about, f"{len(shared):,} images are in both, byte for byte", shared)


def check_classes(make: Callable[[], Dataset], others: dict[str, EvalSet], findings: Findings) -> None:
    """Find whether the sets to train on go together, and the labelled sets of a config that number their
    classes otherwise."""
    try:
        with collected_problems():  # which the sets of their own have reported
            names = class_names(make())
    except UserError as error:
        findings.add("error", "DataLoader.Train.dataset", str(error))
        return
    for name, images in others.items():
        if images.labels is not None and (wrong := misnumbered_class(names, images.data)):
            findings.add("error", name, wrong)


def _shared_images(one: tuple[str, EvalSet, Scan], other: tuple[str, EvalSet, Scan]) -> list[str]:
    """List the images that two sets have in common, byte for byte: "name = name" each."""
    (_, images, seen), (_, other_images, other_seen) = one, other
    joined = np.concatenate([seen.digests, other_seen.digests])
    shared = [group for group in same_content(joined) if group[0] < len(seen.digests) <= group[-1]]
    pairs = ((int(group[0]), int(group[-1]) - len(seen.digests)) for group in shared)
    return [f"{images.name_of(first)} = {other_images.name_of(second)}" for first, second in pairs]


def spread(labels: np.ndarray, num_classes: int) -> dict[str, int]:
    """Count the classes with 1, 2, 3-4, 5-8, ... images, and before them those without any, if there are
    such."""
    counts = np.bincount(labels, minlength=num_classes)
    present = counts[counts > 0]
    doublings = np.ceil(np.log2(present)).astype(int)
    classes = np.bincount(doublings, minlength=1).tolist()
    names = ["1", "2", *(f"{2 ** (power - 1) + 1}-{2**power}" for power in range(2, len(classes)))]
    empty = len(counts) - len(present)
    return {**({"0": empty} if empty else {}), **dict(zip(names, classes))}


def draw_spread(spread: dict[str, int], name: str) -> bytes:
    """Draw the result of `spread` as a PNG."""
    with styled():
        figure = new_figure(3.2)
        axes = figure.subplots()
        bars = axes.bar(range(len(spread)), spread.values(), color=COLOURS[0])
        axes.bar_label(bars, [f"{count:,}" for count in spread.values()], padding=2)
        axes.set_xticks(range(len(spread)), spread)
        axes.set(title=f"{name}: images per class", xlabel="images", ylabel="classes")
        axes.margins(y=0.12)
        axes.grid(visible=False, axis="x")
        return png_of(figure)


def doctor(
    sets: dict[str, Any], output: Path, trained: int = 1, join: Callable[[], Dataset] | None = None
) -> Findings:
    """Examine sets, the first `trained` of them training's, and write the report.

    sets: name -> a function that opens the set. The report contains its UserError.
    join: opens the whole training set of a config, whose classes labelled sets besides training's have; None:
        they have others, to draw pairs from.
    """
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)  # first, since reading all images may take long
    findings = Findings()
    opened = []
    for name, make in sets.items():
        with collected_problems() as problems:
            try:
                opened.append((name, eval_set(make())))
            except UserError as error:
                findings.add("error", name, str(error))
        for problem in problems:
            findings.add(problem.level, name, problem.text, problem.names)
    seen = [(name, images, examine(images, name, findings)) for name, images in opened]
    training = next(iter(sets))
    names = [*sets][:trained]
    of_training = [each for each in seen if each[0] in names]
    others = [each for each in seen if each[0] not in names]
    for one, other in itertools.combinations(of_training, 2):
        compare_trained(one, other, findings)
    for one, other in itertools.product(of_training, others):
        compare(one, other, findings, join is not None and other[1].labels is not None)
    if join and len(of_training) == trained:
        whole = join if trained > 1 else lambda: of_training[0][1].data
        check_classes(whole, {name: images for name, images, _ in others}, findings)
    content = {
        "severity": findings.severity,
        "sets": findings.sets,
        "classes_with_images": findings.spreads,
        "findings": findings.lines,
    }
    report = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with writing(output):
        if training in findings.spreads:
            replace_file(output / "images_per_class.png", draw_spread(findings.spreads[training], training))
        replace_file(output / "doctor.json", report)
        replace_file(output / "report.txt", shown_lines(findings.text() + "\n").encode())
    return findings


def _open(path: str) -> Dataset | PairSet:
    return PairList(path) if is_pair_list(path) else open_any(path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("plsc doctor", description="Find errors in sets of images.")
    parser.add_argument("train", nargs="?", help="images to train on: .rec, folder or list")
    parser.add_argument(
        "--validation",
        nargs="+",
        default=[],
        metavar="SET",
        help="the same formats, .bin packs and lists of pairs",
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="examine the data sets of a config instead")
    parser.add_argument(
        "--trained",
        metavar="RUN",
        help="a run's output folder: find wrong labels in its training set by its network",
    )
    add_overrides(parser, "a key of that config, or of the run's")
    parser.add_argument(
        "--output", type=Path, default=Path("doctor"), metavar="FOLDER", help="default: doctor"
    )
    args = parser.parse_args(argv)
    if sum(given is not None for given in (args.train, args.config, args.trained)) != 1:
        raise UserError(
            "give either a set of images to train on, or -c with a config, or --trained with a run"
        )
    if args.train and args.override:
        raise UserError("-o: changes keys of a config; give that with -c instead of a set of images")
    if args.trained:
        return _examine_trained(args)
    if args.config and args.validation:
        raise UserError(
            "--validation: the sets are the config's with -c; name another in DataLoader.Eval.more"
        )
    if args.config:
        cfg = load(args.config, args.override)
        build = partial(build_dataset, cfg.DataLoader, cfg.Global.seed, cfg.place)
        sets = {key: partial(build, key) for key in keys_of_sets(cfg.DataLoader)}
        findings = doctor(sets, args.output, len(cfg.DataLoader.Train.sets), build)
    else:
        paths = [args.train, *args.validation]
        twice = [path for path, count in Counter(map(os.path.realpath, paths)).items() if count > 1]
        if twice:
            raise UserError(f"{shown(twice[0])}: is given twice; give each set once")
        sets = {path: partial(_open, path) for path in paths}
        findings = doctor(sets, args.output)
    print(shown_lines(findings.text()))
    print(f"done: report in {args.output}")
    return findings.severity


def _examine_trained(args: argparse.Namespace) -> int:
    """Examine the training set of a run by its network; exit code 1 if anything is wrong."""
    from plsc.apps.curate.doctor_trained import examine_trained  # it imports Paddle

    if args.validation:
        raise UserError("--validation: has no meaning with --trained, which examines the training set")
    text, wrong = examine_trained(args.trained, args.override, args.output)
    print(shown_lines(text))
    return int(wrong)
