"""Small sets of encoded images in the formats that people have, made up for a test. Also where the real ones
are."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from plsc.data.recordio import pack_image, write_records
from tests.helpers.idx_files import DATA

INSIGHTFACE = DATA / "insightface_format"
needs_insightface_files = pytest.mark.skipif(
    not (INSIGHTFACE / "lfw_mxnet" / "train.rec").is_file(),
    reason="needs the folder insightface_format of the test data in $PLSC_TEST_DATA",
)


def png(number: int) -> bytes:
    """A picture of 12 x 10 that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (12, 10, 3), np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def write_grey(folder: Path, pixels: np.ndarray) -> list[str]:
    """Write grey pictures uint8 [n, 1, H, W], and return their paths."""
    paths = [str(folder / f"{number}.png") for number in range(len(pixels))]
    for path, picture in zip(paths, pixels):
        cv2.imwrite(path, picture[0])
    return paths


def write_rec(path: Path, labels: list, header: bool = True) -> Path:
    """Write a .rec with picture i for label labels[i] (a number, or a tuple of several). header: use
    InsightFace's layout."""
    firsts = [label[0] if isinstance(label, tuple) else label for label in labels]
    identities = sorted(set(firsts))
    with write_records(str(path)) as write:
        if header:
            end = len(labels) + 1
            write(pack_image(b"", (float(end), float(end + len(identities))), 0))
        for number, label in enumerate(labels):
            write(pack_image(png(number), label, number + header))
        for number, identity in enumerate(identities if header else ()):
            first = firsts.index(identity) + 1
            write(pack_image(b"", (float(first), float(first + firsts.count(identity))), end + number))
    return path


def write_folder(folder: Path, counts: dict[str, int], number: int = 0) -> Path:
    """A folder for each identity, with so many pictures, the first of them picture `number`."""
    for identity, count in counts.items():
        (folder / identity).mkdir(parents=True)
        for index in range(1, count + 1):
            (folder / identity / f"{identity}_{index:04}.png").write_bytes(png(number))
            number += 1
    return folder


def write_list(folder: Path, text: str | bytes) -> str:
    path = folder / "list.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)
