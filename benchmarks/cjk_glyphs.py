"""Draw characters from free CJK fonts as a data set.

It has up to 80,000 classes and downloads no pictures or faces. It is also an example of a data set
that a user writes (docs/extend.md).

    apt install fonts-noto-cjk fonts-noto-cjk-extra fonts-hanazono fonts-babelstone-han fonts-ipamj-mincho
    plsc train -o "DataLoader.Train.dataset={name: benchmarks.cjk_glyphs:CjkGlyphs, classes: 60000}" \\
        Head.sample_rate=0.1
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ft2font import FT2Font

from plsc.data.dataset import Dataset
from plsc.data.fonts import codepoint_names, draw_glyph
from plsc.data.transforms import distort, generator
from plsc.errors import UserError

FEWEST = 1_000  # a font with fewer such characters is not used
# Ideographs, their extensions, and Hangul syllables. Compatibility ideographs are excluded, since they look
# like others.
BLOCKS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2F7FF), (0x30000, 0x323AF), (0xAC00, 0xD7A3))


class CjkGlyphs(Dataset):
    """Characters as classes. Each class has a picture from each typeface that draws it differently.

    Args:
        fonts: folder that is searched, with its subfolders, for fonts with at least 1,000 CJK characters.
            Each such font is a face.
        classes: how many characters. The first ones that at least two faces draw differently are used.
        faces: most faces per character.
        size: the grey pictures' side in pixels.
        augment: distortion strength. 0 turns them off.
        seed: for the distortions.
    """

    def __init__(
        self,
        fonts: str = "/usr/share/fonts",
        classes: int = 1_000,
        faces: int = 8,
        size: int = 32,
        augment: float = 1.0,
        seed: int = 0,
    ):
        self.augment = augment
        self.seed = seed
        self.image_shape = (1, size, size)
        self.num_classes = classes
        self._drawings: list[np.ndarray] = []  # 1.5 times as large as the pictures, so that edges stay sharp
        labels: list[int] = []
        codepoints = []
        for codepoint, entries in sorted(_characters(fonts).items()):
            drawn = _draw(entries, faces, size * 3 // 2)
            if len(drawn) > 1:
                self._drawings += drawn
                labels += [len(codepoints)] * len(drawn)
                codepoints.append(codepoint)
            if len(codepoints) == classes:
                break
        else:
            raise UserError(
                f"classes: must be at most {len(codepoints):,}, got {classes:,}: install more fonts"
            )
        self.labels = np.array(labels)
        self.identities = codepoint_names(np.array(codepoints))

    def sample(self, index: int, epoch: int) -> np.ndarray:
        rng = generator(self.seed, epoch, index)
        return distort(self._drawings[index], self.image_shape[1], self.augment, rng)[np.newaxis]


def _characters(folder: str) -> dict[int, list[tuple[FT2Font, int]]]:
    """Return, for each CJK code point, the fonts that contain it and its glyph number in each."""
    found: dict[int, list[tuple[FT2Font, int]]] = {}
    for path in sorted(path for path in Path(folder).rglob("*") if path.suffix in (".ttf", ".otf", ".ttc")):
        font = FT2Font(str(path))
        charmap = {
            codepoint: glyph
            for codepoint, glyph in font.get_charmap().items()
            if any(low <= codepoint <= high for low, high in BLOCKS)
        }
        if len(charmap) >= FEWEST:
            for codepoint, glyph in charmap.items():
                found.setdefault(codepoint, []).append((font, glyph))
    return found


def _draw(entries: list[tuple[FT2Font, int]], faces: int, side: int) -> list[np.ndarray]:
    """Draw a character in several fonts: uint8 [side, side] each. Empty and repeated drawings are skipped."""
    drawings: dict[bytes, np.ndarray] = {}
    for font, glyph in entries:
        drawing = np.zeros((side, side), np.uint8)
        if len(drawings) < faces and draw_glyph(font, glyph, drawing):
            drawings.setdefault(drawing.tobytes(), drawing)
    return list(drawings.values())
