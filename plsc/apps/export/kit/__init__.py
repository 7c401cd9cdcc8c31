"""Make the acceptance kit: pictures, their embeddings, and programs that say whether a converted network
gives these.

    kit = make_kit(model, preprocessing, pictures, flip)     # the network in eval mode, on the CPU
    kit.write(folder, threshold, "LFW pairs")

A user embeds the kit's pictures on a board or by another runtime and gives the file of embeddings to check.py
(NumPy) or check.c (C99). A wrong colour order, a lost BatchNorm or a coarse rounding does not just give other
embeddings, it gives
certain ones: the real network computes them here, for the first pictures, and the programs say which are
nearest. The rule is in check.py.

What passes is measured, too: how far the network's embeddings move in float16 and in 8 bits, and in this
export's own graph of 8 bits where it has one. A conversion may be off by a bit more: four times the distance.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
from paddle import nn

from plsc.apps.export.graphs import TOLERANCE
from plsc.apps.export.kit.inputs import faulty_inputs
from plsc.apps.export.kit.networks import (
    FLOAT16,
    Rounding,
    cut_ranges,
    cut_to_float16,
    faulty_norms,
    largest_number,
    rounding,
    to_bits,
    to_float16,
)
from plsc.errors import shown
from plsc.utils.vectors import unit_embeddings

FOLDER = "kit"
PICTURES = "pictures"  # its folder of PNG files
HOW_TO_READ = {
    "RGB": "cv2.imread(name)[..., ::-1].transpose(2, 0, 1)  # OpenCV reads BGR, the graph takes RGB",
    "BGR": "cv2.imread(name).transpose(2, 0, 1)",
    "grey": "cv2.imread(name, cv2.IMREAD_GRAYSCALE)[None]",
}
_PROGRAMS = ("check.py", "check.c")
_COMPARED = 16  # pictures of which the embeddings of each fault are known
_A_BIT_MORE = 4  # times the distance: the step of a rounding doubled
_COARSE = (5, 4, 3)  # bits that are too few
_CUT = (1 / 2, 1 / 4, 1 / 8)  # shares of the ranges that are too small
_BITS = 7  # of good 8 bits: weights have one less where sums must not overflow
_BATCH = 32  # samples in one pass

Embed = Callable[[np.ndarray], np.ndarray]
"""samples or inputs float32 [B, *shape] -> embeddings [B, D]"""


@dataclass(frozen=True)
class KitPictures:
    """The samples of a kit: [N, *shape], N >= 2; pairs int64 [P, 3]: two of them, and 1 if both are of one
    class; title of the set."""

    samples: np.ndarray
    pairs: np.ndarray
    title: str


@dataclass(frozen=True)
class Kit:
    """Right and wrong embeddings of the kit's samples.

    flip: an embedding is of image and mirror image together. reference: the right ones, float32 [N, D] of
    length 1. faults: what happened -> the embeddings of the first n samples then, [n, D]. unseen: faults that
    change no more than rounding to float16
    does. levels: (distance, name) of roundings, the finest first; a distance is 1 - mean cosine. largest:
    number inside the network.
    """

    pictures: KitPictures
    preprocessing: Any
    flip: bool
    reference: np.ndarray
    faults: dict[str, np.ndarray]
    unseen: list[str]
    levels: list[tuple[float, str]]
    largest: float

    def write(
        self, folder: Path, threshold: float | None, measured: str, in_8_bits: Embed | None = None
    ) -> None:
        """Write the new `folder`.

        Args:
            threshold, measured: cosine above which two samples are of one class, and on which set that was found.
            in_8_bits: this export's own graph of 8 bits, if it has one.
        """
        folder.mkdir()
        samples, channels = self.pictures.samples, self.preprocessing.channels
        np.save(folder / "samples.npy", samples)
        np.save(folder / "reference.npy", self.reference)
        np.save(folder / "faults.npy", np.concatenate([self.reference[:0], *self.faults.values()]))
        if channels in HOW_TO_READ:
            (folder / PICTURES).mkdir()
            for number, sample in enumerate(samples):
                sample = sample[::-1] if channels == "RGB" else sample  # OpenCV writes BGR
                encoded = cv2.imencode(".png", np.moveaxis(sample, 0, -1))[1]
                (folder / PICTURES / f"{number:04d}.png").write_bytes(encoded)
        for name in _PROGRAMS:
            shutil.copyfile(Path(__file__).with_name(name), folder / name)
        lines = self._lines(threshold, measured, in_8_bits)
        (folder / "kit.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _lines(self, threshold: float | None, measured: str, in_8_bits: Embed | None) -> Iterator[str]:
        """Write kit.txt: a key and its value a line."""
        count, size = self.reference.shape
        yield f"pictures {count}"
        yield f"of {shown(self.pictures.title)[:200]}"
        yield f"size {size}"
        yield f"compared {min(count, _COMPARED)}"
        if threshold is not None:
            yield f"threshold {threshold:.6f} {shown(measured)[:200]}"
        levels = [*self.levels]
        if in_8_bits:
            embeddings = _embed(in_8_bits, self.pictures.samples.astype(np.float32), self.flip)
            levels.append((_distance(embeddings, self.reference), "as in 8 bits"))
        allowed = 0.0
        for distance, name in levels:
            allowed = max(allowed, _A_BIT_MORE * distance)
            yield f"level {allowed:.6g} {name}"
        yield from (f"say {key} {text}" for key, text in self._special_faults())
        yield from (f"fault {name}" for name in self.faults)
        yield from (f"unseen {name}" for name in self.unseen)
        yield from (f"pair {first} {second} {same}" for first, second, same in self.pictures.pairs.tolist())

    def _special_faults(self) -> Iterator[tuple[str, str]]:
        """Name the faults that no certain embeddings belong to."""
        grows = f"numbers inside the network grow to {self.largest:.4g}, float16 ends at {FLOAT16:.0f}"
        overflow = f"float16 overflow: {grows}" if self.largest > FLOAT16 else ""
        zeros = "zeros: embeddings have no direction"
        if self.preprocessing.is_image:
            zeros = (
                "mean and scale: pixels were normalised before, the graph takes 0..255; embeddings are zeros"
            )
        yield "nan", overflow or "not a number: weights are damaged, or a division by 0"
        yield "zeros", overflow or zeros
        yield "length", "no normalisation: embeddings are not of length 1"
        yield "rows", "rows permuted: embeddings are right, but those of other pictures"
        yield "weights", "weights not loaded or damaged: embeddings have little to do with their pictures"
        yield (
            "coarse",
            "int8 too coarse: rounding explains it best, but it is more than a good one; or a fault that is not in the kit",
        )


def make_kit(model: nn.Layer, preprocessing: Any, pictures: KitPictures, flip: bool) -> Kit:
    """Compute right and wrong embeddings by the network, which is in eval mode and on the CPU and stays as it
    is."""

    def through(inputs: np.ndarray) -> np.ndarray:
        with paddle.no_grad():
            found = model(paddle.to_tensor(np.ascontiguousarray(inputs, np.float32)))
        return found.flatten(1).numpy()

    with np.errstate(over="ignore", invalid="ignore"):  # a fault may make the numbers of a network too large
        return _made(model, preprocessing, pictures, flip, through)


def _made(model: nn.Layer, preprocessing: Any, pictures: KitPictures, flip: bool, through: Embed) -> Kit:
    """Compute them by `through`, which gives `model` inputs and makes its embeddings NumPy's."""
    right = preprocessing(pictures.samples.astype(np.float32))
    reference = _embed(through, right, flip)
    few, first = right[:_COMPARED], reference[:_COMPARED]
    found = {}
    for name, inputs in faulty_inputs(preprocessing, pictures.samples[:_COMPARED].astype(np.float32)):
        found[name] = _embed(through, inputs, flip)
    if flip:
        found["mirror left out: embeddings are of the pictures alone"] = _embed(through, few, False)
    for name, faulty in faulty_norms(model):
        with faulty():
            found[name] = _embed(through, few, flip)

    def rounded(how: Rounding) -> np.ndarray:
        with rounding(model, how):
            return _embed(through, few, flip)

    for bits in _COARSE:
        found[f"int8 too coarse: about as with {bits} bits"] = rounded(to_bits(bits))
    for share in _CUT:
        found[f"int8 too coarse: ranges are cut, about as at {share:g} of the extremes"] = rounded(
            cut_ranges(share)
        )
    # What the export allows a graph of float32: TOLERANCE for each number, which is at most half the square
    # of that here.
    levels = [(reference.shape[1] * TOLERANCE**2 / 2, "as in float32")]
    half = rounded(to_float16)
    if np.isfinite(half).all():
        levels.append((_distance(half, first), "as in float16"))
    else:
        found["float16 overflow: numbers beyond float16 are cut off"] = rounded(cut_to_float16)
    seen = _A_BIT_MORE * max(distance for distance, _ in levels)
    levels.append((_distance(rounded(to_bits(_BITS)), first), "as in 8 bits"))
    # NaN, where a network does not bear a fault, is nobody's nearest.
    faults = {name: wrong for name, wrong in found.items() if _distance(wrong, first) > seen}
    return Kit(
        pictures=pictures,
        preprocessing=preprocessing,
        flip=flip,
        reference=reference,
        faults=faults,
        unseen=[name for name, wrong in found.items() if _distance(wrong, first) <= seen],
        levels=levels,
        largest=largest_number(model, lambda: through(few)),
    )


def _embed(run: Embed, samples: np.ndarray, flip: bool) -> np.ndarray:
    """Embed samples [N, *shape] of any N at length 1, float32 [N, D]."""
    parts = [samples[start : start + _BATCH] for start in range(0, len(samples), _BATCH)]
    return np.concatenate([unit_embeddings(run, part, flip) for part in parts])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Compute 1 - mean cosine of rows of length 1."""
    return float(1 - np.sum(a.astype(np.float64) * b, axis=1).mean())
