"""Define what a gallery knows of itself: its network, its threshold, and how both came to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError

from plsc.checkpoint.manifest import Preprocessing as PreprocessingFields
from plsc.errors import UserError, shown
from plsc.utils.calibration import Calibration
from plsc.utils.messages import first_problem
from plsc.utils.version import __version__


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Mapped(_Fields):
    """How embeddings came from another network by a map; see plsc.apps.serving.gallery.mapping."""

    network: str
    """Identity of the network that had made the embeddings."""
    described: str
    pictures: PositiveInt
    """That the map was fitted on."""
    people: PositiveInt
    """Whom they show."""
    penalty: FiniteFloat
    """Of the ridge regression."""
    cosine: FiniteFloat
    """Between a mapped embedding and the new network's of the same picture: the mean over people that the map
    was not fitted on."""


class Measured(_Fields):
    """How the threshold of a search was measured; see plsc.apps.serving.gallery.strangers."""

    fpir: FiniteFloat
    """The share of strangers' searches that gives a name."""
    low: FiniteFloat
    """95 % of tests with a thousand strangers find it between these."""
    high: FiniteFloat
    by: str
    """Whose pictures were searched."""
    pictures: PositiveInt
    people: PositiveInt
    size: PositiveInt
    """People in the gallery at that time."""


class Facts(_Fields):
    """The facts of a gallery; its store keeps each under its name, as JSON."""

    plsc: str = __version__
    """Version of plsc that built it."""
    network: str
    """Identity of the network, see `Checkpoint.network`."""
    described: str
    """Where the network was from, for messages."""
    origin: dict[str, Any] | None = None
    """How to open the network again, see plsc.apps.serving.embedder.from_origin; null: not known."""
    flip: bool
    preprocessing: PreprocessingFields
    embedding_size: PositiveInt
    template: Literal["mean", "images"]
    """One row for each person, or one for each picture."""
    threshold: FiniteFloat | None = None
    """Of a search; null: not known."""
    measured: Measured | None = None
    """How; null: the threshold is not known, or was set by hand."""
    others: str = ""
    """Whose pictures the strangers' are."""
    pair_threshold: FiniteFloat | None = None
    """The checkpoint's: two pictures with a higher cosine show the same person."""
    calibration: Calibration | None = None
    mapped: Mapped | None = None
    """How the embeddings came from another network without pictures; null: they are the network's own."""

    @property
    def name(self) -> str:
        """The network, for messages."""
        return name_of_network(self)


def read_facts(texts: Mapping[str, str], place: str) -> Facts:
    """Read the facts of a gallery, each of which is JSON. UserError for a damaged one. place: the gallery's
    name, for messages."""
    try:
        return Facts.model_validate_json(
            "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in texts.items()) + "}"
        )
    except ValidationError as error:
        key, message = first_problem(error)
        raise UserError(
            f"{place}: its fact '{shown(key)}' is damaged ({shown(message)}); restore a backup, or build it again"
        ) from error


def facts_of(embedder: Any, template: str) -> Facts:
    """Describe a gallery of an embedder's embeddings. template: see `Gallery.build`."""
    return Facts(
        network=embedder.network,
        described=shown(embedder.described),
        origin=embedder.origin,
        flip=embedder.flip,
        preprocessing=embedder.preprocessing.to_json(),
        embedding_size=embedder.embedding_size,
        template=template,
        pair_threshold=embedder.threshold,
        calibration=embedder.calibration,
    )


def name_of_network(of: Any) -> str:
    """Name the network of facts, or of an embedder, for messages."""
    return f"{shown(of.described)} ({shown(of.network[:12])})"


def refuse_other_network(ours: Facts, place: str, embedder: Any) -> None:
    """Refuse by UserError an embedder whose embeddings cannot be compared with those of a gallery; see
    `Gallery.check`.

    place: the gallery's name, for messages.
    """
    if embedder.network != ours.network:
        raise UserError(
            f"{place}: its embeddings are of the network {ours.name}, these are of {name_of_network(embedder)}, and cannot "
            "be compared; use that network, or plsc gallery upgrade"
        )
    theirs = embedder.preprocessing.aligned
    if None not in (ours.preprocessing.aligned, theirs) and ours.preprocessing.aligned != theirs:
        aligned = {True: "of aligned faces", False: "of pictures that are not aligned"}
        raise UserError(
            f"{place}: its embeddings ({ours.name}) are {aligned[not theirs]}, those of {name_of_network(embedder)} are "
            f"{aligned[theirs]}, and cannot be compared; use that network, or plsc gallery upgrade"
        )
    if embedder.flip != ours.flip:
        kinds = {True: "of image and mirror image together", False: "of the image alone"}
        raise UserError(
            f"{place}: its embeddings ({ours.name}) are {kinds[ours.flip]}, those of {name_of_network(embedder)} are "
            f"{kinds[embedder.flip]}, and cannot be compared; set DataLoader.Eval.flip={str(ours.flip).lower()}, or upgrade"
        )
