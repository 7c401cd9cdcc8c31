"""Define the gallery: names, embeddings, and the network that computed them.

Try it with `Gallery`'s example.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import zip_longest
from numbers import Integral
from typing import Any, Literal

import numpy as np

from plsc.apps.faces.photos import Picture, as_pictures, picture_name, several_faces
from plsc.apps.gallery.answer import Answer, Face, Match, Verification
from plsc.apps.gallery.embed import EmbeddingNetwork, PreparedPicture, last_part, open_network
from plsc.apps.gallery.milvus import MilvusStore
from plsc.apps.gallery.store import SqliteStore
from plsc.data.folder import read_folder
from plsc.errors import UserError, escape
from plsc.evaluation.gallery_threshold import RATE, GalleryThreshold, measure
from plsc.utils.logging import get_logger, log_skipped, warn_once
from plsc.utils.text import plural

_LONGEST_NAME = 200  # characters
_NAME_ITS_NETWORK = "name the gallery's network (-c or --network, in Python network=...)"
_EQUAL = 1 - 1e-5  # cosine above which pictures are equal, with an allowance for rounding errors
Embedded = tuple[Picture, np.ndarray]
"""A picture and its embedding, float32 [D]."""


class Gallery:
    """Known people and their embeddings in a file. `Gallery.build` makes one, `Gallery.open` opens one.

        Gallery.build("people.gallery", "photos/")
        (answer,) = Gallery.open("people.gallery").search(["who.jpg"])
        print(answer.name or answer.reason)

    A change is on the disk when the call returns. All other objects and processes use it in their next
    answer. Threads may share an object. Pictures are paths, files' bytes, arrays uint8 [H, W, 3] in OpenCV's
    order BGR, or Pillow images. The network is opened when it is first needed. `len` counts the people, and
    iterating yields their names.

    Raises MissingFileError if there is no gallery, and UserError if it cannot be used.

    Attributes:
        left_out: a line for each picture that `build` skipped, with the reason.
    """

    def __init__(self, path: str | os.PathLike, network: EmbeddingNetwork | str | None = None):
        """Open a gallery. The arguments are `Gallery.open`'s."""
        self.left_out: list[str] = []
        self._store = _engine(path).open(path)
        self._network = None
        if network is not None:
            self._network = open_network(network)
            self._check(self._network)

    def __repr__(self) -> str:
        with contextlib.suppress(UserError):  # the file may be missing or damaged
            return f"<Gallery {self._store.name}: {plural(len(self), 'person', 'people')}>"
        return f"<Gallery {self._store.name}>"

    @classmethod
    def open(cls, path: str | os.PathLike, network: EmbeddingNetwork | str | None = None) -> Gallery:
        """Open a gallery.

        Args:
            path: the file, or milvus://host:port/name.
            network: the network that the gallery was built with. Needed only if the network has moved.

        Raises MissingFileError if there is no gallery. Raises UserError if the file is not a gallery, or if
        the network is another one.
        """
        return cls(path, network)

    @classmethod
    def build(
        cls,
        path: str | os.PathLike,
        people: str | os.PathLike | Mapping[str, Picture | Iterable[Picture]],
        network: EmbeddingNetwork | str | None = None,
        rate: float = RATE,
        groups: bool = False,
    ) -> Gallery:
        """Make a gallery.

        Args:
            path: the new file, or milvus://host:port/name.
            people: a folder that contains a folder with pictures for each person, or a mapping from names to
                pictures.
            network: the network, as for plsc.apps.gallery.embed.open_network. None means SFace.
            rate: the accepted share of strangers who are named, between 0 and 0.5. See
                plsc.evaluation.gallery_threshold.
            groups: whether to use the largest face of photos whose second largest face is nearly as large. By
                default these photos are skipped, because it is unclear whom they show.

        A picture is skipped if it cannot be used, or if it equals another picture of the same person.
        Each skipped picture is logged and listed in `left_out`.

        Raises UserError if `path` exists, or if no picture can be used.
        """
        engine = _engine(path)
        engine.check_new(path)
        if not 0 < rate < 0.5:
            raise UserError(f"rate: must be between 0 and 0.5, got {rate:g}")
        named: dict[str, list[Picture]] = {}
        if isinstance(people, Mapping):
            given = people.items()
        else:
            warn_once.cache_clear()  # each build reports what it skips
            paths, labels, names = read_folder(os.fspath(people))
            given = ((names[label], path) for label, path in zip(labels.tolist(), paths))
        for name, pictures in given:
            named.setdefault(normalize_name(name), []).extend(as_pictures(pictures))
        network = open_network(network)
        stored, left_out = _embed_people(network, named, groups)
        if not stored:
            raise UserError(f"{escape(path)}: not written, since no picture can be used")
        trained = network.trained_on()

        def fill(store: Any) -> None:
            for name, embedded in stored.items():
                left_out.extend(_enroll(store, name, embedded, last_part(name) not in trained))
            store.set_facts(network=network.identity, title=network.title, origin=network.origin)
            store.set_facts(threshold=asdict(GalleryThreshold(rate, prior=network.pair_threshold)))
            _measure(store)

        engine.create(path, fill).close()
        gallery = cls(path, network)
        gallery.left_out = left_out
        return gallery

    def __len__(self) -> int:
        """Count the people."""
        return len(self._store)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the people's names."""
        return iter(self._store.people())

    def close(self) -> None:
        """Free the store's memory, or close its connection to Milvus."""
        self._store.close()

    @property
    def people(self) -> dict[str, int]:
        """Each person's picture count, by name."""
        return self._store.people()

    @property
    def pictures(self) -> int:
        """How many pictures the gallery contains."""
        return sum(self.people.values())

    def pictures_of(self, name: str) -> list[str]:
        """Return a person's picture names. Raises UserError if nobody has this name."""
        names, _ = self._store.pictures(normalize_name(name))
        if not names:
            raise UserError(f"{self._store.name}: has nobody called {escape(name)}")
        return names

    @property
    def threshold(self) -> GalleryThreshold:
        """The cosine above which the nearest person is named, with the measured rates."""
        return GalleryThreshold(**self._store.facts()["threshold"])

    @property
    def network(self) -> EmbeddingNetwork:
        """The gallery's network. It is opened at the first access."""
        if self._network is None:
            try:
                network = open_network(**self._store.facts()["origin"])
            except UserError as error:
                raise UserError(f"{self._store.name}: {error}; {_NAME_ITS_NETWORK}") from None
            self._check(network)
            self._network = network
        return self._network

    def _check(self, network: EmbeddingNetwork, facts: Mapping[str, Any] | None = None) -> None:
        """Raise UserError if a network is not the gallery's.

        Args:
            network: the network to check.
            facts: the store's facts. If None, they are read.
        """
        facts = facts or self._store.facts()
        if network.identity != facts["network"]:
            raise UserError(
                f"{self._store.name}: its embeddings come from {escape(facts['title'])}, and "
                f"{network.title} is another network; {_NAME_ITS_NETWORK}, or build the gallery again"
            )

    def add(self, name: str, pictures: Picture | Iterable[Picture], groups: bool = False) -> list[str]:
        """Add a person's pictures.

        Args:
            name: the person's name, new or known.
            pictures: one picture or several.
            groups: as for `build`.

        Returns a line for each skipped picture: it cannot be used, or the person has an equal picture.

        Raises UserError if no picture can be used.
        """
        name = normalize_name(name)
        network = self.network
        pictures = as_pictures(pictures)
        if not pictures:
            raise UserError(f"{escape(name)}: nothing was added, since no picture was given")
        stored, left_out = _embed_people(network, {name: pictures}, groups)
        if not stored:
            raise UserError(f"{escape(name)}: nothing was added: {'; '.join(left_out)}")
        with self._store.transaction():
            self._check(network)
            left_out += _enroll(self._store, name, stored[name], last_part(name) not in network.trained_on())
            _measure(self._store)
        return left_out

    def remove(self, *names: str) -> None:
        """Remove people with all their pictures, or single pictures.

        Args:
            names: "Ann" removes a person, "Ann/3.jpg" removes a picture. A person is removed with the last
                picture.

        Raises UserError if a person or picture does not exist. In this case nothing is removed.
        """
        with self._store.transaction():
            for name in (unicodedata.normalize("NFC", name) for name in names):
                person, _, picture = name.rpartition("/")
                if not (self._store.remove(name) or (person and self._store.remove(person, picture))):
                    what = "no person or picture" if person else "nobody called"
                    raise UserError(f"{self._store.name}: has {what} {escape(name)}; nothing was changed")
            _measure(self._store)

    def search(
        self,
        pictures: Picture | Iterable[Picture],
        top: int = 5,
        faces: Literal["largest", "all"] = "largest",
    ) -> list[Answer]:
        """Find the people in each picture.

        Args:
            pictures: one picture or several. An array must be uint8 [H, W, 3] in OpenCV's order BGR.
            top: most matches in an answer.
            faces: which faces to look up: the largest of each picture, or all.

        Returns an answer for each picture. If a picture cannot be read or has no face, its answer has a
        reason, but no name and no matches. The reason is also logged.
        """
        if faces not in ("largest", "all"):
            raise UserError(f"search: faces must be 'largest' or 'all' (got {escape(repr(faces))})")
        _check_top(top)
        pictures = as_pictures(pictures)
        embedded = self.network.embed_pictures(pictures, faces)
        log_skipped(prepared.left_out for prepared in embedded if prepared.left_out)
        return [
            Answer(None, [], prepared.left_out.removeprefix(f"{escape(picture_name(picture))}: "))
            if prepared.left_out
            else _answer(self.nearest(prepared.embeddings, top), prepared)
            for picture, prepared in zip(pictures, embedded)
        ]

    def nearest(self, embeddings: np.ndarray, top: int = 5) -> list[Face]:
        """Find the person whom each embedding shows.

        Args:
            embeddings: faces' unit embeddings, float32 [n, D].
            top: most matches for a face.

        Returns a face without box for each embedding.
        """
        _check_top(top)
        facts = self._store.facts()
        if self._network is not None:
            self._check(self._network, facts)  # another file may have replaced the gallery's file
        threshold = GalleryThreshold(**facts["threshold"])
        return [
            _decide([Match(name, min(cosine, 1.0)) for name, cosine in matches], threshold)
            for matches in self._store.search(embeddings, top)
        ]


