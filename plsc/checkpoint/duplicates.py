"""Find pairs of classes that are probably one person under two names: their centres are too near to each
other.

All pairs of centres are compared, in blocks that are read one after the other: memory does not grow with the
number of classes but for the pairs that are found. Try it:

    plsc ckpt duplicates output --output pairs.csv
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.checkpoint.manifest import head_config
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import find_at
from plsc.errors import MissingFileError, UserError, shown, writing
from plsc.utils.atomic_write import replace_file
from plsc.utils.bar import Bar
from plsc.utils.bfloat16 import float32_of
from plsc.utils.text import table
from plsc.utils.vectors import unit_rows

MOST = 1_000_000  # pairs that are kept; of more the nearest
SAMPLED = 1024  # classes whose second nearest centre gives the threshold
RATIO = 0.65  # of angles: of a pair's to that between different identities
SLACK = 1.5  # of angles: of a pair's to those of each of the two to its nearest class
_HELD, _ROWS = 32768, 2048  # rows in memory, rows compared with each other at once
_SEED = 0  # of the sampled classes
_ANGLE_OF_ROUNDING = 0.01  # equal centres in bfloat16 are up to so many radians apart
HEADERS = ("identity", "same as", "cosine")
_SHOWN = 50  # lines of the table


class Pairs(NamedTuple):
    """Pairs of classes, the nearest first: numbers first < second, int64 [P], and their cosine, float32
    [P]."""

    first: np.ndarray
    second: np.ndarray
    cosine: np.ndarray


class Directions:
    """The centres of a checkpoint as unit vectors, read by ranges of classes. UserError for sub-centres that
    do not fit."""

    def __init__(self, saved: Checkpoint):
        self.count = saved.num_classes
        self.each = head_config(saved.config_yaml).get("sub_centres", 1)  # centres of a class
        if self.each < 1 or saved.embedding_size % self.each:
            raise UserError(
                f"{saved.path}/manifest.json: config: Head.sub_centres: must divide the rows of {saved.embedding_size} numbers "
                f"(got {self.each})"
            )
        self._saved = saved

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read the classes [start, stop): float32 [(stop - start) * each, D], of length 1; zeros stay
        zeros."""
        rows = float32_of(self._saved.rows("centres", start, stop)).astype(np.float32, copy=False)
        rows = rows.reshape((stop - start) * self.each, -1)
        return unit_rows(rows)

    def cosines(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Compare classes [a * each, D] and [b * each, D]: float32 [a, b], of sub-centres those of the
        nearest two."""
        cosines = some @ others.T
        if self.each == 1:
            return cosines
        shape = len(some) // self.each, self.each, len(others) // self.each, self.each
        return cosines.reshape(shape).max(axis=(1, 3))

    def blocks(self, start: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first class, rows) of all classes from `start` on, _ROWS at a time."""
        for first in range(start, self.count, _ROWS):
            yield first, self.read(first, min(first + _ROWS, self.count))


def second_nearest(centres: Directions) -> np.ndarray:
    """Compute for SAMPLED classes, or all, the cosine to the second nearest of the other classes: float32
    [n].

    The nearest may be the same person; the second nearest is another one, unless somebody is there three
    times.
    """
    count = min(SAMPLED, centres.count)
    sampled = np.sort(np.random.default_rng(_SEED).choice(centres.count, count, replace=False))
    rows = np.concatenate([centres.read(number, number + 1) for number in sampled.tolist()])
    best = np.full((count, 2), -1, np.float32)
    for first, others in centres.blocks():
        cosines = centres.cosines(rows, others)
        here = np.flatnonzero((sampled >= first) & (sampled < first + cosines.shape[1]))
        cosines[here, sampled[here] - first] = -1  # itself
        best = np.partition(np.concatenate([best, cosines], axis=1), -2, axis=1)[:, -2:]
    return best[:, 0]


def choose_threshold(second: np.ndarray, of_images: float | None) -> tuple[float, str]:
    """Choose the cosine above which two centres are taken for one identity; return it, and the reason as
    text.

    It is that of RATIO times the median angle to the second nearest centres `second` (cosines of
    `second_nearest`): the ratio test of Lowe (Distinctive Image Features from Scale-Invariant Keypoints,
    2004) with one median for all classes, so that somebody who is there three times is found too. Not below
    `of_images`, the evaluation's threshold for two images: two centres of one identity, each a mean of many
    images, are nearer to each other than two of these.
    """
    median = float(np.clip(np.median(second), 0, 1))  # below 0 in a handful of classes only
    nearer = float(np.cos(RATIO * np.arccos(median)))
    if of_images is not None and of_images > nearer:
        return of_images, f"{of_images:.4f}, the evaluation's threshold of two images"
    return nearer, (
        f"{nearer:.4f}, {RATIO} times the angle to the second nearest other class, whose median cosine is {median:.4f}"
    )


def pairs_above(
    centres: Directions, threshold: float, most: int = MOST, done: Callable[[int], object] = int
) -> Pairs:
    """Find all pairs of classes with a cosine above `threshold`; of more than `most` the nearest.

    `done`: called with the number of pairs compared since the last call.
    """
    pairs = [Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    count = 0
    for start in range(0, centres.count, _HELD):
        stop = min(start + _HELD, centres.count)
        held = centres.read(start, stop)
        for first, others in centres.blocks(start):
            for begin in range(start, min(stop, first + _ROWS), _ROWS):
                rows = held[(begin - start) * centres.each : (begin - start + _ROWS) * centres.each]
                cosines = centres.cosines(rows, others)
                one, other = np.nonzero(cosines > threshold)
                near = cosines[one, other]
                half = one + begin < other + first  # each pair once, and no class with itself
                if half.any():
                    pairs.append(Pairs(one[half] + begin, other[half] + first, near[half]))
                    count += len(pairs[-1].cosine)
                if count > 2 * most:
                    pairs = [_nearest(pairs, most)]
                    count = most
                    threshold = float(pairs[0].cosine[-1])
                done(cosines.size)
    return _nearest(pairs, most)


def nearest_of_both(pairs: Pairs) -> Pairs:
    """Keep the pairs of which each class is about the nearest of the other: within SLACK times the angle.

    A class that looks like two names of one person is near to both, and these are nearer to each other. The
    nearest itself
    would not do: somebody who is there three times has two.
    """
    angle = np.arccos(np.clip(pairs.cosine, -1, 1))
    classes, place = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    smallest = np.full(len(classes), np.inf)
    np.minimum.at(smallest, place, np.tile(angle, 2))
    bound = SLACK * smallest[place].reshape(2, -1).min(axis=0) + _ANGLE_OF_ROUNDING
    return Pairs(*(column[angle <= bound] for column in pairs))


def work(count: int) -> int:
    """Compute the number of pairs that `pairs_above` compares among so many classes, those of a block both
    ways."""
    blocks, rest = divmod(count, _ROWS)
    return (count**2 + blocks * _ROWS**2 + rest**2) // 2


def _nearest(parts: list[Pairs], most: int) -> Pairs:
    pairs = Pairs(*map(np.concatenate, zip(*parts)))
    order = np.lexsort((pairs.second, pairs.first, -pairs.cosine))[:most]
    return Pairs(*(column[order] for column in pairs))


def find_duplicates(
    run: str,
    threshold: float | None = None,
    top: int | None = None,
    output: str | None = None,
    measured: Callable[[Checkpoint], float | None] = lambda saved: None,
) -> str:
    """List the pairs of classes of a run that are probably one identity; return a report.

    Args:
        run: a checkpoint, or a run's folder, of which its newest checkpoint is taken.
        threshold: cosine of two centres above which they are a pair; None: see `choose_threshold`.
        top: at most so many pairs, the nearest.
        measured: reads the threshold that a run has measured, if it has.
        output: a new file NAME.csv for all pairs, which `edit_identities` reads as its merge list.

    Raises UserError.
    """
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"--threshold: must be a cosine, from -1 to 1 (got {threshold:g})")
    if top is not None and top < 1:
        raise UserError(f"--top: must be at least 1 (got {top})")
    if output is not None and not output.endswith(".csv"):
        raise UserError(f"--output: must end in .csv (got '{output}')")
    if output is not None and Path(output).exists():
        raise UserError(f"{output}: is there already, and nothing is overwritten; name another file")
    saved = _checkpoint(run)
    if not saved.num_classes:
        raise UserError(f"{shown(saved.path)}: has no classes to compare; name a checkpoint of a training")
    centres = Directions(saved)
    given = f"{threshold:.4f}, as given" if threshold is not None else ""
    if threshold is None:
        threshold, given = choose_threshold(second_nearest(centres), measured(saved))
    with Bar("comparing", work(centres.count), "pairs") as bar:
        pairs = nearest_of_both(pairs_above(centres, threshold, done=bar.update))
    pairs = Pairs(*(column[:top] for column in pairs))
    names = saved.classes() or [str(number) for number in range(saved.num_classes)]
    where = f"{saved.path}: {saved.num_classes:,} classes, pairs with a cosine above {given}"
    if not len(pairs.cosine):
        return f"{where}: none"
    rows = [
        (names[one], names[other], cosine)
        for one, other, cosine in zip(*(column.tolist() for column in pairs))
    ]
    lines = [
        where,
        table([(shown(one), shown(other), f"{cosine:.4f}") for one, other, cosine in rows[:_SHOWN]], HEADERS),
    ]
    if len(rows) > _SHOWN:
        lines.append(
            f"... and {len(rows) - _SHOWN:,} more" + ("" if output else "; --output FILE.csv has all")
        )
    if output:
        _write(output, rows)
        lines.append(
            f"{len(rows):,} pairs in {output}; delete the lines that are wrong, then: plsc ckpt edit-identities {saved.path} "
            f"--merge-list {output} --output TARGET"
        )
    return "\n".join(lines)


def _checkpoint(run: str) -> Checkpoint:
    path = find_at(run)
    if path is None:
        raise MissingFileError(f"{run}/checkpoints: no checkpoint there; train first")
    return Checkpoint.open(path, verify=False)


def _write(output: str, rows: list[tuple[str, str, float]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(HEADERS)
    writer.writerows((one, other, f"{cosine:.4f}") for one, other, cosine in rows)
    with writing(output):
        replace_file(Path(output), text.getvalue().encode("utf-8", "surrogateescape"))
