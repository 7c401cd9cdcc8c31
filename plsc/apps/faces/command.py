"""Crop aligned faces from photos to train on: `plsc align photos/ aligned/`.

Each photo's largest face is rotated, scaled and shifted, so that eyes, nose and mouth are where face
networks expect them. It is written as .png: the face from Ann/1.jpg as Ann/1.png, or as Ann/1.jpg.png if
there is another file with the stem Ann/1. A photo whose second largest face is nearly as large is skipped,
unless --groups is given.

alignment.csv in the target folder has a row for each file, with these columns:

- photo: the photo's file.
- aligned: the file that was written. Empty if the photo was skipped.
- left_out: why the photo was skipped.
- faces: how many faces there are.
- second: the second largest face's area, relative to the largest face's.

Exit codes:

- 0: at least one face was written.
- 2: no face was written, or the arguments are wrong.
"""

import argparse
import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2

from plsc.apps.faces.alignment import align
from plsc.apps.faces.detector import Detector
from plsc.apps.faces.photos import find_faces, read_photo, refuse_group, second_share
from plsc.data.folder import ALIGNMENT, check_folder, files_below
from plsc.errors import UserError, escape, writing
from plsc.utils.atomic_write import atomic_write
from plsc.utils.bar import Bar
from plsc.utils.logging import log_skipped
from plsc.utils.parallel import in_parallel
from plsc.utils.text import plural


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc align`. Raises UserError."""
    parser = argparse.ArgumentParser("plsc align", description="Cut the faces out of photos, aligned.")
    parser.add_argument("photos", help="a folder of photos, with folders in it or without")
    parser.add_argument("aligned", help="a new folder for the faces and alignment.csv")
    add_groups(parser)
    args = parser.parse_args(argv)
    source, target = args.photos, args.aligned.rstrip("/")
    check_folder(source)
    if os.path.lexists(target):
        raise UserError(f"{escape(target)}: exists already; remove it, or name another target")
    names = [*files_below(source)]
    if not names:
        raise UserError(f"{escape(source)}: contains no files; give the folder with the photos")
    outputs = _outputs(names)
    detector = Detector()

    def align_photo(name: str) -> tuple[str, str, str, int, str]:
        """Write a photo's aligned face, and return the photo's row for alignment.csv."""
        photo, faces = os.path.join(source, name), []
        try:
            pixels = read_photo(photo)
            faces = find_faces(detector, photo, pixels)
            if not args.groups:
                refuse_group(photo, faces)
        except UserError as error:
            return name, "", str(error), len(faces), f"{second_share(faces):.2f}"
        output = outputs[name]
        path = Path(beside, output)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cv2.imencode(".png", align(pixels, faces[0].landmarks))[1].tobytes())
        return name, output, "", len(faces), f"{second_share(faces):.2f}"

    with writing(target), atomic_write(target, new=True) as beside:
        beside.mkdir()
        with Bar("aligning", len(names), "photos") as bar:
            rows = []
            for row in in_parallel(align_photo, names):
                rows.append(row)
                bar.update()
        with open(beside / ALIGNMENT, "x", newline="") as file:
            header = "photo", "aligned", "left_out", "faces", "second"
            csv.writer(file).writerows([header, *([escape(field) for field in row] for row in rows)])
    log_skipped(reason for _, _, reason, *_ in rows if reason)
    written = sum(bool(output) for _, output, *_ in rows)
    several = sum(bool(output) and faces > 1 for _, output, _, faces, _ in rows)
    count = f"{plural(written, 'face')} written, {len(rows) - written:,} skipped"
    if several:
        count += f", {several:,} from photos with several faces"
    print(f"{plural(len(rows), 'photo')}: {count}; {escape(os.path.join(target, ALIGNMENT))} lists all")
    return 0 if written else 2


def _outputs(names: Sequence[str]) -> dict[str, str]:
    """Choose a unique output file for each photo.

    The file is Ann/1.png for Ann/1.jpg, or Ann/1.jpg.png if another photo might need Ann/1.png.
    """
    stems = {name: os.path.splitext(name)[0] for name in names}
    count = Counter([*stems.values(), *names])
    return {name: f"{stem if count[stem] == 1 else name}.png" for name, stem in stems.items()}


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Add the option `--groups` to a command's parser. It selects the largest face in group photos."""
    parser.add_argument(
        "--groups",
        action="store_true",
        help="also use photos whose second face is nearly as large as the largest",
    )