def _check_top(top: int) -> None:
    if not isinstance(top, Integral) or top < 1:
        raise UserError(
            f"search: top, the most matches of an answer, must be 1 or more (got {escape(repr(top))})"
        )


def verify(a: Picture, b: Picture, network: EmbeddingNetwork | str | None = None) -> Verification:
    """Tell whether two pictures show the same person. Each picture's largest face is compared.

    Args:
        a: a picture.
        b: another picture.
        network: the network, as for plsc.apps.gallery.embed.open_network. None means SFace.

    Raises UserError if a picture cannot be read or has no face, or if the network has no threshold.
    """
    network = open_network(network)
    if network.pair_threshold is None:
        raise UserError(
            f"{network.title}: has no threshold for two pictures; evaluate the run on pairs first"
        )
    embedded = network.embed_pictures([a, b])
    for prepared in embedded:
        if prepared.left_out:
            raise UserError(prepared.left_out)
    first, second = (prepared.embeddings[0] for prepared in embedded)
    similarity = min(float(first @ second), 1.0)
    return Verification(similarity > network.pair_threshold, similarity, network.pair_threshold)


def _decide(matches: list[Match], threshold: GalleryThreshold) -> Face:
    """Decide whether to name the nearest person, who is the first match. If not, give the reason."""
    cosine = threshold.cosine
    if not matches:
        return Face(None, [], "the gallery is empty", cosine)
    name, similarity = matches[0]
    if cosine is not None and similarity > cosine:
        return Face(name, matches, "", cosine)
    reason = f"nearest {name}, similarity {similarity:.2f}, "
    if cosine is None:
        reason += "no threshold is known"
    else:
        reason += f"threshold {cosine:.2f}"
        if threshold.prior is not None and similarity > threshold.prior:  # enough for two pictures
            others = plural(threshold.size, "person", "people")
            reason += f", higher than for two pictures, since a stranger may resemble any of {others}"
    return Face(None, matches, reason, cosine)


