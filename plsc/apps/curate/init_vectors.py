"""Choose a config for vectors, x.npy with y.npy beside it: `plsc init FOLDER` and `plsc init x.npy`.

numbers of a sample                    mean 0 and deviation 1, by up to 10,000 samples
any                                    an MLP with a hidden layer, embeddings of 128 numbers at most
fewer than 2,000 classes               margin 0.1, scale 16
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np

from plsc.data.arrays import Arrays, open_npy
from plsc.data.hold_out import class_keys
from plsc.errors import MissingFileError, UserError, shown

SAMPLES, LABELS = "x.npy", "y.npy"
_MOST_READ = 10_000  # samples for mean and deviation
FEW_CLASSES = 2_000  # below, a small margin and scale
LEAST_STEPS = 300  # of a network that starts anew
_EPOCHS = 20


class Vectors(NamedTuple):
    """Two files of vectors and their labels, and what a config follows from. keys: the classes' names, or
    their numbers."""

    samples: str
    labels: str
    count: int
    numbers: int
    keys: list[str]
    mean: float
    deviation: float


def find_vectors(path: str) -> tuple[str, str] | None:
    """Find x.npy and y.npy in a folder, or the labels beside an .npy file; None: `path` is none of these.
    MissingFileError without labels."""
    samples = os.path.join(path, SAMPLES) if os.path.isdir(path) else path
    if not samples.endswith(".npy") or not os.path.isfile(samples):
        return None
    labels = os.path.join(os.path.dirname(samples), LABELS)
    if not os.path.isfile(labels):
        raise MissingFileError(
            f"{shown(labels)}: does not exist; write a name or a number for each row of {shown(samples)} there"
        )
    return samples, labels


def look_at_vectors(samples: str, labels: str) -> Vectors:
    """Read what the files have. UserError where a sample is no vector, or all samples are equal."""
    data = Arrays(samples, labels)
    if len(data.sample_shape) != 1:
        raise UserError(
            f"{shown(samples)}: has samples of shape {list(data.sample_shape)}, and a network is chosen for vectors only; name one in a "
            "config (docs/data.md)"
        )
    rows = open_npy(samples)
    read = np.asarray(rows[:: math.ceil(len(rows) / _MOST_READ)], np.float64)
    deviation = float(read.std())
    if not 0 < deviation < math.inf:
        raise UserError(f"{shown(samples)}: all numbers are equal, or some are not finite")
    keys = class_keys(data.identities, data.num_classes)
    return Vectors(samples, labels, len(data), data.sample_shape[0], keys, float(read.mean()), deviation)


def halved_to_fit(batch: int, trained: int, ranks: int) -> int:
    """Halve a rank's batch, to 4 at least, until an epoch of `trained` samples has two steps."""
    while batch > 4 and ranks * batch > trained / 2:
        batch //= 2
    return batch


def recommend_for_vectors(seen: Vectors, hold_out: float | None, ranks: int, output: str) -> dict:
    """Choose a config: "Section.key" -> value. hold_out: share of the classes to verify on, or None."""
    trained = round(seen.count * (1 - (hold_out or 0)))
    batch = halved_to_fit(128, trained, ranks)
    steps = _EPOCHS * math.ceil(trained / (ranks * batch))
    files = {
        "samples": seen.samples,
        "labels": seen.labels,
        **({"hold_out": hold_out} if hold_out else {}),
        "mean": float(f"{seen.mean:.4g}"),
        "scale": float(f"{1 / seen.deviation:.4g}"),
    }
    return {
        **({"Global.epochs": _EPOCHS} if steps >= LEAST_STEPS else {"Global.max_steps": LEAST_STEPS}),
        "Global.output_dir": output,
        "Model.name": "MLP",
        "Model.embedding_size": min(seen.numbers, 128),
        "Model.widths": [512],
        **({"Head.margin": 0.1, "Head.scale": 16.0} if len(seen.keys) < FEW_CLASSES else {}),
        "DataLoader.Train.dataset": {"name": "Arrays", **files},
        "DataLoader.Train.batch_size": batch,
        "DataLoader.Eval.dataset": {"name": "ArrayPairs", **files} if hold_out else None,
    }
