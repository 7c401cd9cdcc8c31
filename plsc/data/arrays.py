"""Read samples and labels from .npy files: vectors of another program, spectrograms, signals.

    Arrays("x.npy", "y.npy").num_classes                   # x.npy [N, ...], y.npy [N]: whole numbers, or names
    ArrayPairs("x.npy", "y.npy", hold_out=0.1).pairs       # of the classes that Arrays with this hold_out leaves out

The samples stay in the file, which is mapped into memory: each is read when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from plsc.data.dataset import Dataset, PairSet
from plsc.data.hold_out import check_hold_out, choose_held_out, class_keys, enough_held_out
from plsc.data.pair_sampling import draw_pairs
from plsc.errors import MissingFileError, UserError, reading, shown
from plsc.utils.files import refuse_irregular


def open_npy(path: str, what: str = "") -> np.ndarray:
    """Map the array of an .npy file into memory, read-only. UserError, after `what`, for Python objects and
    what is no such file."""
    with reading(what + path):
        refuse_irregular(path, os.stat(path).st_mode)
        try:
            return np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError) as error:
            reason = shown(" ".join(str(error).split())[:120])
            raise UserError(f"{what}{shown(path)}: is no .npy file of numbers ({reason})") from error


class _ArrayFiles:
    """The samples of two files with the labels of all of them.

    `samples`: an .npy file [N, ...] of numbers. `labels`: an .npy file [N], whole numbers 0, 1, ... without
    gaps, or text, whose sorted names are then the classes. The network sees (sample - `mean`) * `scale`.
    `title`: what logs and reports call the set; empty = the name of the file of samples.
    """

    def __init__(self, samples: str, labels: str, mean: float = 0.0, scale: float = 1.0, title: str = ""):
        self.check(samples=samples, labels=labels, scale=scale)
        self._path = samples
        self._samples = _samples_of(samples)
        self.mean, self.scale = mean, scale
        self.sample_shape = self._samples.shape[1:]
        self.sample_dtype = self._samples.dtype.newbyteorder("=")
        self._all_labels, self._names = _labels_of(labels, samples, len(self._samples))
        self._title = title or Path(samples).name

    @classmethod
    def check(cls, **kwargs) -> None:
        for key in kwargs.keys() & {"samples", "labels"}:
            if not os.path.isfile(kwargs[key]):
                raise MissingFileError(
                    f"file '{kwargs[key]}' does not exist (looked in {Path.cwd()})", key=key
                )
        if kwargs.get("scale", 1) <= 0:
            raise UserError(f"must be more than 0, got {kwargs['scale']}", key="scale")
        check_hold_out(kwargs.get("hold_out", 0.0))
        if (kwargs.get("num_pairs") or 1) < 1:
            raise UserError(f"must be at least 1, got {kwargs['num_pairs']}", key="num_pairs")

    def __getstate__(self) -> dict:
        return {**vars(self), "_samples": None}  # each process maps the file itself

    def _row(self, row: int) -> np.ndarray:
        if self._samples is None:
            self._samples = _samples_of(self._path)
        return np.array(self._samples[row], self.sample_dtype, order="C")

    def _row_name(self, row: int) -> str:
        return f"{self._path} row {row}"


def _samples_of(path: str) -> np.ndarray:
    samples = open_npy(path)
    if samples.ndim < 2 or samples.dtype.kind not in "biuf" or not samples.size:
        raise UserError(
            f"{shown(path)}: must be numbers [N, ...], a sample a row, got {samples.dtype} {list(samples.shape)}"
        )
    return samples


def _labels_of(path: str, samples: str, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the labels, int64 [N], and the names of the classes if the file has text."""
    given = np.array(open_npy(path))
    if given.shape != (count,) or given.dtype.kind not in "iuU":
        raise UserError(
            f"{shown(path)}: must have a whole number or a name for each of the {count:,} rows of {shown(samples)}, "
            f"got {given.dtype} {list(given.shape)}"
        )
    if given.dtype.kind == "U":
        names, labels = np.unique(given, return_inverse=True)
        return labels.astype(np.int64), names
    labels = given.astype(np.int64)
    present = np.unique(labels)
    expected = np.arange(len(present))
    if (present != expected).any():
        place = int(np.argmax(present != expected))
        raise UserError(
            f"{shown(path)}: has label {present[place]} and none {place}; number the classes 0, 1, 2, ... without gaps"
        )
    return labels, None


class Arrays(_ArrayFiles, Dataset):
    """Labelled samples of any shape from two .npy files, to train on or to classify.

    `hold_out`: the share of the classes that is left out, chosen by their names, or by their numbers where
    they have none; ArrayPairs with the same `hold_out` verifies on them. Further keys: those of both,
    `samples`, `labels`, `mean`, `scale` and `title`.
    """

    def __init__(self, samples: str, labels: str, hold_out: float = 0.0, **options):
        self.check(hold_out=hold_out)
        super().__init__(samples=samples, labels=labels, **options)
        kept = np.ones(int(self._all_labels.max()) + 1, bool)
        if hold_out:
            kept = ~choose_held_out(class_keys(self._names, len(kept)), hold_out, labels)
        self._rows = np.flatnonzero(kept[self._all_labels])
        self.labels = (np.cumsum(kept) - 1)[self._all_labels[self._rows]]
        self.num_classes = int(kept.sum())
        self.identities = None if self._names is None else self._names[kept]

    @property
    def title(self) -> str:
        return self._title

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return self._row(int(self._rows[index]))

    def name(self, index: int) -> str:
        return self._row_name(int(self._rows[index]))


class ArrayPairs(_ArrayFiles, PairSet):
    """Pairs drawn from the samples of two .npy files, half of them positive, the same in every run.

    `hold_out`: draws from the classes that Arrays with the same `hold_out` leaves out; 0: from all.
    `num_pairs`: how many; null: 6,000, or as many as there are. Further keys: those of Arrays.
    """

    def __init__(
        self, samples: str, labels: str, hold_out: float = 0.0, num_pairs: int | None = None, **options
    ):
        self.check(hold_out=hold_out, num_pairs=num_pairs)
        super().__init__(samples=samples, labels=labels, **options)
        chosen, where = np.arange(len(self._all_labels)), labels
        if hold_out:
            names = class_keys(self._names, int(self._all_labels.max()) + 1)
            chosen = np.flatnonzero(choose_held_out(names, hold_out, labels)[self._all_labels])
            where = f"{labels} (held out)"
            self.enough_held_out = enough_held_out(names)
        pairs, self.same = draw_pairs(self._all_labels[chosen], num_pairs, where)
        self._rows, places = np.unique(chosen[pairs], return_inverse=True)
        self.pairs = places.reshape(-1, 2).astype(np.int64)
        self.num_images = len(self._rows)
        self.name = f"{'held-out ' if hold_out else ''}pairs of {self._title}"
        shown_labels = self._all_labels[self._rows]
        self.identity_of = shown_labels if self._names is None else self._names[shown_labels]
        self.identities = None if self._names is None else np.unique(self.identity_of)

    def image(self, index: int) -> np.ndarray:
        return self._row(int(self._rows[index]))

    def image_name(self, index: int) -> str:
        return self._row_name(int(self._rows[index]))