def _answer(answers: list[Face], prepared: PreparedPicture) -> Answer:
    """Make a picture's answer from those for the faces that were looked up, which are its largest ones."""
    unknown = Face(None, [], "was not looked up")
    faces = [
        replace(answer or unknown, box=face.box)
        for answer, face in zip_longest(answers, prepared.faces)
        if face
    ]
    largest = faces[0] if faces else answers[0]
    return Answer(*(getattr(largest, each.name) for each in fields(Face)), faces)


def normalize_name(name: str) -> str:
    """Return a person's name in the form that galleries store: Unicode NFC, letters combined with their
    accents.

    File systems and keyboards use either form. Raises UserError if the name is empty, too long, not
    printable, or has a space at an end.
    """
    name = unicodedata.normalize("NFC", name)
    if not name or not name.isprintable() or name != name.strip() or len(name) > _LONGEST_NAME:
        rule = f"a name must have 1 to {_LONGEST_NAME} visible characters, and no space at its ends"
        raise UserError(f"'{escape(name)}': {rule}")
    return name


def _embed_people(
    network: EmbeddingNetwork, people: Mapping[str, Sequence[Picture]], groups: bool
) -> tuple[dict[str, list[Embedded]], list[str]]:
    """Embed the pictures of `people`, with `groups` as for `Gallery.build`.

    Returns the embedded pictures by person, and a line for each picture that cannot be used. The lines are
    also logged.
    """
    given = [(name, picture) for name, pictures in people.items() for picture in pictures]
    embedded = network.embed_pictures([picture for _, picture in given], "largest" if groups else "clear")
    stored: dict[str, list[Embedded]] = {}
    for (name, picture), prepared in zip(given, embedded):
        if not prepared.left_out:
            stored.setdefault(name, []).append((picture, prepared.embeddings[0]))
            if len(prepared.faces) > 1:
                count = several_faces(prepared.faces)
                get_logger().info(f"{escape(picture_name(picture))}: {count}; the largest is {escape(name)}")
    return stored, log_skipped(prepared.left_out for prepared in embedded if prepared.left_out)


