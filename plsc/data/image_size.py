"""Look at what an encoded image promises before it is decoded: 68 bytes may promise a billion pixels, and 109
KB hold them; 61 bytes may promise a chunk of 4 GB.

PNG, JPEG, BMP and WebP; of other formats OpenCV's own limit is set, see plsc/data/__init__.py. Try it:

    promised_pixels(open("a.png", "rb").read())
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MOST_PIXELS = 2**26  # 8192 x 8192; 200 MB decoded
_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's markers that are followed by the size
_ALONE = {0x01, *range(0xD0, 0xD9)}  # those without a length


def promised_pixels(data: bytes) -> int:
    """Compute width times height by the header; 0 for an unknown format, or a header that is cut off."""
    try:
        if data[:8] == _PNG:
            width, height = struct.unpack_from(">II", data, 16)
        elif data[:2] == b"\xff\xd8":
            width, height = _jpeg(data)
        elif data[:2] == b"BM" and data[14] == 12:
            width, height = struct.unpack_from("<HH", data, 18)
        elif data[:2] == b"BM":
            width, height = struct.unpack_from("<ii", data, 18)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            width, height = _webp(data)
        else:
            return 0
    except (struct.error, IndexError):
        return 0
    return abs(width * height)


def is_cut_off_png(data: bytes) -> bool:
    """Return whether a chunk of a PNG reaches beyond the data: OpenCV 5 allocates what a chunk's length
    says."""
    return any(end > len(data) for _, end in _chunks(data))


def has_many_chunks(data: bytes, most: int, most_compressed: int) -> bool:
    """Return whether a PNG has more chunks beside its pixels, or more compressed ones among them.

    libpng may write a line to stderr for each, and keeps up to 8 MB of each compressed one.
    """
    others = compressed = 0
    for kind, _ in _chunks(data):
        others += kind not in (b"IDAT", b"fdAT", b"fcTL")
        compressed += kind in (b"zTXt", b"iTXt", b"iCCP")
        if others > most or compressed > most_compressed:
            return True
    return False


def _chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the kind of each chunk of a PNG, and where it ends, up to the one after which decoders read no
    further."""
    at = 8 if data[:8] == _PNG else len(data)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        at += 12 + length  # length, kind, content and checksum
        yield kind, at
        if kind == b"IEND":
            return


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:  # decoders look for the next marker
            at = data.find(b"\xff", at)
            if at < 0:
                return 0, 0
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker in (0xFF, 0x00):
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _webp(data: bytes) -> tuple[int, int]:
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF
