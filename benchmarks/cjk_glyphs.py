"""Draw the characters of free CJK fonts: up to 80,000 classes without a download of pictures, and without
faces.

    CjkGlyphs("/usr/share/fonts", classes=20_000).num_classes

Debian's packages fonts-noto-cjk, fonts-hanazono, fonts-babelstone-han, fonts-ipamj-mincho and others bring
the fonts. `CjkGlyphs` trains on some of the characters in some of the faces; `CjkGlyphPairs` verifies on
characters that were never trained on, in faces that were or were not. A class is a code point: a Han
ideograph or a Hangul syllable.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ft2font import FT2Font

from plsc.data.dataset import Dataset, PairSet
from plsc.data.fonts import BOUNDS, check_bounds, codepoint_names, draw_glyph, held_out_mask
from plsc.data.pair_sampling import PAIRS_SEED, draw_pairs
from plsc.data.transforms import PROTOTYPES, distort, generator
from plsc.errors import MissingFileError, UserError
from plsc.utils.bar import Bar
from plsc.utils.registry import did_you_mean

FONTS = "/usr/share/fonts"
HELD_OUT = 0.1
PAIRS_CLASSES = 2_000  # characters in the pairs, at most

# Ideographs without those for compatibility, which look like others; their extensions A, and B to H; Hangul
# syllables.
_BLOCKS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2F7FF), (0x30000, 0x323AF), (0xAC00, 0xD7A3))
_SUFFIXES = (".ttf", ".otf", ".ttc")
_FEWEST = 1_000  # characters of a font that is taken for a CJK font


class _Entries(NamedTuple):
    """Which font has which character, sorted by the characters: int64 [N] each, and the fonts."""

    codepoint: np.ndarray
    font: np.ndarray
    glyph: np.ndarray
    fonts: list[FT2Font]


class _Views(NamedTuple):
    """The drawings: uint8 [V, M, M], 255 = ink; the class of each, int64 [V]; its face's name; the classes'
    code points, int64 [C]."""

    drawing: np.ndarray
    label: np.ndarray
    face: list[str]
    codepoint: np.ndarray


class CjkGlyphs(Dataset):
    """Training pictures of CJK characters.

    `fonts`: a folder; all fonts in it and below it that have at least 1,000 characters are faces. `classes`:
    how many characters, of those that two faces at least draw differently; more classes contain the fewer.
    `faces`: the most that a class is drawn in.
    `held_out`: share of the characters that are never trained on. `held_out_fonts`: names of the fonts'
    families that are not.
    `size`: side of the grey pictures. `augment`: strength of the distortions, 0 = clean (transforms.distort).
    """

    def __init__(
        self,
        fonts: str = FONTS,
        classes: int = 1_000,
        faces: int = 8,
        held_out: float = HELD_OUT,
        held_out_fonts: Sequence[str] = (),
        size: int = 32,
        augment: float = 1.0,
        seed: int = 0,
    ):
        self.check(fonts=fonts, classes=classes, faces=faces, held_out=held_out, size=size, augment=augment)
        entries = _read(fonts, held_out_fonts, unseen=False)
        characters = _in_random_order(np.unique(entries.codepoint))
        characters = characters[~held_out_mask(characters, held_out)]
        views = _draw(entries, characters, classes, faces, size)
        if len(views.codepoint) < classes:
            raise UserError(
                f"must be at most {len(views.codepoint):,}, got {classes:,}: the fonts in {fonts} have no more characters "
                "that two faces draw; install further fonts",
                key="classes",
            )
        self._views = views
        self.labels = views.label
        self.num_classes = classes
        self.identities = codepoint_names(views.codepoint)
        self.image_shape = (1, size, size)
        self.augment = augment
        self.seed = seed

    @classmethod
    def check(cls, **kwargs) -> None:
        _check(kwargs)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        rng = generator(self.seed, epoch, index)
        return distort(self._views.drawing[index], self.image_shape[1], self.augment, rng)[np.newaxis]

    def name(self, index: int) -> str:
        return _name_of(self._views, index)


class CjkGlyphPairs(PairSet):
    """Verification pairs of CJK characters that are not trained on, half of them positive: one character in
    two faces.

    Everything as in CjkGlyphs, and `seen_faces`: whether the faces are those of the training, or those that
    it has held out. The pairs do not depend on the run's seed.
    """

    name = "CJK pairs"

    def __init__(
        self,
        fonts: str = FONTS,
        num_pairs: int = 6_000,
        seen_faces: bool = True,
        faces: int = 8,
        held_out: float = HELD_OUT,
        held_out_fonts: Sequence[str] = (),
        size: int = 32,
        augment: float = 1.0,
    ):
        self.check(fonts=fonts, faces=faces, held_out=held_out, size=size, augment=augment)
        entries = _read(fonts, held_out_fonts, unseen=not seen_faces)
        characters = _in_random_order(np.unique(entries.codepoint))
        characters = characters[held_out_mask(characters, held_out)]
        self._views = _draw(entries, characters, PAIRS_CLASSES, faces, size)
        self.identities = codepoint_names(self._views.codepoint)
        self.identity_of = self.identities[self._views.label]
        self.image_shape = (1, size, size)
        self.augment = augment
        self.num_images = len(self._views.label)
        self.pairs, self.same = draw_pairs(self._views.label, num_pairs, "num_pairs")

    @classmethod
    def check(cls, **kwargs) -> None:
        _check(kwargs)
        if kwargs.get("held_out") == 0:
            raise UserError(
                "must be more than 0, got 0: the pairs come from the characters held out", key="held_out"
            )

    def image(self, index: int) -> np.ndarray:
        rng = generator(PAIRS_SEED, 0, index)
        return distort(self._views.drawing[index], self.image_shape[1], self.augment, rng)[np.newaxis]

    def image_name(self, index: int) -> str:
        return _name_of(self._views, index)


def _check(values: dict) -> None:
    bounds = {
        **BOUNDS,
        "classes": ("at least 2", lambda value: value >= 2),
        "num_pairs": ("at least 2", lambda value: value >= 2),
        "faces": ("from 2 to 100", lambda value: 2 <= value <= 100),
    }
    check_bounds(values, bounds)
    if not os.path.isdir(values.get("fonts", FONTS)):
        raise MissingFileError(f"fonts: there is no folder '{values.get('fonts', FONTS)}'")


def _read(folder: str, held_out_fonts: Sequence[str], unseen: bool) -> _Entries:
    """Read which characters the fonts have, of the families that are held out or of the others."""
    codepoints, numbers, glyphs, fonts = [], [], [], []
    families = set()
    for path in sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES):
        try:
            font = FT2Font(str(path))
        except RuntimeError as error:
            raise UserError(f"fonts: {path} cannot be read: {error}; take it out of the folder") from error
        families.add(font.family_name)
        if (font.family_name in held_out_fonts) != unseen:
            continue
        codepoint, glyph = _characters(str(path), path.stat().st_mtime_ns)
        if len(codepoint) < _FEWEST:
            continue
        codepoints.append(codepoint)
        glyphs.append(glyph)
        numbers.append(np.full(len(codepoint), len(fonts)))
        fonts.append(font)
    for name in held_out_fonts:
        if name not in families:
            raise UserError(f"held_out_fonts: {folder} has no font {name!r}{did_you_mean(name, families)}")
    if not fonts:
        raise UserError(
            f"fonts: {folder} has no font with {_FEWEST:,} CJK characters"
            f"{' among those held out' if unseen else ''}; Debian's packages fonts-noto-cjk and fonts-hanazono bring some"
        )
    codepoint, font, glyph = map(np.concatenate, (codepoints, numbers, glyphs))
    order = np.lexsort([font, codepoint])
    return _Entries(codepoint[order], font[order], glyph[order], fonts)


@functools.lru_cache(maxsize=256)
def _characters(path: str, changed: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the CJK characters of a font that was changed at this time, and the numbers of their glyphs: int64
    [N] each.

    A font's takes some tenths of a second, and 0.7 MB are kept of 44,000 characters.
    """
    charmap = FT2Font(path).get_charmap()
    codepoint = np.fromiter(charmap.keys(), np.int64, len(charmap))
    glyph = np.fromiter(charmap.values(), np.int64, len(charmap))
    keep = np.any([(low <= codepoint) & (codepoint <= high) for low, high in _BLOCKS], axis=0)
    return codepoint[keep], glyph[keep]


