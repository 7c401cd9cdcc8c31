"""Read the landmarks of faces from a CSV or JSON file: `read_landmarks("landmarks.csv")["Ann/1.jpg"]`."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plsc.errors import UserError, reading, shown
from plsc.utils.files import parse_json, read_regular

POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
COLUMNS = tuple(f"{point}_{axis}" for point in POINTS for axis in "xy")
_SHOWN = 5  # bad lines that a message names


def photo_key(name: str) -> str:
    """Normalise the name of a photo, relative to the folder of all, as tables and landmarks have it."""
    return shown(os.path.normpath(name).replace(os.sep, "/"))


def read_landmarks(path: str) -> dict[str, list[np.ndarray]]:
    """Read the faces of each photo: `photo_key` -> landmarks [5, 2] float64, in pixels of the upright
    picture.

    CSV: columns `file` and those of COLUMNS, in any order and among others; or, without such a header, the
    photo's name and ten numbers. A row is a face; a row without numbers is none. JSON: {name: [[x, y], ...]},
    or a list of such lists. UserError names the bad lines.
    """
    with reading(f"--landmarks: {path}"):
        text = read_regular(path).decode("utf-8-sig", "surrogateescape")
    faces = _from_json(text, path) if path.lower().endswith(".json") else _from_csv(text, path)
    if not faces:
        raise UserError(f"--landmarks: {shown(path)}: has no landmarks of any photo")
    return faces


def _from_csv(text: str, path: str) -> dict[str, list[np.ndarray]]:
    faces: dict[str, list[np.ndarray]] = {}
    bad = []
    order: Sequence[int] = range(11)
    lines = csv.reader(io.StringIO(text, newline=""))
    for number, fields in enumerate(_rows(lines, path)):
        if number == 0 and {"file", *COLUMNS} <= {*fields}:
            order = [fields.index(name) for name in ("file", *COLUMNS)]
            continue
        if len(fields) <= max(order):
            bad.append(lines.line_num)
            continue
        name, *numbers = (fields[column] for column in order)
        if not any(numbers):
            continue
        try:
            face = np.array(numbers, np.float64).reshape(5, 2)
        except ValueError:
            if number or any(map(_is_number, numbers)):  # else it is a header with names of its own
                bad.append(lines.line_num)
            continue
        faces.setdefault(photo_key(name), []).append(face)
    if bad:
        lines_shown = ", ".join(f"line {line}" for line in bad[:_SHOWN])
        raise UserError(
            f"--landmarks: {shown(path)}: {lines_shown}: must be a photo's name and ten numbers, x and y of {', '.join(POINTS)}; "
            f"{len(bad):,} bad lines in all"
        )
    return faces


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(lines: Any, path: str) -> Iterator[list[str]]:
    """Yield the rows that are not empty. Raises UserError for text that is no CSV."""
    try:
        yield from filter(None, lines)
    except csv.Error as error:
        raise UserError(
            f"--landmarks: {shown(path)}: line {lines.line_num}: is no CSV ({shown(error)})"
        ) from None


def _from_json(text: str, path: str) -> dict[str, list[np.ndarray]]:
    content = parse_json(text, f"--landmarks: {path}")
    if not isinstance(content, dict):
        raise UserError(f"--landmarks: {shown(path)}: must be an object {{name: [[x, y], ...]}}")
    faces: dict[str, list[np.ndarray]] = {}
    for name, value in content.items():
        faces.setdefault(photo_key(name), []).extend(_faces(value, name, path))
    return faces


def _faces(value: Any, name: str, path: str) -> list[np.ndarray]:
    """Return the faces of a photo: one, [5, 2], or a list of them."""
    try:
        points = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        points = np.empty(0)
    if points.shape == (5, 2):
        return [points]
    if value == [] or points.shape[1:] == (5, 2):
        return [*points]
    raise UserError(
        f"--landmarks: {shown(path)}: '{shown(name)}': must be five points [x, y], or a list of such faces"
    )