def _enroll(store: Any, name: str, embedded: Sequence[Embedded], measures: bool) -> list[str]:
    """Add a person's pictures to a store in a transaction. `measures` is as for the store's `add`.

    A picture that is equal to another one of the person is skipped. Returns a line for each skipped picture.
    The lines are also logged.
    """
    names, known = store.pictures(name)
    vectors = np.empty((len(known) + len(embedded), len(embedded[0][1])), np.float32)
    vectors[: len(known)] = known.reshape(len(known), vectors.shape[1])
    lines, first = [], len(known)
    for picture, vector in embedded:
        cosines = vectors[: len(names)] @ vector
        if len(names) and cosines.max() > _EQUAL:
            equal = escape(f"{name}/{names[int(cosines.argmax())]}")
            lines.append(f"{escape(picture_name(picture))}: is equal to {equal}, which is stored once")
        else:
            vectors[len(names)] = vector
            names.append(_unused_name(picture, names))
    if len(names) > first:
        store.add(name, names[first:], vectors[first : len(names)], measures)
    return log_skipped(lines)


def _unused_name(picture: Picture, taken: Sequence[str]) -> str:
    """Return a name for a picture after its file: 1.jpg, or 1.jpg (2) if another picture has this name."""
    name = escape(unicodedata.normalize("NFC", os.path.basename(picture_name(picture))))
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _measure(store: Any) -> None:
    """Measure the threshold again and store it, with the pictures that do not count for a person's mean.

    The store must be in a transaction.
    """
    old = GalleryThreshold(**store.facts()["threshold"])
    new = measure(*store.all_pictures(), old.rate, old.prior)
    store.set_misfiled(new.misfiled)
    store.set_facts(threshold=asdict(new))


def _engine(path: str | os.PathLike) -> Any:
    """Choose the class that stores the gallery at a path or URL."""
    return MilvusStore if os.fspath(path).startswith("milvus:") else SqliteStore
