"""Align the faces of one photo, and say what was done: a row of the table for each face, or for the photo."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.curate.alignment import SIZE, align, similarity_transform
from plsc.apps.curate.detector import Detector
from plsc.apps.curate.landmarks import COLUMNS, photo_key
from plsc.data.folder import EXTENSIONS, UNREAD
from plsc.data.images import decode_pixels, read_file
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import replace_file

WRITTEN = "written"
CHOSEN = "written, one of several faces"
NO_FACE = "no face"
SEVERAL = "several faces"
SMALL = "too small"
NO_LANDMARKS = "no landmarks"
BAD_LANDMARKS = "bad landmarks"
UNREADABLE = "unreadable"
OTHER = "no photo"  # a file of another kind

_EXIF = (b"Exif", b"eXIf", b"EXIF")  # in JPEG, PNG and WebP
# What OpenCV does to a photo by the orientation in its EXIF, in the words of the table.
_TURNS = {
    "90 degrees clockwise": lambda picture: np.rot90(picture, -1),
    "180 degrees": lambda picture: np.rot90(picture, 2),
    "90 degrees counterclockwise": np.rot90,
}


class Row(NamedTuple):
    """A row of the table."""

    file: str  # photo_key
    status: str
    aligned: str = ""  # the picture written, relative to the target
    faces: int | None = None
    side: int | None = None  # pixels: of the square of the photo that the picture shows
    score: float | None = None  # of the detector; None: landmarks were given
    turned: str = ""  # by the photo's EXIF
    detail: str = ""
    landmarks: np.ndarray | None = None

    def fields(self) -> list[object]:
        """Return the values of the columns HEADER."""
        numbers = [""] * len(COLUMNS) if self.landmarks is None else self.landmarks.ravel().round(2).tolist()
        return ["" if value is None else value for value in self[:-1]] + numbers


HEADER = (*Row._fields[:-1], *COLUMNS)


@dataclass(frozen=True)
class Options:
    """How photos are aligned: see the arguments of plsc align."""

    source: str
    target: str
    size: int
    faces: str  # "largest", "all" or "single"
    smallest: int
    jpeg: int | None


class _Square(NamedTuple):
    """A face, and the square of the photo around it that is warped."""

    landmarks: np.ndarray  # [5, 2]
    score: float | None
    side: float  # pixels; 0 where there is a fault
    fault: str  # why the face has no square; "": it has one


def align_photo(
    name: str, output: str, options: Options, detector: Detector | None, given: list[np.ndarray] | None
) -> list[Row]:
    """Align the faces of the photo `name` of the source, and write them -> rows of the table.

    output: name of the picture without extension, relative to the target. detector: finds the faces; None:
    they are `given`, landmarks [5, 2] each, None for a photo without. UserError: a picture cannot be written.
    """
    row = Row(photo_key(name), UNREADABLE)
    if not name.lower().endswith(EXTENSIONS):
        extension = os.path.splitext(name)[1] or "a file without extension"
        if name.lower().endswith(UNREAD):
            return [row._replace(detail=f"{extension} is not read; convert it to .png or .jpg")]
        return [row._replace(status=OTHER, detail=f"{extension} is no photo")]
    try:
        picture, turned = _read(os.path.join(options.source, name))
    except UserError as error:
        return [row._replace(detail=str(error))]
    row = row._replace(turned=turned)
    if detector is not None:
        faces = detector.detect(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
        squares = [_square(face.landmarks, round(face.score, 4)) for face in faces]
    elif given is not None:
        squares = [_square(landmarks, fault=_outside(landmarks, picture)) for landmarks in given]
    else:
        return [row._replace(status=NO_LANDMARKS, detail="the landmarks file does not have it")]
    if not squares:
        return [row._replace(status=NO_FACE, faces=0)]
    squares.sort(key=lambda square: -square.side)
    row = row._replace(faces=len(squares))
    rows = []
    for number, (square, status, detail) in enumerate(_choose(squares, options), start=1):
        aligned = ""
        if status.startswith(WRITTEN):
            file = f"{output}_{number}" if options.faces == "all" else output
            aligned = _write(picture, square.landmarks, file, options)
        side = round(square.side) or None
        rows.append(
            row._replace(
                status=status,
                aligned=aligned,
                side=side,
                score=square.score,
                detail=detail,
                landmarks=square.landmarks,
            )
        )
    return rows


def _read(path: str) -> tuple[np.ndarray, str]:
    """Read a photo upright, BGR uint8 [H, W, 3], and how it was turned for that. UserError: it cannot be
    read."""
    data = read_file(path)
    picture = decode_pixels(data, False, lambda: path)
    content = data.tobytes()
    if not any(mark in content for mark in _EXIF):
        return picture, ""
    stored = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if np.array_equal(stored, picture):
        return picture, ""
    turns = (words for words, turn in _TURNS.items() if np.array_equal(turn(stored), picture))
    return picture, next(turns, "mirrored")


def _outside(landmarks: np.ndarray, picture: np.ndarray) -> str:
    """Say that given landmarks lie outside of the photo, where one does; they are another photo's, most
    likely."""
    height, width = picture.shape[:2]
    out = ((landmarks < -0.5) | (landmarks > np.array([width, height]) - 0.5)).any(axis=1)
    if not out.any():
        return ""
    x, y = landmarks[out][0].tolist()
    return f"landmarks: ({x:g}, {y:g}) lies outside of the photo, {width} x {height}"


def _square(landmarks: np.ndarray, score: float | None = None, fault: str = "") -> _Square:
    try:
        matrix = similarity_transform(landmarks)
    except UserError as error:
        fault = str(error)
    side = 0.0 if fault else SIZE / float(np.hypot(*matrix[:, 0]))
    return _Square(landmarks, score, side, fault)


def _choose(squares: list[_Square], options: Options) -> list[tuple[_Square, str, str]]:
    """Choose of a photo's faces, the largest first: each with its status and a detail."""
    alone = [_alone(square, options) for square in squares]
    if options.faces == "all":
        return [(square, *status) for square, status in zip(squares, alone)]
    if len(squares) == 1 or alone[0][0] != WRITTEN:  # the others are smaller
        return [(squares[0], *alone[0])]
    others = ", ".join(f"{square.side:.0f}" for square in squares[1:])
    if options.faces == "single" and alone[1][0] == WRITTEN:
        return [(squares[0], SEVERAL, f"their sides have {squares[0].side:.0f}, {others} pixels")]
    return [(squares[0], CHOSEN, f"the largest was taken; the others have sides of {others} pixels")]


def _alone(square: _Square, options: Options) -> tuple[str, str]:
    """Return the status of a face taken alone, and why it is not written."""
    if square.fault:
        return BAD_LANDMARKS, square.fault
    if square.side < options.smallest:
        return SMALL, f"its side, {square.side:.0f} pixels, is below --smallest {options.smallest}"
    return WRITTEN, ""


def _write(picture: np.ndarray, landmarks: np.ndarray, file: str, options: Options) -> str:
    """Write the aligned face, and return its name in the target as tables have it. UserError: it cannot be
    written."""
    extension, settings = ".png", []
    if options.jpeg is not None:
        extension, settings = ".jpg", [cv2.IMWRITE_JPEG_QUALITY, options.jpeg]
    encoded = cv2.imencode(extension, align(picture, landmarks, options.size), settings)[1]
    path = Path(options.target, file + extension)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, encoded.tobytes())
    return photo_key(file + extension)
