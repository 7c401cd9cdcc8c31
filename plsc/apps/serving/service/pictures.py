"""Turn what a client has sent into samples for the network: read the pictures of a request, decode them,
align faces.

Nothing that a client names is used as a path, and its content types are not believed: the bytes decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from plsc.apps.curate.alignment import SIZE, align, similarity_transform
from plsc.apps.curate.detector import Detector
from plsc.apps.serving.gallery.quality import Look, look_at
from plsc.apps.serving.service.refusal import PictureRefusal, Refusal
from plsc.data.image_size import has_many_chunks, promised_pixels
from plsc.data.images import decode_pixels, to_sample
from plsc.data.preprocessing import Preprocessing
from plsc.errors import CorruptImageError, UserError, shown

# Markers of JPEG, before each scan and at the end; within a scan's data no such bytes occur.
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_MOST_SCANS = 20  # of a picture of the most pixels; each one takes a pass over all of them
_MOST_CHUNKS, _MOST_COMPRESSED = 100, 10
LONGEST_NAME = 500  # characters


class Sent(NamedTuple):
    """The body of a request."""

    pictures: list[bytes]
    name: str | None
    """Of a person; None: there is none."""


class Prepared(NamedTuple):
    """A picture for the network."""

    sample: np.ndarray
    """uint8 [C, H, W]."""
    faces: int | None
    """How many faces were found; the largest was taken. None: they were not looked for."""
    look: Look
    """Of the picture, or of the part of it that was aligned."""


async def read_body(request: Request, most: int, named: bool = False) -> Sent:
    """Return the pictures of a request, the files of a form or the whole body, and the form's field `name`.

    named: whether there may be a name. Raises Refusal for no picture, more than `most`, and other fields.
    """
    kind = request.headers.get("content-type", "")
    if parse_options_header(kind)[0] != b"multipart/form-data":
        body = await request.body()
        return Sent([body], None) if body else _refuse_none(most)
    # Of its charsets starlette takes another one where a byte does not fit: with Latin-1 all bytes are kept,
    # for UTF-8 below.
    headers = Headers({"content-type": f"{kind}; charset=latin-1"})
    try:
        form = await MultiPartParser(headers, request.stream(), max_files=most, max_fields=1).parse()
    except MultiPartException as error:
        raise Refusal(400, error.message) from None
    try:
        return await _read_form(form, named) or _refuse_none(most)
    finally:
        await form.close()


async def _read_form(form: FormData, named: bool) -> Sent | None:
    pictures, name = [], None
    for field, value in form.multi_items():
        if isinstance(value, UploadFile):
            pictures.append(await value.read())
        elif named and field == "name":
            name = _name_of(value.encode("latin-1"))
        else:
            fields = "pictures and the field 'name'" if named else "pictures only"
            raise Refusal(
                422, f"field '{shown(field)}': the form brings {fields}, the rest stands in the address"
            )
    return Sent(pictures, name) if pictures else None


def _name_of(data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError:
        raise Refusal(422, "name: has bytes that are not UTF-8") from None
    if not 0 < len(name) <= LONGEST_NAME:
        raise Refusal(422, f"name: has 1 to {LONGEST_NAME} characters, got {len(name):,}")
    return name


def prepare(
    data: bytes, preprocessing: Preprocessing, most_pixels: int, aligned: bool, detector: Detector | None
) -> Prepared:
    """Decode a picture and bring it to the network's size.

    aligned: align the largest face first; else the whole picture is taken. detector: finds the faces, and
    with a picture that is taken whole looks whether a face lies where the network wants it; None: does not
    look. Raises PictureRefusal for a picture that is too large, damaged, of an unknown format, or without a
    face.
    """
    if not aligned:
        picture = _decode(data, preprocessing.channels == "grey", most_pixels)
        look = look_at(picture, preprocessing, detector)
        return Prepared(to_sample(picture, preprocessing), None, look)
    picture, faces, side = _largest_face(_decode(data, False, most_pixels), max(preprocessing.size), detector)
    look = look_at(picture, preprocessing)._replace(width=side, height=side)
    return Prepared(to_sample(picture, preprocessing), faces, look)


def _refuse_none(most: int) -> Sent:
    raise Refusal(400, f"no picture; send one as the body, or up to {most} as files of a form")


def _damaged() -> PictureRefusal:
    return PictureRefusal(422, "damaged", "cannot be decoded: it is damaged or cut off")


def _decode(data: bytes, grey: bool, most_pixels: int) -> np.ndarray:
    """Decode to OpenCV's order BGR, uint8 [H, W, 3], or grey [H, W]."""
    pixels = promised_pixels(data)
    if pixels == 0:
        raise PictureRefusal(415, "format", "is no PNG, JPEG, BMP or WebP, or its header is cut off")
    if pixels > most_pixels:
        raise PictureRefusal(
            413,
            "too large",
            f"has {pixels:,} pixels by its header, at most {most_pixels:,} are taken; shrink it",
        )
    if has_many_chunks(data, _MOST_CHUNKS, _MOST_COMPRESSED):
        raise PictureRefusal(
            413,
            "format",
            f"is a PNG of more than {_MOST_CHUNKS} chunks beside its pixels, or {_MOST_COMPRESSED} compressed ones; save it anew",
        )
    if data[:2] == b"\xff\xd8":
        _check_scans(data, pixels, most_pixels)
    try:
        return decode_pixels(np.frombuffer(data, np.uint8), grey, str)
    except CorruptImageError:
        raise _damaged() from None


def _check_scans(data: bytes, pixels: int, most_pixels: int) -> None:
    """Refuse a JPEG of very many scans, and one without its end, of which OpenCV 4 makes a picture with a
    grey rest."""
    scans = data.count(_SCAN)
    if scans * pixels > _MOST_SCANS * most_pixels:
        raise PictureRefusal(
            413, "format", f"is a JPEG of {scans:,} scans, which would take too long; save it anew"
        )
    if data.rfind(_END) < data.rfind(_SCAN):
        raise _damaged()


def _largest_face(picture: np.ndarray, size: int, detector: Detector) -> tuple[np.ndarray, int, int]:
    """Return the largest face aligned, uint8 [size, size, 3] in BGR, how many there are, and the side of its
    square in the picture."""
    faces = detector.detect(np.ascontiguousarray(picture[..., ::-1]))
    if not faces:
        raise PictureRefusal(
            422,
            "no face",
            "shows no face that the detector finds; without align=true the whole picture is taken",
        )
    try:
        side = SIZE / float(np.hypot(*similarity_transform(faces[0].landmarks)[:, 0]))
        return align(picture, faces[0].landmarks, size), len(faces), max(1, round(side))
    except UserError as error:
        raise PictureRefusal(422, "no face", f"shows a face that cannot be aligned: {error}") from None
