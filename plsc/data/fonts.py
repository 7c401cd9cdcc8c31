"""Draw glyphs from matplotlib's DejaVu faces, and find the code points that form one class.

A class contains all code points with the same outline (Latin A, Greek Alpha, Cyrillic A), because no picture
shows a difference between them. The fonts come with matplotlib, so this data set needs no download. To
count the classes:

    python -c "from plsc.data.fonts import glyph_classes; print(len(glyph_classes().codepoint))"
"""

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import ft2font

FACES = {
    "Sans": "DejaVuSans",
    "Sans Bold": "DejaVuSans-Bold",
    "Sans Oblique": "DejaVuSans-Oblique",
    "Sans Bold Oblique": "DejaVuSans-BoldOblique",
    "Serif": "DejaVuSerif",
    "Serif Bold": "DejaVuSerif-Bold",
    "Serif Italic": "DejaVuSerif-Italic",
    "Serif Bold Italic": "DejaVuSerif-BoldItalic",
}

# EM and MARGIN are relative to the picture's side. All glyphs have one scale, so that a full stop is smaller
# than a bullet. The em is the largest with which most accented capitals fit. Larger glyphs are shrunk to fit.
EM = 26 / 32
MARGIN = 2 / 32
MIDLINE = 0.3  # height of the picture's middle above the baseline, in ems: letters reach from -0.24 to 0.76

_NO_HINTING = ft2font.LoadFlags.NO_HINTING if hasattr(ft2font, "LoadFlags") else ft2font.LOAD_NO_HINTING
_MATPLOTLIB = tuple(int(part) for part in matplotlib.__version__.split(".")[:2])


class GlyphClasses(NamedTuple):
    """Parallel int64 arrays [C], ordered by `codepoint`."""

    codepoint: np.ndarray  # the class's smallest code point that all faces contain
    identity: np.ndarray  # the class's smallest code point in any face


def open_face(face: str) -> ft2font.FT2Font:
    """Open a face named in FACES."""
    return ft2font.FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", FACES[face] + ".ttf")))


@functools.lru_cache(maxsize=1)
def _outlines() -> tuple[list[set[int]], dict[int, int]]:
    """Find the code points of each face whose glyphs have ink, and the identity of each code point.

    GlyphClasses explains identities. Union-find over the code points of all faces joins two code points if
    they have the same outline in any face.
    """
    parent: dict[int, int] = {}

    def root(codepoint: int) -> int:
        while parent.setdefault(codepoint, codepoint) != codepoint:
            parent[codepoint] = codepoint = parent[parent[codepoint]]
        return codepoint

    inked = []
    for face in FACES:
        font = open_face(face)
        first_with = {}
        ink = set()
        # At one pixel per font unit, all versions of matplotlib give the same exact outlines. With NO_SCALE,
        # versions before 3.11 round them to 1/8 (their hinting factor).
        font.set_size(font.units_per_EM, 72)
        for codepoint, glyph_index in sorted(font.get_charmap().items()):
            font.load_glyph(glyph_index, _NO_HINTING)
            outline = np.asarray(font.get_path()[0]).tobytes()
            if glyph_index == 0 or not outline:  # glyph 0 is the box for missing glyphs
                continue
            ink.add(codepoint)
            low, high = sorted((root(codepoint), root(first_with.setdefault(outline, codepoint))))
            parent[high] = low
        inked.append(ink)
    return inked, {codepoint: root(codepoint) for codepoint in parent}


def glyph_classes() -> GlyphClasses:
    """Find the classes that all faces share. The first call in a process takes about 0.7 s."""
    inked, identity = _outlines()
    smallest: dict[int, int] = {}
    for codepoint in sorted(set.intersection(*inked)):
        smallest.setdefault(identity[codepoint], codepoint)
    pairs = sorted((codepoint, root) for root, codepoint in smallest.items())
    return GlyphClasses(*np.array(pairs, np.int64).T)


def held_out_mask(identity: np.ndarray, share: float) -> np.ndarray:
    """Choose the classes to hold out from training: bool [C].

    A hash of the class's identity decides. The choice depends neither on a seed nor on the fonts'
    version. A larger share includes a smaller share's classes.

    Args:
        identity: int64 [C], the classes' identities.
        share: approximate share to hold out.
    """
    digests = [hashlib.blake2b(b"held out %d" % code, digest_size=8).digest() for code in identity.tolist()]
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.float64) < share * 2.0**64


def codepoint_names(codepoints: np.ndarray) -> np.ndarray:
    """Return the Unicode notation of code points, such as "U+0041": text [C]."""
    return np.array([f"U+{codepoint:04X}" for codepoint in codepoints.tolist()])


def draw_glyphs(codepoints: np.ndarray, side: int) -> np.ndarray:
    """Draw each code point in each face: uint8 [len(codepoints), 8, side, side], 255 = ink, antialiased.

    A glyph takes about 25 us. The glyph's advance box is centred horizontally, and MIDLINE is centred
    vertically. A full stop therefore stays low, and a left half block stays left. The glyph is then moved,
    and if necessary shrunk, so that it keeps the distance MARGIN from each edge.

    Args:
        codepoints: int64 [n], which all faces contain.
        side: the pictures' side in pixels.
    """
    pictures = np.zeros((len(codepoints), len(FACES), side, side), np.uint8)
    for column, face in enumerate(FACES):
        font = open_face(face)
        charmap = font.get_charmap()
        for row, codepoint in enumerate(codepoints.tolist()):
            draw_glyph(font, charmap[codepoint], pictures[row, column])
    return pictures


def draw_glyph(font: ft2font.FT2Font, glyph_index: int, picture: np.ndarray) -> bool:
    """Draw a glyph into a picture, uint8 [side, side], as draw_glyphs does.

    Returns False if the glyph has no ink.
    """
    side = len(picture)
    em, margin = int(EM * side), MARGIN * side  # whole pixels: old FreeType rounds other sizes
    font.set_size(em, 72)
    glyph = font.load_glyph(glyph_index, _NO_HINTING)
    x0, y0, x1, y1 = (value / 64 for value in glyph.bbox)
    if x0 == x1 or y0 == y1:
        return False
    shrink = (side - 2 * margin) / max(x1 - x0, y1 - y0)
    if shrink < 1:
        font.set_size(int(em * shrink), 72)
        glyph = font.load_glyph(glyph_index, _NO_HINTING)
        x0, y0, x1, y1 = (value / 64 for value in glyph.bbox)
    width, height = np.ceil(x1) - np.floor(x0), np.ceil(y1) - np.floor(y0)
    advance = glyph.linearHoriAdvance / 65536
    left = (side - advance) / 2 + x0 if advance else (side - width) / 2  # a combining mark has no advance
    top = side / 2 + MIDLINE * em - y1
    left, top = (
        round(min(max(start, margin), side - margin - length))
        for start, length in ((left, width), (top, height))
    )
    left -= int(np.floor(x0))  # matplotlib adds the glyph's left bearing, but not its top bearing
    if _MATPLOTLIB >= (3, 11):
        font.draw_glyph_to_bitmap(picture, left, top, glyph)
    else:
        image = ft2font.FT2Image(side, side)
        font.draw_glyph_to_bitmap(image, left, top, glyph)
        picture[:] = np.asarray(image)
    return True
