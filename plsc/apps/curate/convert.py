"""Convert image sets between formats. Images are copied byte for byte.

The target's name determines the format:

    NAME.rec        InsightFace's layout, with its .idx
    NAME.bin        a verification pack
    any other name  a folder with a folder for each identity

plsc.data.autodetect detects the source's format. An existing file is never overwritten. A target appears
under its name only when it is complete. Try it: `plsc convert faces/ train.rec`.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from plsc.data.autodetect import open_images
from plsc.data.bin_packs import BinPairs, write_pack
from plsc.data.folder import ImageFolder
from plsc.data.images import EncodedImages, EncodedPairs
from plsc.data.pairs import PairList
from plsc.data.recordio import EXACT, pack_image, write_records
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import atomic_write
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger

# An encoded image's first bytes -> its file's extension.
_SIGNATURES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"BM": ".bmp",
    b"RIFF": ".webp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"P5": ".pgm",
    b"P6": ".ppm",
    b"\0\0\0\x0cjP": ".jp2",
    b"GIF8": ".gif",
    b"ftypavif": ".avif",  # after the four bytes of a length
}


def write_rec(images: EncodedImages, target: str) -> None:
    """Write a .rec and its .idx in InsightFace's layout: a header, the images by label, and a record for each
    identity.

    Records without an image store counts as float32, as InsightFace's own files do. Counts above 2**24 are
    therefore rounded. Raises UserError if a label is too large for float32.
    """
    order = np.argsort(images.labels, kind="stable")
    end = len(images) + 1
    if images.num_classes - 1 > EXACT:
        raise UserError(
            f"{target}: a .rec stores labels as float32, exactly up to {EXACT:,} (got "
            f"{images.num_classes - 1:,}); "
            "convert to a folder"
        )
    bounds = 1 + np.append(0, np.cumsum(np.bincount(images.labels, minlength=images.num_classes)))
    with write_records(target) as write:
        write(pack_image(b"", (float(end), float(end + images.num_classes)), 0))
        for number, index in enumerate(_shown(order.tolist(), target), start=1):
            write(pack_image(_read(images, index)[0], float(images.labels[index]), number))
        for identity, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist())):
            write(pack_image(b"", (float(start), float(stop)), end + identity))


def write_folder(images: EncodedImages, target: str) -> None:
    """Write a folder for each identity, with the files 0001.jpg, 0002.jpg, ... in image order.

    `identity_folders` names the folders.
    """
    names = identity_folders(images)
    seen = np.zeros(images.num_classes, np.int64)
    with atomic_write(target, new=True) as beside:
        for name in names:
            (beside / name).mkdir(parents=True)
        for index in _shown(range(len(images)), target):
            label = int(images.labels[index])
            data, extension = _read(images, index)
            seen[label] += 1
            with open(beside / names[label] / f"{seen[label]:04}{extension}", "xb") as file:
                file.write(data)


def write_bin(pairs: EncodedPairs, target: str) -> None:
    """Write a verification pack. An image is written once for each pair that contains it."""
    indices = _shown(pairs.pairs.ravel().tolist(), target)
    write_pack(target, (pairs.encoded(index).tobytes() for index in indices), pairs.same)


def _read(images: EncodedImages, index: int) -> tuple[bytes, str]:
    """Return an image's encoded bytes, and the extension that fits its first bytes.

    Raises UserError if the image is empty or its format is unknown.
    """
    data = images.encoded(index).tobytes()
    begin = data[4:12] if data[4:8] == b"ftyp" else data
    extension = next((ext for start, ext in _SIGNATURES.items() if begin.startswith(start)), None)
    if extension is None:
        begins = f"begins with 0x{data[:4].hex()}" if data else "it is empty"
        raise UserError(
            f"{images.name(index)}: is not in a known image format ({begins}); remove it from the set first"
        )
    return data, extension


def identity_folders(images: EncodedImages) -> list[str]:
    """Return a folder name for each class.

    The name is the identity's if all identities give different visible folder names. Otherwise it is the
    label.
    """
    if images.identities is not None:
        names = [os.path.basename(str(name)) for name in images.identities]
        if len({*names}) == len(names) and all(name and name[0] != "." for name in names):
            return names  # a folder that begins with a dot would be hidden, and its images not read again
        get_logger().info("not every identity's name can be a folder's name, so the folders are numbered")
    digits = len(str(images.num_classes - 1))
    return [f"{label:0{digits}}" for label in range(images.num_classes)]


def _shown(indices: Sequence[int], target: str) -> Iterator[int]:
    """Yield the indices, and show a progress bar."""
    with Bar(f"writing {target}", len(indices), "images") as bar:
        for index in indices:
            yield index
            bar.update()


def convert(source: str, target: str, root: str = "") -> str:
    """Convert `source`, and return a sentence about the result.

    Args:
        source: path to a .rec, a folder or a list. For a .bin, a list of pairs or another .bin.
        target: NAME.rec, NAME.bin, or a new folder's name.
        root: folder where a list's relative paths start. "" is the list's own folder.

    Raises UserError if the target exists or is in the source's image folder, or if the source does not fit
    the target's format.
    """
    target = target.rstrip(os.sep) or target  # a user may write a folder as faces/
    written = [target]
    if target.endswith(".rec"):
        written.append(f"{target.removesuffix('.rec')}.idx")
    for path in written:
        if os.path.lexists(path):
            raise UserError(f"{path}: exists already; remove it, or name another target")
    if target.endswith(".bin"):
        if os.path.isdir(source) or source.endswith(".rec"):
            raise UserError(f"{source}: has labelled images and no pairs; a .bin needs a list of pairs")
        pairs = BinPairs(source) if source.endswith(".bin") else PairList(source, root=root)
        write_bin(pairs, target)
        return f"{target}: {len(pairs.same):,} pairs, {int(pairs.same.sum()):,} of them positive"
    images = open_images(source, root=root)
    if isinstance(images, ImageFolder) and Path(source).resolve() in Path(target).resolve().parents:
        raise UserError(f"{target}: is in {source}, whose images it would change; name a target elsewhere")
    (write_rec if target.endswith(".rec") else write_folder)(images, target)
    return f"{target}: {len(images):,} images of {images.num_classes:,} identities"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `plsc convert`. Raises UserError."""
    parser = argparse.ArgumentParser(
        "plsc convert", description="Convert a set of images; the images are copied byte for byte."
    )
    parser.add_argument("source", help=".rec, folder or list; for a .bin: a list of pairs")
    parser.add_argument("target", help="NAME.rec, NAME.bin, or the name of a new folder")
    what = "where a list's relative paths start; default: its own folder"
    parser.add_argument("--root", default="", metavar="FOLDER", help=what)
    args = parser.parse_args(argv)
    with writing(args.target):
        get_logger().info(convert(args.source, args.target, args.root))
    return 0
