"""Say whether the pictures of a set are faces, and whether these are aligned, by a detector and a sample of
the pictures.

`look_for_faces(eval_set(open_images("faces/")), Detector())`
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

from plsc.apps.curate.alignment import largest_aligned, offset
from plsc.apps.curate.detector import Detector
from plsc.data.images import decode_pixels
from plsc.errors import UserError
from plsc.evaluation.sets import EvalSet

SAMPLE = 48  # pictures, evenly spaced
_FEWEST = 0.8  # share of the pictures that must have a face; in sets of other things faces are an exception
# Root mean squares over the landmarks, as a share of the picture's width and height, of the median picture.
# LFW aligned has 0.028 and
# 0.034, cut out along the detector's boxes 0.070 and 0.097.
MOST_SPREAD = 0.05
MOST_OFFSET = 0.07


class Faces(NamedTuple):
    """The largest faces of a sample of pictures."""

    pictures: int  # looked at
    faces: int  # with a face
    spread: float  # how far a face's landmarks lie from the set's median places
    offset: float  # how far they lie from ArcFace's places
    unaligned: int  # pictures of which a gallery of aligned faces would say that they are not aligned

    @property
    def aligned(self) -> bool:
        """Say whether they are aligned to ArcFace's places, but for single ones."""
        return self.spread <= MOST_SPREAD and self.offset <= MOST_OFFSET


def look_for_faces(images: EvalSet, detector: Detector) -> Faces | None:
    """Find the largest face in each of a sample of encoded pictures; None: most pictures are no faces, or are
    not encoded."""
    if not hasattr(images.data, "encoded") or not images.count:
        return None
    sample = np.unique(np.linspace(0, images.count - 1, SAMPLE).astype(np.int64))
    places, offsets = [], []
    for done, index in enumerate(np.random.default_rng(0).permutation(sample).tolist(), start=1):
        try:
            picture = decode_pixels(images.data.encoded(index), False, lambda: images.name_of(index))  # noqa: B023
        except UserError:
            continue  # reported by the scan
        faces = detector.detect(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
        if faces:
            height, width = picture.shape[:2]
            places.append(faces[0].landmarks / [width, height])
            offsets.append(offset(faces[0].landmarks, width, height))
        if done - len(places) > (1 - _FEWEST) * len(sample):
            return None
    if not places:
        return None
    middle = np.median(places, axis=0)
    spreads = [np.sqrt(np.mean(np.sum((place - middle) ** 2, axis=1))) for place in places]
    unaligned = int((np.array(offsets) > largest_aligned(offsets)).sum())
    return Faces(len(sample), len(places), float(np.median(spreads)), float(np.median(offsets)), unaligned)
