"""Make what a gallery's store is filled with: embeddings of people's pictures, and where each picture came
from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plsc.apps.serving.gallery.pictures import LeftOut, Picture, embed_pictures
from plsc.apps.serving.gallery.quality import Look, Review, is_aligned, review_people
from plsc.apps.serving.gallery.store import Addition, Source
from plsc.errors import UserError
from plsc.utils.files import sha256_of
from plsc.utils.logging import get_logger
from plsc.utils.text import last_part
from plsc.utils.vectors import unit_rows


def unit(embeddings: np.ndarray, size: int) -> np.ndarray:
    """Return embeddings float32 [n, D] at length 1. UserError for another size than D = `size`, and for
    zeros."""
    embeddings = np.atleast_2d(np.asarray(embeddings, np.float32))
    if embeddings.ndim != 2 or embeddings.shape[1] != size:
        raise UserError(f"embeddings: must be float32 [n, {size}], got {list(embeddings.shape)}")
    lengths = np.linalg.norm(embeddings, axis=1)
    if not np.isfinite(lengths).all() or (lengths == 0).any():
        raise UserError("embeddings: must be finite and not all zeros; is the picture black?")
    near = np.abs(lengths - 1).max(initial=0) < 1e-6
    return embeddings if near else unit_rows(embeddings, lengths)


def source_of(picture: Picture, look: Look | None = None) -> Source:
    """Say where a picture came from, and what its pixels say."""
    if isinstance(picture, np.ndarray):
        return Source()
    path, digest = os.path.abspath(picture), sha256_of(picture)
    return Source(path, digest, look._asdict(), is_aligned(look)) if look else Source(path, digest)


def embed_people(
    embedder: Any, people: Mapping[str, Sequence[Picture]], collection: str = "", review: Review = "off"
) -> tuple[list[Addition], list[LeftOut]]:
    """Embed all pictures of all people; those of whom no picture can be used are left out.

    review: which pictures are refused, see plsc.apps.serving.gallery.quality.
    """
    names = [*people]
    pictures = [picture for name in names for picture in people[name]]
    owners = np.repeat(np.arange(len(names)), [len(people[name]) for name in names])
    vectors, kept, left_out = embed_pictures(embedder, pictures, [names[owner] for owner in owners.tolist()])
    looks: list[Look | None] = [None] * len(kept)
    if review != "off" and len(kept):
        judged = [pictures[number] for number in kept.tolist()]
        looks, why = review_people(embedder, names, judged, owners[kept], vectors, review)
        left_out += [LeftOut(names[owners[kept[place]]], reason) for place, reason in why.items()]
        accepted = [place for place in range(len(kept)) if place not in why]
        vectors, kept, looks = vectors[accepted], kept[accepted], [looks[place] for place in accepted]
    for each in left_out:
        get_logger().warning(f"left out: {each.reason}")
    sources = [source_of(pictures[picture], look) for picture, look in zip(kept.tolist(), looks)]
    return additions_of(embedder, names, vectors, owners[kept], sources, collection), left_out


def additions_of(
    embedder: Any,
    names: Sequence[str],
    vectors: np.ndarray,
    owners: np.ndarray,
    sources: Sequence[Source] = (),
    collection: str = "",
) -> list[Addition]:
    """Divide embeddings by people.

    vectors: float32 [N, D] of length 1; owners: int64 [N], never decreasing: the number of the name of each.
    """
    trained = embedder.trained_on()
    starts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    return [
        Addition(
            names[owners[start]],
            vectors[start:stop],
            sources[start:stop],
            measures=last_part(names[owners[start]]) not in trained,
            collection=collection,
        )
        for start, stop in zip(starts, [*starts[1:], len(owners)])
    ]
