"""Cut the faces out of photos, aligned for training: `plsc align photos/ aligned/`.

The largest face of each photo is turned, scaled and shifted so that eyes, nose and mouth lie where networks
of faces expect them, and written as .png. Folders stay as they are (a folder a person stays one).
alignment.csv in the target has a row for each file: what was written, or why nothing was. Exit code: 0 at
least one face was written, 2 a mistake in the arguments, or none was.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cv2

from plsc.apps.faces.detector import Detector
from plsc.apps.faces.photos import largest_face, read_photo
from plsc.data.folder import ALIGNMENT, check_folder
from plsc.errors import UserError, shown, writing
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

SMALLEST = 40  # pixels; a smaller face would be enlarged to three times its size


class Row(NamedTuple):
    """What became of a photo."""

    photo: str
    aligned: str = ""
    """The file that was written, "": none."""
    side: int | str = ""
    """Of the face in the photo, in pixels."""
    faces: int | str = ""
    left_out: str = ""
    """Why nothing was written."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("plsc align", description="Cut the faces out of photos, aligned.")
    parser.add_argument("photos", help="a folder of photos, with folders in it or without")
    parser.add_argument("aligned", help="a new or empty folder for the faces and alignment.csv")
    what = "side of a face in a photo, in pixels; default: %(default)s"
    parser.add_argument("--smallest", type=int, default=SMALLEST, help=what)
    args = parser.parse_args(argv)
    return align_folder(args.photos, args.aligned, args.smallest)


def align_folder(source: str, target: str, smallest: int) -> int:
    """Align all photos of a folder, print what became of them, and return the exit code."""
    check_folder(source)
    here, there = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([here, there]) in (here, there):
        raise UserError(f"{shown(target)}: lies in {shown(source)}, or that in it; name another target")
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise UserError(f"{shown(target)}: is there and not empty; name another target")
    names = _outputs(source)
    if not names:
        raise UserError(f"{shown(source)}: has no files; give the folder of the photos")
    detector = Detector()

    def align(item: tuple[str, str]) -> Row:
        name, output = item
        photo = os.path.join(source, name)
        try:
            face, faces = largest_face(detector, read_photo(photo))
        except UserError as error:
            return Row(name, left_out=str(error).removeprefix(f"{shown(photo)}: "))
        row = Row(name, side=round(faces[0].side), faces=len(faces))
        if row.side < smallest:
            return row._replace(left_out=f"its face has {row.side} pixels, --smallest {smallest}")
        path = Path(target, output)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, cv2.imencode(".png", face)[1].tobytes())
        return row._replace(aligned=output)

    with writing(target):
        with ThreadPoolExecutor() as pool, Bar("aligning", len(names), "photos") as bar:
            rows = []
            for row in pool.map(align, names.items()):
                rows.append(row)
                bar.update()
        os.makedirs(target, exist_ok=True)
        with atomic_write(Path(target, ALIGNMENT)) as beside, open(beside, "x", newline="") as file:
            csv.writer(file).writerows([Row._fields, *([shown(field) for field in row] for row in rows)])
    return _report(rows, target)


def _outputs(source: str) -> dict[str, str]:
    """List the files below a folder, and the name of what is made of each; hidden ones are left out."""
    outputs: dict[str, str] = {}
    for path in sorted(path for path in Path(source).rglob("*") if path.is_file()):
        photo = path.relative_to(source)
        if not any(part.startswith(".") for part in photo.parts):
            output = str(photo.with_suffix(".png"))
            outputs[str(photo)] = f"{photo}.png" if output in outputs.values() else output
    return outputs


def _report(rows: Sequence[Row], target: str) -> int:
    for row in rows:
        if row.left_out:
            get_logger().warning(f"left out {shown(row.photo)}: {row.left_out}")
    written = sum(bool(row.aligned) for row in rows)
    several = sum(bool(row.aligned) and row.faces > 1 for row in rows)
    print(
        f"{counted(len(rows), 'photo')}: {counted(written, 'face')} written, {several:,} of them the largest "
        f"of several, {len(rows) - written:,} left out; {shown(os.path.join(target, ALIGNMENT))} has all"
    )
    return 0 if written else 2
