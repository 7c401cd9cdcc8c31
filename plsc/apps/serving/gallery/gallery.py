"""Define the gallery: names, embeddings, and the network that made them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from plsc.apps.serving.gallery import index
from plsc.apps.serving.gallery.content import additions_of, embed_people, source_of, unit
from plsc.apps.serving.gallery.engine import Store, create_store, open_store, refuse_existing
from plsc.apps.serving.gallery.facts import Facts, facts_of, name_of_network, read_facts, refuse_other_network
from plsc.apps.serving.gallery.mapping import FittedMap
from plsc.apps.serving.gallery.names import by_name, composed, name_of
from plsc.apps.serving.gallery.pictures import LeftOut, Picture, embed_pictures
from plsc.apps.serving.gallery.quality import Review
from plsc.apps.serving.gallery.store import Addition, Person, Revision, Source
from plsc.apps.serving.gallery.strangers import (
    FPIR,
    HELD_OUT,
    MOST_PICTURES,
    STRANGERS,
    Strangers,
    held_out,
    measured,
    without_the_same,
)
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError, shown
from plsc.evaluation.strangers import LEAST_PEOPLE, one_of_everybody_first
from plsc.utils.calibration import Calibration
from plsc.utils.logging import get_logger
from plsc.utils.text import counted, last_part

Pictures = str | os.PathLike | np.ndarray | Sequence[str | os.PathLike | np.ndarray]
"""Of one person or several: the path of a picture, or paths; samples as the network takes them; or embeddings float32 [n, D]."""

_MAP_AT_ONCE = 4096  # embeddings


class Match(NamedTuple):
    """A person of the gallery, beside a query."""

    name: str
    similarity: float
    """Cosine, of the nearest picture where each has a row."""
    accepted: bool
    """Whether this is the answer: the nearest person, with a similarity above the threshold."""
    meta: Any = None
    """What was stored with the person, a JSON value."""


class Verification(NamedTuple):
    """Pictures, compared with one person."""

    name: str
    similarity: float
    """Cosine, of the nearest picture where each has a row."""
    probability: float | None
    """P(same) of two pictures with this cosine; None: the gallery has no calibration."""
    accepted: bool
    """Whether the similarity is above the threshold of pairs."""


class Gallery:
    """Known people and their embeddings, in a file. `Gallery.open` or `Gallery.build` makes one.

        gallery = Gallery.open("people.gallery")
        gallery.search(["who.jpg"])[0][0]

    Each change is on the disk when the call returns, whatever ends the process later, and is in the next
    answer of all other objects and processes. All methods may be called from several threads. Pictures are
    given as `Pictures` says; paths and samples need the network, which is opened when it is needed first.

    Attributes: path; left_out: pictures that `build` or `upgrade` could not use.
    """

    def __init__(self, store: Store, embedder: Any = None, left_out: Sequence[LeftOut] = ()):
        self.path = store.path
        self.left_out = [*left_out]
        self._store = store
        self._embedder = None
        self._mutex = threading.RLock()
        self._revision: Revision | None = None
        self._network: tuple[str, bool] | None = None  # which this object is about
        self.refresh()
        if embedder is not None:
            self.use(embedder)
        self._save_index()

    # -- making and opening one
    # -----------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | os.PathLike, embedder: Any = None) -> Gallery:
        """Open a gallery. Raises MissingFileError, UserError.

        embedder: the gallery's network, a plsc.apps.serving.embedder.Embedder; None: from where it was when
        the gallery was built.
        """
        return cls(open_store(path), embedder)

    @classmethod
    def build(
        cls,
        path: str | os.PathLike,
        embedder: Any,
        people: Mapping[str, Sequence[Picture]],
        template: Literal["mean", "images"] = "mean",
        collection: str = "",
        review: Review = "off",
    ) -> Gallery:
        """Make a gallery in the new file `path`.

        Args:
            embedder: a plsc.apps.serving.embedder.Embedder.
            people: name -> paths of pictures, or samples as the network takes them.
            template: "mean": one row for each person, the sum of the pictures' embeddings at length 1; "images": a row for
                each picture.
            collection: of all these people.
            review: which pictures are refused, see plsc.apps.serving.gallery.quality.

        The threshold is measured on people whom the network was not trained on, see
        plsc.apps.serving.gallery.strangers. Pictures that cannot be used are logged and listed in `left_out`.
        UserError if none can, or the file exists.
        """
        refuse_existing(path)
        additions, left_out = embed_people(embedder, by_name(people), collection, review)
        if not additions:
            why = "there are no pictures"
            if left_out:
                why = f"no picture can be used, the first: {left_out[0].reason}"
            raise UserError(f"{shown(path)}: {why}")
        return cls._create(path, embedder, template, additions, left_out)

    @classmethod
    def from_embeddings(
        cls,
        path: str | os.PathLike,
        embedder: Any,
        names: Sequence[str],
        embeddings: np.ndarray,
        owners: np.ndarray,
        template: Literal["mean", "images"] = "mean",
        collection: str = "",
    ) -> Gallery:
        """Make a gallery of embeddings that are there already.

        Args:
            embedder: what the embeddings are of; see `build` for it and the rest.
            names: of the people, each once.
            embeddings: float32 [N, D].
            owners: int64 [N], never decreasing: the number of the person of each embedding; each has at least one.
        """
        refuse_existing(path)
        owners = np.asarray(owners)
        names = [name_of(name) for name in names]
        numbered = np.array_equal(np.unique(owners), np.arange(len(names))) and not np.any(
            np.diff(owners) < 0
        )
        if len(set(names)) < len(names) or not numbered:
            raise UserError(
                "names: must be different, and owners number them 0, 1, ... in increasing order, none left out"
            )
        vectors = unit(embeddings, embedder.embedding_size)
        additions = additions_of(embedder, names, vectors, owners, collection=collection)
        return cls._create(path, embedder, template, additions)

    @classmethod
    def _create(
        cls,
        path: str | os.PathLike,
        embedder: Any,
        template: str,
        additions: Sequence[Addition],
        left_out: Sequence[LeftOut] = (),
    ) -> Gallery:
        width = embedder.embedding_size
        store = create_store(path, lambda store: _fill(store, embedder, template, additions), width)
        index.remove(index.path_of(store))  # of a gallery that was deleted by hand
        return cls(store, embedder, left_out)

    # -- looking
    # --------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of people."""
        with self._reading():
            return self._index.people

    def __contains__(self, name: object) -> bool:
        """Say whether a person of this name is in it."""
        with self._reading():
            return isinstance(name, str) and self._store.find(composed(name)) is not None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.names())

    def __repr__(self) -> str:
        return f"<Gallery: {counted(len(self), 'person', 'people')} in {shown(self.path)}>"

    def close(self) -> None:
        """Close the file. All that was written is in it then, and nothing beside it but the index of a large
        gallery."""
        self._store.close()

    def names(self) -> list[str]:
        """Return the names of all people, in the order in which they were added."""
        return [person.name for person in self.people()]

    def people(self) -> list[Person]:
        """Return all people, with collection and metadata, in the order in which they were added."""
        with self._reading():
            return [*self._store.people()]

    def sources(self, name: str) -> list[str]:
        """Return the paths of a person's pictures, as they were when they were added. UserError for an
        unknown name."""
        with self._reading():
            sources = self._store.sources([self._person(name).id])
        return [source.path for source in sources if source.path is not None]

    def pictures(self, name: str) -> int:
        """Return how many pictures of a person were added. UserError for an unknown name."""
        with self._reading():
            return len(self._store.sources([self._person(name).id]))

    def some_sources(self, most: int) -> list[Source]:
        """Return where at most so many of its pictures came from, evenly chosen of all."""
        with self._reading():
            ids = self._store.pictures()[0]
            chosen = np.linspace(0, len(ids), min(most, len(ids)), endpoint=False).astype(np.int64)
            return self._store.sources_of(ids[chosen].tolist())

    def sample(self) -> tuple[np.ndarray, list[str]]:
        """Return at most 1,000 pictures of its people whom the network was not trained on: embeddings float32
        [n, D], and whose they are."""
        with self._reading():
            pictures, people = self._store.pictures(measuring=True)
            chosen = np.sort(one_of_everybody_first(people, MOST_PICTURES))
            names = {person.id: person.name for person in self._store.people(set(people[chosen].tolist()))}
            vectors = self._store.vectors(pictures[chosen]).reshape(len(chosen), self._facts.embedding_size)
            return vectors, [names[person] for person in people[chosen].tolist()]

    def enrolled(self) -> tuple[list[str], list[Source], np.ndarray, np.ndarray]:
        """Return the names, and of all pictures where they came from, the numbers of the names int64 [n], and
        embeddings float32 [n, D]."""
        with self._reading():
            people = sorted(self._store.people(), key=lambda person: person.id)
            ids = [person.id for person in people]
            vectors, whose = self._store.embeddings(ids)
            owners = np.searchsorted(np.array(ids, np.int64), whose)
            return [person.name for person in people], self._store.sources(ids), owners, vectors

    @property
    def preprocessing(self) -> Preprocessing:
        """How the network's pictures are prepared."""
        return Preprocessing.from_json(self.facts.preprocessing.model_dump())

    @property
    def facts(self) -> Facts:
        """What the gallery knows of itself."""
        with self._reading():
            return self._facts

    @property
    def revision(self) -> Revision | None:
        """The state that it is in; after each change, whoever made it, it is another one."""
        with self._reading():
            return self._revision

    @property
    def rows(self) -> int:
        """The number of embeddings that are compared."""
        with self._reading():
            return len(self._index)

    @property
    def threshold(self) -> float | None:
        """The cosine above which the nearest person of a search is accepted; None: too few people to measure
        it."""
        return self.facts.threshold

    @property
    def pair_threshold(self) -> float | None:
        """The checkpoint's cosine above which two pictures show the same person; None: it had none."""
        return self.facts.pair_threshold

    @property
    def calibration(self) -> Calibration | None:
        """What a cosine means; None: the network had no calibration."""
        return self.facts.calibration

    @property
    def origin(self) -> dict[str, Any]:
        """How its network is opened, see plsc.apps.serving.embedder.from_origin. UserError where it is not
        known."""
        origin = self.facts.origin
        if origin is None:
            raise UserError(
                f"{shown(self.path)}: does not say where its network is; name its run with -c, or --export"
            )
        return origin

    @property
    def embedder(self) -> Any:
        """The gallery's network, which is opened when it is asked for first. UserError where it cannot be
        found."""
        if self._embedder is None:
            from plsc.apps.serving.embedder import from_origin

            origin = self.origin
            try:
                found = from_origin(origin, self._facts.network)
            except UserError as error:
                raise UserError(
                    f"{error}; it is the network of {shown(self.path)}: name where it is now with -c, or --export"
                ) from None
            self.use(found)
        return self._embedder

    def use(self, embedder: Any) -> None:
        """Embed pictures by this embedder from now on. UserError where its embeddings cannot be compared with
        the gallery's."""
        self.check(embedder)
        self._embedder = embedder

    def check(self, embedder: Any) -> None:
        """Refuse by UserError embeddings that cannot be compared with these: of another network, unless one
        of the two was trained to be compatible with the other, or with mirror images where these are
        without."""
        refuse_other_network(self._facts, shown(self.path), embedder)

    def describe_other(self, embedder: Any) -> str:
        """Say in a line that `embedder`, which `check` accepts, has another network; "" for the same one."""
        if embedder.network == self._facts.network:
            return ""
        return (
            f"{shown(self.path)}: its embeddings are of the network {self._facts.name}, these of {name_of_network(embedder)}; one was trained "
            "to be compatible with the other. The threshold is of the gallery's network: measure it with plsc gallery evaluate"
        )

    def embed(self, pictures: Pictures) -> np.ndarray:
        """Return the embeddings of pictures float32 [n, D] at length 1. UserError where one of them cannot be
        used."""
        if isinstance(pictures, (str, os.PathLike)):
            pictures = [pictures]
        if len(pictures) and isinstance(pictures[0], (str, os.PathLike)):
            samples = [os.fspath(path) for path in pictures]
        else:
            array = np.asarray(pictures)
            if array.dtype.kind == "f" and array.ndim <= 2:
                return unit(array, self._facts.embedding_size)
            samples = [*array] if array.ndim > len(self.embedder.preprocessing.shape) else [array]
        names = [path if isinstance(path, str) else "an array" for path in samples]
        embeddings, _, unusable = embed_pictures(self.embedder, samples, names)
        if unusable:
            raise UserError("\n".join(picture.reason for picture in unusable))
        return unit(embeddings, self._facts.embedding_size)

    def search(
        self,
        pictures: Pictures,
        top: int = 5,
        threshold: float | None = None,
        collection: str | None = None,
    ) -> list[list[Match]]:
        """Find for each picture the `top` most similar people, best first; [] in an empty gallery.

        At most the first of them is accepted: a picture shows one person, or nobody who is known.

        Args:
            threshold: the nearest person is accepted above it; None: the gallery's.
            collection: only people of this one; None: of all.

        Raises UserError for embeddings of another size or not finite, or where no threshold is known.
        """
        if top < 1:
            raise UserError(f"top: must be at least 1, got {top}")
        limit = self.limit(threshold)
        queries = self.embed(pictures)
        with self._reading():
            if collection is not None and collection not in self._index:
                raise UserError(
                    f"{shown(self.path)}: has no collection '{shown(collection)}'; plsc gallery list shows them"
                )
            nearest = self._index.nearest(queries, top, collection)
            people = {
                person.id: person for person in self._store.people({id for found in nearest for id in found})
            }
        return [
            [
                Match(
                    people[id].name, _cosine(similarity), place == 0 and similarity > limit, people[id].meta
                )
                for place, (id, similarity) in enumerate(found.items())
                if id in people  # else removed meanwhile, where there are no snapshots
            ]
            for found in nearest
        ]

    def verify(self, name: str, pictures: Pictures, threshold: float | None = None) -> Verification:
        """Compare a person with pictures of one person; the sum of their embeddings is taken.

        threshold: None: the checkpoint's, of pairs. Raises UserError for an unknown name, and what `search`
        raises.
        """
        limit = self.pair_limit(threshold)
        query = self.embed(pictures).sum(axis=0, dtype=np.float64)
        query /= max(float(np.linalg.norm(query)), 1e-12)
        with self._reading():
            person = self._person(name)
            rows = self._index.of(person.collection, person.id)
        similarity = _cosine(np.max(rows.astype(np.float64) @ query))
        calibration = self.calibration
        probability = None if calibration is None else float(calibration.probability(similarity))
        return Verification(person.name, similarity, probability, similarity > limit)

    def limit(self, threshold: float | None = None) -> float:
        """Return the threshold that `search` takes for this argument. UserError where none is known, or it is
        no cosine."""
        limit = self.threshold if threshold is None else threshold
        if limit is None:
            raise UserError(f"{shown(self.path)}: {self.describe_threshold()}")
        return _checked(limit)

    def pair_limit(self, threshold: float | None = None, far: float | None = None) -> float:
        """Return the threshold that `verify` takes for this argument, or that accepts a share `far` of pairs
        of different people.

        UserError where none is known, or it is no cosine.
        """
        if far is not None:
            if self.calibration is None:
                raise UserError(
                    f"--far: {shown(self.path)} has no calibration; store one with plsc eval --calibrate, and run plsc gallery upgrade"
                )
            return self.calibration.threshold(far)
        limit = self.pair_threshold if threshold is None else threshold
        if limit is None:
            raise UserError(
                f"{shown(self.path)}: has no threshold for pairs, since its checkpoint had none: give one with --threshold, or store "
                "one with plsc eval --set-threshold and run plsc gallery upgrade"
            )
        return _checked(limit)

    def describe_threshold(self) -> str:
        """Say in a line what the threshold of a search is, and how often it gives a stranger a name."""
        with self._reading():
            threshold, how = self._facts.threshold, self._facts.measured
            if threshold is None:
                kinds = self._store.pictures(measuring=True)[1], self._store.strangers()[1]
                people = max(len(np.unique(people)) for people in kinds)
                return (
                    f"has no threshold: how often a stranger would get a name cannot be known from pictures of {counted(people, 'person', 'people')} whom the "
                    f"network was not trained on, {LEAST_PEOPLE} are needed; give a folder of strangers, plsc gallery evaluate "
                    f"{shown(self.path)} STRANGERS --set-threshold {FPIR:g}, or --threshold COSINE"
                )
        if how is None:
            return f"threshold {threshold:.4f}, set by hand"
        return (
            f"threshold {threshold:.4f}: a stranger gets a name in {100 * how.fpir:.3g} % of the searches ({100 * how.low:.2g} to "
            f"{100 * how.high:.2g} % in 95 % of tests), measured by {how.pictures:,} pictures of {how.people:,} people: {how.by}"
        )

    def _person(self, name: str) -> Person:
        person = self._store.find(composed(name))
        if person is None:
            raise UserError(
                f"{shown(self.path)}: has nobody named '{shown(name)}'; plsc gallery list shows the names"
            )
        return person

    # -- changing
    # -------------------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        pictures: Pictures,
        sources: Sequence[Source] = (),
        embedder: Any = None,
        collection: str = "",
        meta: Any = None,
    ) -> None:
        """Add pictures of a person, who may be in the gallery already. When it returns, they are on the disk.

        Args:
            sources: where the pictures came from; (): their paths, if these are given.
            embedder: what given embeddings are of; None: the gallery's network.
            collection: that the person belongs to; "" leaves somebody where he is.
            meta: a JSON value to keep with the person; None leaves what is there.

        UserError, and nothing is changed, where the gallery has another network by now.
        """
        name = name_of(name)
        if isinstance(pictures, (str, os.PathLike)):
            pictures = [pictures]
        if not len(pictures):
            raise UserError("add: needs at least one picture or embedding")
        try:
            json.dumps(meta, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(
                f"meta: must be a JSON value, of finite numbers and text of Unicode: {error}"
            ) from None
        vectors = self.embed(pictures)
        if not sources and isinstance(pictures[0], (str, os.PathLike)):
            sources = [source_of(os.fspath(path)) for path in pictures]
        of = embedder or self._embedder
        trained = of is not None and last_part(name) in of.trained_on()
        with self._writing():
            if embedder is not None:
                self.check(embedder)
            self._store.add([Addition(name, vectors, sources, not trained, collection, meta)])
            rest = without_the_same(self._strangers, vectors)
            if len(rest.people) < len(self._strangers.people):
                self._store.set_strangers(*rest)
        self._renew()
        self._save_index()

    def remove(self, *names: str) -> list[dict[str, Any]]:
        """Remove people; no file of the gallery has anything of them any more. Return of each name, pictures
        and number of rows.

        All of the file is written anew for that; others can search meanwhile, and not write. UserError if
        there is none of a name; nothing is changed then. Without names what an interrupted removal has left
        is taken.
        """
        with self._writing():
            people = [self._person(name) for name in dict.fromkeys(map(composed, names))]
            removed = [
                {
                    "name": person.name,
                    "pictures": self.sources(person.name),
                    "rows": len(self._index.of(person.collection, person.id)),
                }
                for person in people
            ]
            self._drop_index()
            self._store.remove([person.id for person in people])
        self._erase()
        return removed

    def remove_pictures(self, paths: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """Remove pictures: name -> paths as `sources` has them; all or nothing, as `remove`. Who has none
        left is removed.

        A path that is named once removes one picture, the newest with that path. Returns of each name the
        pictures that were removed, and how many are left.
        """
        with self._writing():
            people = {name: self._person(name) for name in paths}
            for name, person in people.items():
                there = Counter(source.path for source in self._store.sources([person.id]))
                if lacking := [*(Counter(paths[name]) - there)]:
                    raise UserError(
                        f"{shown(self.path)}: has no picture {shown(lacking[0])} of {shown(name)}; nothing was removed"
                    )
            self._drop_index()
            removed = []
            for name, person in people.items():
                gone = self._store.remove_paths(person.id, paths[name])
                left = len(self._store.sources([person.id]))
                removed.append({"name": name, "pictures": gone, "left": left})
        self._erase()
        return removed

    def _drop_index(self) -> None:
        """Remove the index's file. It can be made again. Who has mapped it keeps the removed file until it is
        opened anew."""
        index.remove(index.path_of(self._store))

    def _erase(self) -> None:
        """Take what is left of a removal in the free parts of the file, and renew what follows from those who
        are there."""
        self._renew()
        try:
            self._store.erase()
        except UserError as error:
            raise UserError(
                f"removed, and found no more; but the file still has traces in its free parts, because it could not be written anew: "
                f"{error}; mend that, then run plsc gallery remove {shown(self.path)} without names"
            ) from None
        self._save_index()

    @property
    def erasure(self) -> str:
        """What a removal does with the bytes of who is removed."""
        return self._store.erasure

    def files(self) -> list[Path]:
        """Return the gallery's files, which are read after `close` only."""
        beside = index.path_of(self._store)
        return [*self._store.files(), *([beside] if beside and beside.exists() else [])]

    def backup(self, target: str | os.PathLike) -> None:
        """Copy the gallery to a new file, while others read and write."""
        self._store.backup(target)

    def _renew(self) -> None:
        """Measure the threshold anew if the gallery has changed by a hundredth since. One that was set by
        hand stays."""
        with self._reading():
            how, size = self._facts.measured, self._index.people
            by_hand = how is None and self._facts.threshold is not None
        if by_hand or (how and abs(size - how.size) < max(1, how.size // 100)):
            return
        try:
            with self._writing():
                facts = measured(self._store, self._index, self._facts, how.fpir if how else FPIR)
                if facts != self._facts:
                    self._set_facts(facts)
        except UserError as error:  # the change itself is on the disk
            get_logger().warning(f"the threshold could not be measured anew: {error}")

    def upgrade(self, embedder: Any, people: Mapping[str, Sequence[Picture]] | None = None) -> None:
        """Embed all people anew by another network, and measure the threshold; all or nothing.

        Args:
            people: name -> pictures; None: those that were recorded.

        With the network that the gallery has, only its threshold of pairs and its calibration are taken over.
        Others can search meanwhile, and not write. Raises UserError if somebody has no picture that can be
        used.
        """
        with self._writing():
            ours, facts = self._facts, facts_of(embedder, self._facts.template)
            if (
                (facts.network, facts.flip) == (ours.network, ours.flip)
                and people is None
                and ours.mapped is None
            ):
                kept = {"threshold": ours.threshold, "measured": ours.measured, "others": ours.others}
                self._set_facts(facts.model_copy(update=kept))
                return
            self._store.check_replaceable()
            known = {person.name: person for person in self._store.people()}
            given = {name: self.sources(name) for name in known} if people is None else by_name(people)
            additions, self.left_out = embed_people(embedder, {name: given.get(name, ()) for name in known})
            lacking = sorted(known.keys() - {new.name for new in additions})
            if lacking:
                raise UserError(
                    f"{shown(self.path)}: {len(lacking):,} of {len(known):,} people have no picture that can be used, such as "
                    f"'{shown(lacking[0])}'; give a folder with pictures of all, or remove them first; nothing was changed"
                )
            additions = _keep_aligned(
                additions, self._store.sources([person.id for person in known.values()])
            )
            self._store.remove_pictures()
            _fill(self._store, embedder, facts.template, additions)
        self._follow(embedder)

    def upgrade_by_map(self, embedder: Any, fitted: FittedMap) -> None:
        """Carry all embeddings over to another network by a map, without pictures; all or nothing.

        Threshold and calibration are left out: they are of pairs whose embeddings are both the network's own.
        Raises UserError if the map is of other networks, or the embeddings came by a map already.
        """
        with self._writing():
            self.check_map(embedder, fitted.facts.network, fitted.new)
            pictures = self._store.pictures()[0]
            for start in range(0, len(pictures), _MAP_AT_ONCE):
                block = pictures[start : start + _MAP_AT_ONCE]
                self._store.set_vectors(block, fitted(self._store.vectors(block)))
            width = embedder.embedding_size
            self._store.set_strangers(np.empty((0, width), np.float32), np.empty(0, np.int64))
            without = {"mapped": fitted.facts, "pair_threshold": None, "calibration": None}
            self._set_facts(facts_of(embedder, self._facts.template).model_copy(update=without))
        self._follow(embedder)

    def _follow(self, embedder: Any) -> None:
        """Be about the network that the gallery has now."""
        with self._mutex:
            self._network, self._embedder = None, embedder
        self.refresh()
        self._save_index()

    def check_map(self, embedder: Any, old: str, new: str) -> None:
        """Refuse by UserError what `upgrade_by_map` to `embedder` refuses of a map from the network `old` to
        `new`."""
        self._store.check_replaceable()
        ours = self._facts
        if (old, new) != (ours.network, embedder.network):
            raise UserError(
                f"{shown(self.path)}: the map is of other networks than {ours.name} and {name_of_network(embedder)}; fit one of these"
            )
        if (ours.network, ours.flip) == (embedder.network, embedder.flip):
            raise UserError(
                f"{shown(self.path)}: its embeddings are of {ours.name} already; name another network"
            )
        if ours.mapped:
            raise UserError(
                f"{shown(self.path)}: its rows came by a map from {shown(ours.mapped.described)} already, and a second one would "
                "add its error to the first one's; upgrade with pictures"
            )

    def set_threshold(self, cosine: float) -> None:
        """Accept the nearest person above this cosine from now on, in all processes. UserError outside [-1,
        1]."""
        cosine = _checked(float(cosine))
        with self._writing():
            self._set_facts(self._facts.model_copy(update={"threshold": cosine, "measured": None}))

    def measure_threshold(self, embeddings: np.ndarray, people: Sequence[Any], fpir: float = FPIR) -> None:
        """Measure the threshold by pictures of strangers, from now on.

        Args:
            embeddings: float32 [n, D], of people who are not in the gallery and whom the network was not trained on.
            people: who they are: n names or numbers.
            fpir: the share of strangers' searches that may give a name.

        UserError where the people are too few, or the gallery has nobody.
        """
        numbers = np.unique(np.asarray(people), return_inverse=True)[1].astype(np.int64)
        others = unit(embeddings, self._facts.embedding_size)
        chosen = one_of_everybody_first(numbers, MOST_PICTURES)
        with self._writing():
            self._store.set_strangers(others[chosen], numbers[chosen])
            facts = self._facts.model_copy(update={"others": STRANGERS})
            facts = measured(self._store, self._index, facts, fpir)
            if facts.threshold is None:
                raise UserError(
                    f"{shown(self.path)}: {len(np.unique(numbers)):,} strangers are too few for a threshold: {LEAST_PEOPLE} are needed, and "
                    "somebody in the gallery"
                )
            self._set_facts(facts)

    def _set_facts(self, facts: Facts) -> None:
        self._store.set_facts(facts.model_dump(mode="json"))

    # -- what is in memory
    # ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what other objects and processes have written; every other method does so, too.

        Raises UserError where the gallery was upgraded to another network: embeddings that were made for it
        are of the old one.
        """
        with self._reading():
            pass

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold still what is in memory and in the store, which is the same then."""
        with self._mutex, self._store.snapshot():
            self._update()
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the store's transaction. Take `_mutex` after it, never before."""
        with self._store.transaction():
            with self._mutex:
                self._update()
            yield

    def _update(self) -> None:
        revision = self._store.revision()
        if revision == self._revision:
            return
        facts = read_facts(self._store.facts(), shown(self.path))
        if self._network not in (None, (facts.network, facts.flip)):
            raise UserError(
                f"{shown(self.path)}: was upgraded to another network, {facts.name}, since it was opened; open it again"
            )
        changed = None if self._revision is None else self._store.changes(self._revision)
        if changed is None:
            self._index = index.load(self._store, facts.embedding_size, facts.template)
            self._strangers = Strangers(*self._store.strangers())
        else:
            self._index.update(self._store, changed)
        self._facts, self._network, self._revision = facts, (facts.network, facts.flip), revision

    def _save_index(self) -> None:
        """Write the index's file anew if that is due. No other process writes or removes it meanwhile."""
        path = index.path_of(self._store)
        if path is None or not self._index.is_due(path):
            return
        try:
            with self._writing():
                self._index.save(path, self._revision)
                with self._mutex:
                    self._index = index.load(self._store, self._facts.embedding_size, self._facts.template)
        except (OSError, UserError) as error:
            get_logger().warning(
                f"{shown(path)}: cannot be written ({error}); opening takes longer without it"
            )


def _fill(store: Store, embedder: Any, template: str, additions: Sequence[Addition]) -> None:
    """Write people and facts to a store, and measure the threshold. The caller holds its transaction."""
    store.add(additions)
    nobody = np.empty((0, embedder.embedding_size), np.float32)
    enrolled = np.concatenate([nobody, *(new.vectors for new in additions)])
    store.set_strangers(*held_out(embedder, [new.name for new in additions], enrolled))
    facts = facts_of(embedder, template).model_copy(update={"others": HELD_OUT})
    rows = index.of_everybody(store, embedder.embedding_size, template)
    store.set_facts(measured(store, rows, facts, FPIR).model_dump(mode="json"))


def _keep_aligned(additions: Sequence[Addition], before: Sequence[Source]) -> list[Addition]:
    """Take over whether pictures are aligned, of files that are as they were."""
    aligned = {(source.path, source.sha256): source.aligned for source in before if source.sha256}
    return [
        new._replace(
            sources=[
                source._replace(aligned=aligned.get((source.path, source.sha256))) for source in new.sources
            ]
        )
        for new in additions
    ]


def _cosine(product: float) -> float:
    return min(1.0, max(-1.0, float(product)))


def _checked(limit: float) -> float:
    if not -1 <= limit <= 1:
        raise UserError(f"threshold: must be a cosine from -1 to 1, got {limit:g}")
    return limit
