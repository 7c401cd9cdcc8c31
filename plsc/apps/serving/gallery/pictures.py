"""Embed the pictures of people, and list those that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plsc.apps.serving.gallery.quality import STRETCHED
from plsc.data.arrays import open_npy
from plsc.data.folder import EXTENSIONS, nested_hint, read_folder
from plsc.data.images import CHANNELS, decode_pixels, read_file, to_sample
from plsc.data.preprocessing import Preprocessing, check_sample
from plsc.errors import UserError, shown
from plsc.utils.bar import Bar
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

Picture = str | np.ndarray
"""The path of a picture, or a sample as the network takes it."""

_BATCH = 256


class LeftOut(NamedTuple):
    """A picture that is not in the gallery, and why."""

    name: str
    reason: str


def people_of(folder: str) -> dict[str, list[str]]:
    """List the pictures of a folder that has a folder for each person, or .npy files of samples: name ->
    paths. UserError for an empty one."""
    paths, labels, names = read_folder(folder, (*EXTENSIONS, ".npy"))
    if hint := nested_hint(folder, paths):
        get_logger().warning(f"{shown(folder)}: {hint}")
    people: dict[str, list[str]] = {name: [] for name in names}
    for label, path in zip(labels.tolist(), paths):
        people[names[label]].append(path)
    return people


def embed_pictures(
    embedder: Any, pictures: Sequence[Picture], owners: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[LeftOut]]:
    """Embed pictures: embeddings float32 [n, D] of those that can be used, which ones these are int64 [n],
    and the others.

    owners: the name of the person of each picture, for the list of the others.
    """
    embeddings = np.empty((len(pictures), embedder.embedding_size), np.float32)
    kept: list[int] = []
    others: list[LeftOut] = []
    stretched: list[str] = []
    read = partial(_read, preprocessing=embedder.preprocessing)
    bar = Bar("embedding", len(pictures), "pictures")
    with ThreadPoolExecutor(thread_name_prefix="plsc-pictures") as pool, bar:
        for start in range(0, len(pictures), _BATCH):
            samples, notes = zip(*pool.map(read, pictures[start : start + _BATCH]))
            stretched += filter(None, notes)
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
    if stretched:
        height, width = embedder.preprocessing.size
        get_logger().warning(
            f"stretched to the network's {width} x {height} pixels: {len(stretched):,} of {counted(len(pictures), 'picture')}, "
            f"such as {stretched[0]}; if they are photos of people, align them first (plsc align)"
        )
    return embeddings[: len(kept)], np.array(kept, np.int64), others


def _read(picture: Picture, preprocessing: Preprocessing) -> tuple[np.ndarray | UserError, str]:
    """Read a picture: uint8 [C, H, W], or why it cannot be read; and its name and size if it was stretched
    much, else ""."""
    try:
        if isinstance(picture, np.ndarray):
            sample = check_sample(picture, preprocessing.shape, preprocessing.dtype, lambda: "an array")
            return sample, ""
        path = str(picture)
        if preprocessing.channels not in CHANNELS:
            array = np.array(open_npy(path))
            return check_sample(array, preprocessing.shape, preprocessing.dtype, lambda: shown(path)), ""
        pixels = decode_pixels(read_file(path), preprocessing.channels == "grey", lambda: path)
    except UserError as error:
        return error, ""
    height, width = preprocessing.size
    ratio = pixels.shape[1] * height / (pixels.shape[0] * width)
    much = max(ratio, 1 / ratio) > STRETCHED
    note = f"{shown(picture)} ({pixels.shape[1]} x {pixels.shape[0]})" if much else ""
    return to_sample(pixels, preprocessing), note


def _no_embedding(picture: Picture) -> str:
    what = "an array" if isinstance(picture, np.ndarray) else shown(picture)
    return f"{what}: has an embedding of zeros, or one that is not finite; is it black?"
