"""Write the page that shows the wrong labels of a data set with their pictures.

It is self-contained, without scripts; label_noise.html.jinja escapes every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from plsc.data.preprocessing import Preprocessing
from plsc.evaluation.report import template
from plsc.utils.atomic_write import replace_file


class Strip(NamedTuple):
    """Pictures beside each other, PNG, and the text below them; None: the samples are no images."""

    png: bytes | None
    text: str


class Case(NamedTuple):
    """A correction: what it does, and the pictures that show why."""

    title: str
    strips: Sequence[Strip]


class Part(NamedTuple):
    """A part of the page."""

    heading: str
    text: str
    cases: Sequence[Case]


def strip_of(samples: np.ndarray, preprocessing: Preprocessing) -> bytes | None:
    """Encode samples [n, C, H, W], n at least 1, as one PNG, beside each other; None where they are no
    images."""
    if not preprocessing.is_image or samples.shape[1] not in (1, 3):
        return None
    pixels = np.concatenate(np.moveaxis(samples, 1, -1), axis=1)
    if preprocessing.channels == "RGB":
        pixels = pixels[..., ::-1]
    return cv2.imencode(".png", pixels)[1].tobytes()


def write_page(
    path: Path,
    title: str,
    headlines: Sequence[tuple[str, str]],
    facts: Sequence[tuple[str, str]],
    parts: Sequence[Part],
) -> None:
    """Write the page.

    Args:
        headlines: label and value of the numbers in large type. facts: name and value of further ones.
        parts: those without cases are left out.
    """
    shown_parts = [part for part in parts if part.cases]
    page = template(Path(__file__).with_name("label_noise.html.jinja")).render(
        title=title, headlines=headlines, facts=facts, sections=shown_parts
    )
    replace_file(path, page.encode("utf-8", "backslashreplace"))
