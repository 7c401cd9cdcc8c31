"""Make glyph data sets, which have thousands of classes and need no download.

`Glyphs` is a training set of characters in several faces of the DejaVu fonts. `GlyphPairs` contains picture
pairs of held-out characters. Verification decides whether two pictures show the same character, as LFW does
for people. Each class is drawn once in each face at the start, which takes about 1.5 s in total. A sample is
such a drawing with a distortion. fonts.py explains the classes. Try it: `Glyphs().sample(0, epoch=0).shape`.
"""

import unicodedata
from typing import Annotated

import numpy as np
from pydantic import Field

from plsc.data import fonts
from plsc.data.dataset import Dataset, PairSet
from plsc.data.pair_sampling import PAIRS_SEED, draw_negatives
from plsc.data.transforms import PAIRS, distort, generator
from plsc.errors import UserError

HELD_OUT = 0.1
Size = Annotated[int, Field(ge=16, le=128)]
Strength = Annotated[float, Field(ge=0, le=2)]


class Glyphs(Dataset):
    """Glyph pictures to train on: about 2,600 classes in eight faces.

    - `held_out`: share of classes that is never trained on. Every run holds out the same classes, see
      GlyphPairs.
    - `size`: the grey pictures' side in pixels.
    - `augment`: distortion strength (transforms.distort), or 0.
    """

    def __init__(
        self,
        held_out: Annotated[float, Field(ge=0, le=0.9)] = HELD_OUT,
        size: Size = 32,
        augment: Strength = 1.0,
        seed: int = 0,
    ):
        classes = fonts.glyph_classes()
        trained = ~fonts.held_out_mask(classes.identity, held_out)
        self.codepoints = classes.codepoint[trained]
        self.identities = fonts.codepoint_names(classes.identity[trained])
        self.num_classes = len(self.codepoints)
        self.labels = np.repeat(np.arange(self.num_classes), len(fonts.FACES))
        self.image_shape = (1, size, size)
        self.augment = augment
        self.seed = seed
        self._drawings = _draw_views(self.codepoints, size)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        rng = generator(self.seed, epoch, index)
        return distort(self._drawings[index], self.image_shape[1], self.augment, rng)[np.newaxis]

    def name(self, index: int) -> str:
        return _view_name(self.codepoints, index)


class GlyphPairs(PairSet):
    """Glyph pairs for verification from the held-out classes, half of them positive.

    A positive pair shows one class in two faces. A negative pair shows two classes in any faces. No pair
    occurs twice. Positive and negative pairs alternate, so that every fold of a 10-fold protocol is balanced,
    as in LFW. Each class has one distorted picture per face. The pairs do not depend on the run's seed.

    - `num_pairs`: how many pairs.
    - `size` and `augment`: as in Glyphs.
    - `held_out`: share of classes to draw from, at most the training set's.
    """

    title = "glyph pairs"

    def __init__(
        self,
        num_pairs: Annotated[int, Field(ge=1)] = 6000,
        held_out: Annotated[float, Field(gt=0, le=0.9)] = HELD_OUT,
        size: Size = 32,
        augment: Strength = 1.0,
    ):
        classes = fonts.glyph_classes()
        unseen = fonts.held_out_mask(classes.identity, held_out)
        self.codepoints = classes.codepoint[unseen]
        self.identities = fonts.codepoint_names(classes.identity[unseen])
        self.image_shape = (1, size, size)
        self.augment = augment
        self.pairs, self.same = _draw_pairs(len(self.codepoints), num_pairs)
        self._drawings = _draw_views(self.codepoints, size)
        self.num_images = len(self._drawings)
        self.identity_of = np.repeat(self.identities, len(fonts.FACES))

    def image(self, index: int) -> np.ndarray:
        rng = generator(PAIRS_SEED, 0, index)
        return distort(self._drawings[index], self.image_shape[1], self.augment, rng)[np.newaxis]

    def image_name(self, index: int) -> str:
        return _view_name(self.codepoints, index)


def _draw_views(codepoints: np.ndarray, size: int) -> np.ndarray:
    """Draw the classes in all faces: uint8 [views, M, M], view = class * faces + face.

    The side M is 1.5 times the pictures' side, so that edges stay sharp after rotation and stretching. M is
    at most 96 pixels, because all classes' drawings are kept in memory (53 MB for 32-pixel pictures).
    """
    side = min(size * 3 // 2, 96)
    return fonts.draw_glyphs(codepoints, side).reshape(-1, side, side)


def _view_name(codepoints: np.ndarray, view: int) -> str:
    number, face = divmod(view, len(fonts.FACES))
    codepoint, face = int(codepoints[number]), list(fonts.FACES)[face]
    return f"U+{codepoint:04X} {unicodedata.name(chr(codepoint), '(unnamed)')}, {face}"


def _draw_pairs(classes: int, num_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs. Returns the pairs, int64 [P, 2], and whether each is positive, bool [P]."""
    rng = generator(PAIRS_SEED, use=PAIRS)
    faces = len(fonts.FACES)
    views = classes * faces
    first, second = np.triu_indices(faces, k=1)
    offsets = np.arange(0, views, faces)[:, np.newaxis]
    positives = np.stack([(offsets + first).ravel(), (offsets + second).ravel()], axis=1)
    num_positives = (num_pairs + 1) // 2
    if num_positives > len(positives) or classes < 2:  # two classes have more negative pairs than positive
        raise UserError(
            f"must be at most {2 * len(positives)}, got {num_pairs}: "
            f"{classes} held-out classes in {faces} faces have no more different positive pairs",
            key="num_pairs",
        )
    negatives = draw_negatives(np.arange(views) // faces, num_pairs - num_positives, rng)
    pairs = np.empty((num_pairs, 2), np.int64)
    pairs[0::2] = rng.permutation(positives)[:num_positives]
    pairs[1::2] = negatives
    return pairs, np.arange(num_pairs) % 2 == 0
