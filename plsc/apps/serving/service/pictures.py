"""Turn what a client has sent into samples for the network: read the pictures of a request, decode them, align faces.

Nothing that a client names is used as a path, and its content types are not believed: the bytes decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from plsc.apps.curate.alignment import SIZE, align, similarity_transform
from plsc.apps.curate.detector import Detector
from plsc.apps.serving.gallery.quality import Look, look_at
from plsc.apps.serving.service.refusal import Refusal
from plsc.data.image_size import has_many_chunks, promised_pixels
from plsc.data.images import decode_pixels, to_sample
from plsc.data.preprocessing import Preprocessing
from plsc.errors import CorruptImageError, UserError, shown

# Markers of JPEG, before each scan and at the end; within a scan's data no such bytes occur.
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_MOST_SCANS = 20  # of a picture of the most pixels; each one takes a pass over all of them
_MOST_CHUNKS = 100

_DAMAGED = "cannot be decoded: it is damaged or cut off"


class Prepared(NamedTuple):
    """A picture for the network."""

    sample: np.ndarray
    """uint8 [C, H, W]."""
    faces: int | None
    """How many faces were found; the largest was taken. None: they were not looked for."""
    look: Look
    """Of the picture, or of the part of it that was aligned."""


async def read_pictures(request: Request, most: int) -> list[bytes]:
    """Return the bytes of a request's pictures: the files of a form, or the whole body.

    Raises Refusal for none, more than `most`, and other fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        body = await request.body()
        return [body] if body else _refuse_none(most)
    try:
        async with request.form(max_files=most, max_fields=1) as form:
            return await _files_of(form) or _refuse_none(most)
    except UnicodeError:  # starlette's, of the charset that the form names
        raise Refusal(400, "the form's names cannot be read in its charset; use UTF-8") from None


async def _files_of(form: FormData) -> list[bytes]:
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            raise Refusal(
                422,
                f"field '{shown(name)}': is no file; a form brings pictures only, the rest stands in the address",
            )
    return [await file.read() for _, file in form.multi_items()]


def prepare(
    data: bytes, preprocessing: Preprocessing, most_pixels: int, detector: Detector | None = None
) -> Prepared:
    """Decode a picture and bring it to the network's size.

    detector: finds the faces, of which the largest is aligned first; None: the whole picture is taken.
    Raises Refusal for a picture that is too large, damaged, of an unknown format, or without a face.
    """
    if detector is None:
        picture = _decode(data, preprocessing.channels == "grey", most_pixels)
        return Prepared(to_sample(picture, preprocessing), None, look_at(picture, preprocessing))
    picture, faces, side = _largest_face(_decode(data, False, most_pixels), max(preprocessing.size), detector)
    look = look_at(picture, preprocessing)._replace(width=side, height=side)
    return Prepared(to_sample(picture, preprocessing), faces, look)


def _refuse_none(most: int) -> list[bytes]:
    raise Refusal(400, f"no picture; send one as the body, or up to {most} as files of a form")


def _decode(data: bytes, grey: bool, most_pixels: int) -> np.ndarray:
    """Decode to OpenCV's order BGR, uint8 [H, W, 3], or grey [H, W]."""
    pixels = promised_pixels(data)
    if pixels == 0:
        raise Refusal(415, "is no PNG, JPEG, BMP or WebP, or its header is cut off")
    if pixels > most_pixels:
        raise Refusal(
            413, f"has {pixels:,} pixels by its header, at most {most_pixels:,} are taken; shrink it"
        )
    if has_many_chunks(data, _MOST_CHUNKS):
        raise Refusal(413, f"is a PNG of more than {_MOST_CHUNKS} chunks beside its pixels; save it anew")
    if data[:2] == b"\xff\xd8":
        _check_scans(data, pixels, most_pixels)
    try:
        return decode_pixels(np.frombuffer(data, np.uint8), grey, str)
    except CorruptImageError:
        raise Refusal(422, _DAMAGED) from None


def _check_scans(data: bytes, pixels: int, most_pixels: int) -> None:
    """Refuse a JPEG of very many scans, and one without its end, of which OpenCV 4 makes a picture with a grey rest."""
    scans = data.count(_SCAN)
    if scans * pixels > _MOST_SCANS * most_pixels:
        raise Refusal(413, f"is a JPEG of {scans:,} scans, which would take too long; save it anew")
    if data.rfind(_END) < data.rfind(_SCAN):
        raise Refusal(422, _DAMAGED)


def _largest_face(picture: np.ndarray, size: int, detector: Detector) -> tuple[np.ndarray, int, int]:
    """Return the largest face aligned, uint8 [size, size, 3] in BGR, how many there are, and the side of its square in the picture."""
    faces = detector.detect(np.ascontiguousarray(picture[..., ::-1]))
    if not faces:
        raise Refusal(
            422, "shows no face that the detector finds; without align=true the whole picture is taken"
        )
    try:
        side = SIZE / float(np.hypot(*similarity_transform(faces[0].landmarks)[:, 0]))
        return align(picture, faces[0].landmarks, size), len(faces), max(1, round(side))
    except UserError as error:
        raise Refusal(422, f"shows a face that cannot be aligned: {error}") from None
