"""Embed the pictures of people, and list those that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Union

import numpy as np

from plsc.data.folder import read_folder
from plsc.data.images import CHANNELS, load_image
from plsc.data.preprocessing import Preprocessing, check_sample
from plsc.errors import UserError, shown
from plsc.utils.bar import Bar

Picture = Union[str, np.ndarray]
"""The path of a picture, or a sample as the network takes it."""

_BATCH = 256


class LeftOut(NamedTuple):
    """A picture that is not in the gallery, and why."""

    name: str
    reason: str


def people_of(folder: str) -> dict[str, list[str]]:
    """List the pictures of a folder that has a folder for each person: name -> paths. UserError for an empty one."""
    paths, labels, names = read_folder(folder)
    people: dict[str, list[str]] = {name: [] for name in names}
    for label, path in zip(labels.tolist(), paths):
        people[names[label]].append(path)
    return people


def embed_pictures(
    embedder: Any, pictures: Sequence[Picture], owners: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[LeftOut]]:
    """Embed pictures: embeddings float32 [n, D] of those that can be used, which ones these are int64 [n], and the others.

    owners: the name of the person of each picture, for the list of the others.
    """
    embeddings = np.empty((len(pictures), embedder.embedding_size), np.float32)
    kept: list[int] = []
    others: list[LeftOut] = []
    read = partial(_read, preprocessing=embedder.preprocessing)
    bar = Bar("embedding", len(pictures), "pictures")
    with ThreadPoolExecutor(thread_name_prefix="plsc-pictures") as pool, bar:
        for start in range(0, len(pictures), _BATCH):
            samples = [*pool.map(read, pictures[start : start + _BATCH])]
            bar.update(len(samples))
            good = [number for number, sample in enumerate(samples, start) if isinstance(sample, np.ndarray)]
            others += [
                LeftOut(owners[number], str(sample))
                for number, sample in enumerate(samples, start)
                if not isinstance(sample, np.ndarray)
            ]
            if not good:
                continue
            made = embedder.embed(np.stack([samples[number - start] for number in good]))
            for number, embedding in zip(good, made):
                if np.isfinite(embedding).all() and embedding.any():
                    embeddings[len(kept)] = embedding
                    kept.append(number)
                else:
                    others.append(LeftOut(owners[number], _no_embedding(pictures[number])))
    return embeddings[: len(kept)], np.array(kept, np.int64), others


def _read(picture: Picture, preprocessing: Preprocessing) -> np.ndarray | UserError:
    """Read a picture: uint8 [C, H, W]; or return why it cannot be read."""
    if isinstance(picture, np.ndarray):
        try:
            return check_sample(picture, preprocessing.shape, preprocessing.dtype, lambda: "an array")
        except UserError as error:
            return error
    if preprocessing.channels not in CHANNELS:
        return UserError(
            f"{shown(picture)}: the network takes samples {preprocessing.samples}, no pictures in files"
        )
    try:
        return load_image(str(picture), preprocessing)
    except UserError as error:
        return error


def _no_embedding(picture: Picture) -> str:
    what = "an array" if isinstance(picture, np.ndarray) else shown(picture)
    return f"{what}: has an embedding of zeros, or one that is not finite; is it black?"
