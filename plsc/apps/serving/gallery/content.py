"""Make the content of a gallery: embed the pictures of people, and sum the embeddings of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plsc.apps.serving.gallery import files
from plsc.apps.serving.gallery.pictures import LeftOut, Picture, embed_pictures
from plsc.apps.serving.gallery.quality import Review, review_people
from plsc.apps.serving.gallery.rows import Rows, sums
from plsc.apps.serving.gallery.strangers import FPIR, MOST_PICTURES, held_out, measure
from plsc.errors import UserError, shown
from plsc.evaluation.strangers import one_of_everybody_first
from plsc.utils.logging import get_logger
from plsc.utils.text import last_part
from plsc.utils.vectors import unit_rows


def header_of(embedder: Any, template: str, generation: int) -> files.Header:
    """Describe a gallery of an embedder's embeddings. template: see `Gallery.build`."""
    return files.Header(
        generation=generation,
        network=embedder.network,
        described=shown(embedder.described),
        compatible_with=embedder.compatible_with,
        origin=embedder.origin,
        flip=embedder.flip,
        preprocessing=embedder.preprocessing.to_json(),
        embedding_size=embedder.embedding_size,
        template=template,
        pair_threshold=embedder.threshold,
        calibration=embedder.calibration and embedder.calibration.to_json(),
    )


def unit(embeddings: np.ndarray, header: files.Header) -> np.ndarray:
    """Return embeddings float32 [n, D] at length 1. UserError for another size, and for zeros."""
    embeddings = np.atleast_2d(np.asarray(embeddings, np.float32))
    if embeddings.ndim != 2 or embeddings.shape[1] != header.embedding_size:
        raise UserError(
            f"embeddings: must be float32 [n, {header.embedding_size}], got {list(embeddings.shape)}"
        )
    lengths = np.linalg.norm(embeddings, axis=1)
    if not np.isfinite(lengths).all() or (lengths == 0).any():
        raise UserError("embeddings: must be finite and not all zeros; is the picture black?")
    near = np.abs(lengths - 1).max(initial=0) < 1e-6
    return embeddings if near else unit_rows(embeddings, lengths)


def measured(header: files.Header, content: files.Content, others: str, fpir: float = FPIR) -> files.Header:
    """Return the header with a threshold that is measured on the content. others: whose `content.pictures.others` are."""
    rows = Rows(content.embeddings, content.owners, content.lengths)
    found = measure(rows, content.pictures, len(content.names), others, fpir)
    threshold, how = found or (None, None)
    return header.model_copy(update={"threshold": threshold, "measured": how, "others": others})


def embed_people(
    embedder: Any, people: Mapping[str, Sequence[Picture]], template: str, review: Review = "off"
) -> tuple[files.Content, list[LeftOut]]:
    """Embed all pictures of all people; those of whom no picture can be used are not in the content."""
    names = [*people]
    pictures = [picture for name in names for picture in people[name]]
    owners = np.repeat(np.arange(len(names)), [len(people[name]) for name in names])
    embeddings, kept, left_out = embed_pictures(
        embedder, pictures, [names[owner] for owner in owners.tolist()]
    )
    if review != "off" and len(kept):
        judged = [pictures[number] for number in kept.tolist()]
        why = review_people(embedder, names, judged, owners[kept], embeddings, review)
        left_out += [LeftOut(names[owners[kept[place]]], reason) for place, reason in why.items()]
        accepted = np.array([place not in why for place in range(len(kept))], bool)
        embeddings, kept = embeddings[accepted], kept[accepted]
    for each in left_out:
        get_logger().warning(f"left out: {each.reason}")
    present, numbers = np.unique(owners[kept], return_inverse=True)
    sources: list[list[str]] = [[] for _ in present]
    for number, picture in zip(numbers.tolist(), kept.tolist()):
        if not isinstance(pictures[picture], np.ndarray):
            sources[number].append(os.path.abspath(pictures[picture]))
    used = [names[number] for number in present.tolist()]
    return content_of(embedder, used, sources, embeddings, numbers, template), left_out


def content_of(
    embedder: Any,
    names: list[str],
    sources: list[list[str]],
    embeddings: np.ndarray,
    owners: np.ndarray,
    template: str,
) -> files.Content:
    """Make the rows of people, and keep pictures to measure the threshold by.

    embeddings: float32 [N, D] of length 1, a person's one after the other; owners: int64 [N].
    """
    trained = embedder.trained_on()
    unseen = np.array([last_part(name) not in trained for name in names], bool)
    usable = np.flatnonzero(unseen[owners])
    chosen = usable[one_of_everybody_first(owners[usable], MOST_PICTURES)]
    pictures = files.Pictures(
        embeddings[chosen], owners[chosen].astype(np.int64), *held_out(embedder, names, embeddings)
    )
    if template == "mean" and len(names):
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        embeddings, lengths = sums(embeddings, starts)
        owners = np.arange(len(names))
    else:
        lengths = np.ones(len(embeddings), np.float32)
    return files.Content(names, sources, embeddings, owners.astype(np.int64, copy=False), lengths, pictures)
