"""Align the faces of photos for training: `plsc align photos/ aligned/`.

Every face is turned, scaled and shifted so that eyes, nose and mouth lie where ArcFace's networks expect
them. Folders stay as they are (a folder a person stays one). The landmarks come from a file, or from a
detector (extra `align`). The table, alignment.csv in the target, has a row for every file of the source that
is not hidden: what was written, and what was not and why. Exit code: 0 all photos were written, 1 some were
not, 2 a mistake in the arguments.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2

from plsc.apps.curate.alignment import SIZE
from plsc.apps.curate.detector import Detector
from plsc.apps.curate.landmarks import photo_key, read_landmarks
from plsc.apps.curate.photo import HEADER, OTHER, UNREADABLE, WRITTEN, Options, Row, align_photo
from plsc.data.folder import ALIGNMENT, EXTENSIONS, check_folder
from plsc.errors import UserError, reading, shown, writing
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.bar import Bar
from plsc.utils.files import read_json
from plsc.utils.text import table

TABLE, OPTIONS = ALIGNMENT
SMALLEST = 40  # pixels; a smaller face would be enlarged to three times its size
_PART = 256  # photos that the threads take together


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    options = Options(args.photos, args.aligned, args.size, args.faces, args.smallest, args.jpeg)
    _check(options, args.threads)
    return align_photos(options, args.landmarks, args.resume, args.threads)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("plsc align", description="Align the faces of photos for training.")
    parser.add_argument("photos", help="a folder of photos, with folders in it or without")
    parser.add_argument("aligned", help="a new or empty folder for the aligned pictures and the table")
    parser.add_argument(
        "--landmarks",
        metavar="FILE",
        help="five points of each face, .csv or .json; default: find them (extra align)",
    )
    parser.add_argument(
        "--size", type=int, default=SIZE, help=f"pixels: side of the pictures; default: {SIZE}"
    )
    faces = parser.add_mutually_exclusive_group()
    for choice, text in (
        ("largest", "of several faces in a photo, write the largest (the default)"),
        ("all", "write every face of a photo, as NAME_1, NAME_2, ..."),
        ("single", "leave photos with several faces out"),
    ):
        faces.add_argument(f"--{choice}", dest="faces", action="store_const", const=choice, help=text)
    parser.set_defaults(faces="largest")
    parser.add_argument(
        "--smallest",
        type=int,
        default=SMALLEST,
        metavar="PIXELS",
        help=f"leave out faces whose square in the photo has a smaller side; default: {SMALLEST}",
    )
    parser.add_argument(
        "--jpeg",
        type=int,
        metavar="QUALITY",
        help="write .jpg of this quality, 1 to 100; default: .png, lossless",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the photos that are not written yet"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: one for each processor")
    return parser


def _check(options: Options, threads: int | None) -> None:
    if not 16 <= options.size <= 2048:
        raise UserError(f"--size: must be 16 to 2048, got {options.size}")
    if options.smallest < 1:
        raise UserError(f"--smallest: must be at least 1, got {options.smallest}")
    if options.jpeg is not None and not 1 <= options.jpeg <= 100:
        raise UserError(f"--jpeg: must be 1 to 100, got {options.jpeg}")
    if threads is not None and threads < 1:
        raise UserError(f"--threads: must be at least 1, got {threads}")


def align_photos(options: Options, landmarks: str | None, resume: bool, threads: int | None) -> int:
    """Align all photos of a folder, print a summary, and return the exit code. See main() for the
    arguments."""
    source, target = options.source, Path(options.target)
    if os.path.isfile(source):
        raise UserError(f"{shown(source)}: is a file; give the folder that the photo is in")
    check_folder(source)
    _check_target(source, options.target, resume)
    given = None if landmarks is None else read_landmarks(landmarks)
    detector = Detector() if given is None else None
    names, lost = list_files(source)
    if not names:
        raise UserError(f"{shown(source)}: has no files; give the folder of the photos")
    outputs = _outputs(names, options)

    def align_one(name: str) -> list[Row]:
        faces = None if given is None else given.get(photo_key(name))
        return align_photo(name, outputs(name), options, detector, faces)

    settings = {key: value for key, value in asdict(options).items() if key not in ("source", "target")}
    with writing(target / TABLE):
        kept = _start(target, {**settings, "landmarks": landmarks}, resume)
        done = {fields[0] for fields in kept}
        counts = Counter(fields[1] for fields in kept)
        to_do = [name for name in names if photo_key(name) not in done]
        with open(target / TABLE, "a", newline="", encoding="utf-8") as file:
            for rows in itertools.chain([lost], _photo_by_photo(to_do, align_one, threads)):
                csv.writer(file).writerows(row.fields() for row in rows)
                file.flush()
                counts.update(row.status for row in rows)
    return _summarise(target, len(names), counts, _unused(given, names))


def _check_target(source: str, target: str, resume: bool) -> None:
    """Refuse a target that is, has or is in the source, or has files of something else."""
    here, there = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([here, there]) in (here, there):
        raise UserError(
            f"{shown(target)}: the target and the photos' folder {shown(source)} lie in one another; name another target"
        )
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UserError(f"{shown(target)}: exists and is no folder; name another target")
    if resume and not os.path.isfile(os.path.join(target, TABLE)):
        raise UserError(f"--resume: {shown(target)}: has no {TABLE} to go on from; leave --resume out")
    if not resume and os.path.isdir(target) and os.listdir(target):
        raise UserError(
            f"{shown(target)}: is not empty; name another target, or give --resume to go on with an earlier call"
        )


def list_files(folder: str) -> tuple[list[str], list[Row]]:
    """List the files below a folder, sorted, relative to it; and a row for each folder that cannot be listed.

    What begins with a dot is left out, as in training.
    """
    lost = []

    def report(error: OSError) -> None:
        name = photo_key(os.path.relpath(error.filename, folder))
        lost.append(Row(name, UNREADABLE, detail=f"folder: cannot be read: {error.strerror}"))

    names = []
    # A folder -> its real path and those of the folders on the way to it.
    entered = {folder: (os.path.realpath(folder),)}
    for root, folders, files in os.walk(folder, onerror=report, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        way = entered.pop(root)
        for name in [*folders]:
            path = os.path.join(root, name)
            real = os.path.realpath(path)
            if any(f"{each}{os.sep}".startswith(os.path.join(real, "")) for each in way):
                folders.remove(name)
                row = Row(photo_key(os.path.relpath(path, folder)), UNREADABLE)
                lost.append(row._replace(detail="folder: is a link to a folder that it lies in"))
            else:
                entered[path] = (real, *way)
        visible = [name for name in files if not name.startswith(".")]
        names += [os.path.relpath(os.path.join(root, name), folder) for name in visible]
    return sorted(names), lost


def _outputs(names: Sequence[str], options: Options) -> Callable[[str], str]:
    """Return a function, photo -> name of its picture without extension; no two photos have the same.

    It is the photo's without extension; with it in folders where that differs in nothing else, and where a
    photo has several pictures.
    """
    stems = Counter(_stem(name).casefold() for name in names if name.lower().endswith(EXTENSIONS))
    mixed = {os.path.dirname(stem) for stem, count in stems.items() if count > 1}

    def output(name: str) -> str:
        whole = options.faces == "all" or os.path.dirname(name).casefold() in mixed
        return name if whole else _stem(name)

    return output


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _start(target: Path, settings: dict[str, Any], resume: bool) -> list[list[str]]:
    """Begin the table, and return the rows of an earlier call that stay: those of photos that were written.

    UserError: that call had other settings.
    """
    kept = _earlier_rows(target, settings) if resume else []
    target.mkdir(parents=True, exist_ok=True)
    replace_file(
        target / OPTIONS, (json.dumps(settings, indent=1) + "\n").encode("utf-8", "backslashreplace")
    )
    with atomic_write(target / TABLE) as beside, open(beside, "x", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *kept])
    return kept


def _earlier_rows(target: Path, settings: dict[str, Any]) -> list[list[str]]:
    try:
        before = read_json(target / OPTIONS)
        with reading(target / TABLE), open(target / TABLE, newline="", encoding="utf-8") as file:
            rows = [fields for fields in csv.reader(file) if len(fields) == len(HEADER)][1:]
    except (UserError, csv.Error) as error:
        raise UserError(f"--resume: {shown(target)}: its table cannot be read ({shown(error)})") from None
    for key, value in settings.items():
        if not isinstance(before, dict) or before.get(key) != value:
            was = before.get(key) if isinstance(before, dict) else None
            raise UserError(
                f"--resume: {shown(target)}: was begun with {key} {shown(was)}, this call has {shown(value)}; give the same options"
            )
    last = rows[-1][0] if rows else None  # its other rows may be missing
    undone = {fields[0] for fields in rows if not fields[1].startswith(WRITTEN)} | {last}
    return [fields for fields in rows if fields[0] not in undone and (target / fields[2]).is_file()]


def _photo_by_photo(
    names: Sequence[str], align_one: Callable[[str], list[Row]], threads: int | None
) -> Iterator[list[Row]]:
    """Align photos by several threads, and show how many are done; yield the rows of each, in order."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the threads are the parallelism
    try:
        with (
            ThreadPoolExecutor(threads or os.cpu_count()) as pool,
            Bar("aligning", len(names), "photos") as bar,
        ):
            for start in range(0, len(names), _PART):
                for rows in pool.map(align_one, names[start : start + _PART]):
                    bar.update()
                    yield rows
    finally:
        cv2.setNumThreads(before)


def _unused(given: Collection[str] | None, names: Sequence[str]) -> list[str]:
    """List the names of the landmarks file that no photo has."""
    return sorted({*(given or ())} - {photo_key(name) for name in names})


def _summarise(target: Path, files: int, counts: Counter, unused: list[str]) -> int:
    """Print what became of the photos, and return the exit code."""
    print(table(counts.most_common(), ["status", "rows"]))
    if unused:
        more = ", ..." if len(unused) > 1 else ""
        print(f"{len(unused):,} names of the landmarks file are no photo here: {unused[0]}{more}")
    written = sum(count for status, count in counts.items() if status.startswith(WRITTEN))
    print(f"{files:,} files: {written:,} pictures written; {shown(target / TABLE)} has a row for each")
    return 0 if all(status.startswith(WRITTEN) or status == OTHER for status in counts) else 1