def _in_random_order(codepoints: np.ndarray) -> np.ndarray:
    """Order code points by hashes of them: the first are a sample of all, and no font changes the order."""
    hashes = [hashlib.blake2b(b"order %d" % code, digest_size=8).digest() for code in codepoints.tolist()]
    return codepoints[np.argsort(hashes, kind="stable")]


def _draw(entries: _Entries, characters: np.ndarray, classes: int, faces: int, size: int) -> _Views:
    """Draw the first `classes` characters that two faces draw differently, in at most `faces` of them, chosen
    at random.

    The drawings are 1.5 times as large as the pictures, so that turning and stretching keep the edges sharp.
    """
    side = size * 3 // 2
    starts = np.searchsorted(entries.codepoint, characters)
    stops = np.searchsorted(entries.codepoint, characters, side="right")
    enough = stops - starts > 1
    characters, starts, stops = characters[enough], starts[enough], stops[enough]
    most = int(np.minimum(stops - starts, faces).sum()) + 1
    drawings = np.zeros((most, side, side), np.uint8)  # pages that are never written take no memory
    labels: list[int] = []
    names: list[str] = []
    codepoints: list[int] = []
    with Bar("drawing characters", min(classes, len(characters)), "classes") as bar:
        for codepoint, start, stop in zip(characters.tolist(), starts.tolist(), stops.tolist()):
            first = len(labels)
            if len(codepoints) == classes:
                break
            alike: set[bytes] = set()
            for entry in start + generator(PAIRS_SEED, 0, codepoint, PROTOTYPES).permutation(stop - start):
                place = first + len(alike)
                if len(alike) == faces:
                    break
                font = entries.fonts[entries.font[entry]]
                drawn = draw_glyph(font, int(entries.glyph[entry]), drawings[place])
                content = drawings[place].tobytes()
                if drawn and content not in alike:  # some fonts have empty glyphs, and some share them
                    alike.add(content)
                    names.append(f"{font.family_name} {font.style_name}")
                else:
                    drawings[place] = 0
            if len(alike) < 2:
                drawings[first] = 0
                del names[first:]
                continue
            labels += [len(codepoints)] * len(alike)
            codepoints.append(codepoint)
            bar.update()
    return _Views(drawings[: len(labels)], np.array(labels, np.int64), names, np.array(codepoints, np.int64))


def _name_of(views: _Views, index: int) -> str:
    codepoint = int(views.codepoint[views.label[index]])
    return f"U+{codepoint:04X} {chr(codepoint)}, {views.face[index]}"
