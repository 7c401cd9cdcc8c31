"""Define the gallery: names, embeddings, and the network that made them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from plsc.apps.serving.gallery import files, log
from plsc.apps.serving.gallery.content import content_of, embed_people, header_of, measured, unit
from plsc.apps.serving.gallery.mapping import FittedMap
from plsc.apps.serving.gallery.pictures import LeftOut, Picture
from plsc.apps.serving.gallery.quality import Review
from plsc.apps.serving.gallery.rows import Rows, sums
from plsc.apps.serving.gallery.strangers import (
    FPIR,
    HELD_OUT,
    MOST_PICTURES,
    STRANGERS,
    measure,
    with_pictures,
    without,
)
from plsc.checkpoint.tensorfile import DamagedError
from plsc.data.preprocessing import Preprocessing
from plsc.distributed.lock import hold
from plsc.errors import UserError, reading, shown, writing
from plsc.evaluation.strangers import LEAST_PEOPLE, one_of_everybody_first
from plsc.utils.calibration import Calibration
from plsc.utils.files import open_regular, sha256_of
from plsc.utils.logging import get_logger
from plsc.utils.text import counted, last_part

_WAIT = 60.0  # seconds for another process that writes
# Bytes from which on a log is made part of the rows: a quarter of theirs, between these.
_LEAST_LOG = 2**20
_MOST_LOG = 2**26
_AS_IT_WAS = "the gallery is as it was"


class Match(NamedTuple):
    """A person of the gallery, beside a query."""

    name: str
    similarity: float
    """Cosine, of the nearest picture where each has a row."""
    accepted: bool
    """Whether this is the answer: the nearest person, with a similarity above the threshold."""


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
    """Known people and their embeddings, in a folder. `Gallery.open` or `Gallery.build` makes one.

    One process may write while others read: each change is on the disk when the call returns, whatever ends the
    process later, and others see it after `refresh`. All methods may be called from several threads.

    Attributes: folder; left_out: pictures that `build` or `upgrade` could not use.
    """

    def __init__(self, folder: str | os.PathLike, left_out: Sequence[LeftOut] = ()):
        self.folder = Path(folder)
        self.left_out = [*left_out]
        self._mutex = threading.RLock()
        self._load()

    # -- making and opening one -----------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | os.PathLike) -> Gallery:
        """Open a gallery; every checksum is compared. Raises MissingFileError, DamagedError, UserError."""
        try:
            gallery = cls(folder)
        except DamagedError:
            # It may have been read just while a writer replaced what another had not finished: once more.
            gallery = cls(folder)
        gallery._say_unfinished()
        return gallery

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike,
        embedder: Any,
        people: Mapping[str, Sequence[Picture]],
        template: Literal["mean", "images"] = "mean",
        review: Review = "off",
    ) -> Gallery:
        """Make a gallery in the new folder `folder`.

        Args:
            embedder: a plsc.apps.serving.embedder.Embedder.
            people: name -> paths of pictures, or samples as the network takes them.
            template: "mean": one row for each person, the sum of the pictures' embeddings at length 1; "images": a row for
                each picture.
            review: which pictures are refused, see plsc.apps.serving.gallery.quality.

        The threshold is measured on people whom the network was not trained on, see plsc.apps.serving.gallery.strangers. Pictures that
        cannot be used are logged and listed in `left_out`. UserError if none can, or the folder exists.
        """
        folder = Path(folder)
        files.refuse_existing(folder)
        header = header_of(embedder, template, generation=1)
        content, left_out = embed_people(embedder, files.by_name(people), template, review)
        if not content.names:
            why = (
                f"no picture can be used, the first: {left_out[0].reason}"
                if left_out
                else "there are no pictures"
            )
            raise UserError(f"{shown(folder)}: {why}")
        files.make_folder(folder, measured(header, content, HELD_OUT), content)
        return cls(folder, left_out)

    @classmethod
    def from_embeddings(
        cls,
        folder: str | os.PathLike,
        embedder: Any,
        names: Sequence[str],
        embeddings: np.ndarray,
        owners: np.ndarray,
        template: Literal["mean", "images"] = "mean",
    ) -> Gallery:
        """Make a gallery of embeddings that are there already.

        Args:
            embedder: what the embeddings are of; see `build` for it and `template`.
            names: of the people, each once.
            embeddings: float32 [N, D].
            owners: int64 [N], never decreasing: the number of the person of each embedding; each has at least one.
        """
        folder, owners = Path(folder), np.asarray(owners)
        files.refuse_existing(folder)
        header = header_of(embedder, template, generation=1)
        names = [files.name_of(name) for name in names]
        each_once = len(set(names)) == len(names)
        if (
            not each_once
            or not np.array_equal(np.unique(owners), np.arange(len(names)))
            or np.any(np.diff(owners) < 0)
        ):
            raise UserError(
                "names: must be different, and owners number them 0, 1, ... in increasing order, none left out"
            )
        content = content_of(embedder, names, [[] for _ in names], unit(embeddings, header), owners, template)
        files.make_folder(folder, measured(header, content, HELD_OUT), content)
        return cls(folder)

    # -- looking --------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of people."""
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        """Say whether a person of this name is in it."""
        return name in self._numbers

    def __repr__(self) -> str:
        return f"<Gallery: {counted(len(self), 'person', 'people')} in {shown(self.folder)}>"

    def names(self) -> list[str]:
        """Return the names of all people, in the order in which they were added."""
        with self._mutex:
            return [*self._numbers]

    def sources(self, name: str) -> list[str]:
        """Return the paths of a person's pictures, as they were when they were added. UserError for an unknown name."""
        with self._mutex:
            return [*self._sources[self._number(files.composed(name))]]

    def sample(self) -> tuple[np.ndarray, list[str]]:
        """Return at most 1,000 pictures of its people whom the network was not trained on: embeddings float32 [n, D], and whose they are."""
        with self._mutex:
            return self._pictures.own, [self._people[number] for number in self._pictures.own_people.tolist()]

    @property
    def header(self) -> files.Header:
        """The facts in gallery.json."""
        return self._header

    @property
    def rows(self) -> int:
        """The number of embeddings that are compared."""
        return len(self._rows)

    @property
    def preprocessing(self) -> Preprocessing:
        """How the network's pictures are prepared."""
        return Preprocessing.from_json(self._header.preprocessing.model_dump())

    @property
    def threshold(self) -> float | None:
        """The cosine above which the nearest person of a search is accepted; None: too few people to measure it."""
        return self._header.threshold

    @property
    def measured(self) -> files.Measured | None:
        """How the threshold was measured; None: it is not known, or was set by hand."""
        return self._header.measured

    @property
    def pair_threshold(self) -> float | None:
        """The checkpoint's cosine above which two pictures show the same person; None: it had none."""
        return self._header.pair_threshold

    @property
    def calibration(self) -> Calibration | None:
        """What a cosine means; None: the network had no calibration."""
        return self._calibration

    def check(self, embedder: Any) -> None:
        """Refuse by UserError embeddings that cannot be compared with these: of another network, unless one of the two
        was trained to be compatible with the other, or with mirror images where these are without."""
        ours = self._header
        compatible = embedder.network == ours.compatible_with or embedder.compatible_with == ours.network
        if embedder.network != ours.network and not compatible:
            raise UserError(
                f"{shown(self.folder)}: its embeddings are of the network {_name(ours)}, these are of {_name(embedder)}, and cannot "
                "be compared; use that network, or plsc gallery upgrade"
            )
        theirs = embedder.preprocessing.aligned
        if None not in (ours.preprocessing.aligned, theirs) and ours.preprocessing.aligned != theirs:
            aligned = {True: "of aligned faces", False: "of pictures that are not aligned"}
            raise UserError(
                f"{shown(self.folder)}: its embeddings ({_name(ours)}) are {aligned[not theirs]}, those of {_name(embedder)} are "
                f"{aligned[theirs]}, and cannot be compared; use that network, or plsc gallery upgrade"
            )
        if embedder.flip != ours.flip:
            kinds = {True: "of image and mirror image together", False: "of the image alone"}
            raise UserError(
                f"{shown(self.folder)}: its embeddings ({_name(ours)}) are {kinds[ours.flip]}, those of {_name(embedder)} are "
                f"{kinds[embedder.flip]}, and cannot be compared; set DataLoader.Eval.flip={str(ours.flip).lower()}, or upgrade"
            )

    def describe_other(self, embedder: Any) -> str:
        """Say in a line that `embedder`, which `check` accepts, has another network; "" for the same one."""
        if embedder.network == self._header.network:
            return ""
        return (
            f"{shown(self.folder)}: its embeddings are of the network {_name(self._header)}, these of {_name(embedder)}; one was trained "
            "to be compatible with the other. The threshold is of the gallery's network: measure it with plsc gallery evaluate"
        )

    def search(
        self, embeddings: np.ndarray, top: int = 5, threshold: float | None = None
    ) -> list[list[Match]]:
        """Find for each embedding the `top` most similar people, best first; [] in an empty gallery.

        At most the first of them is accepted: a picture shows one person, or nobody who is known.

        Args:
            embeddings: float32 [Q, D].
            threshold: the nearest person is accepted above it; None: the gallery's.

        Raises UserError for embeddings of another size or not finite, or where no threshold is known.
        """
        if top < 1:
            raise UserError(f"top: must be at least 1, got {top}")
        with self._mutex:
            limit = self.limit(threshold)
            queries = unit(embeddings, self._header)
            if not len(self._rows):
                return [[] for _ in queries]
            nearest = self._rows.nearest(queries, top)
            return [
                [
                    Match(self._people[number], _cosine(similarity), place == 0 and similarity > limit)
                    for place, (number, similarity) in enumerate(people.items())
                ]
                for people in nearest
            ]

    def verify(self, name: str, embeddings: np.ndarray, threshold: float | None = None) -> Verification:
        """Compare a person with embeddings float32 [n, D] of one person, whose sum is taken.

        threshold: None: the checkpoint's, of pairs. Raises UserError for an unknown name, and what `search` raises.
        """
        name = files.composed(name)
        with self._mutex:
            limit = self._pair_limit(threshold)
            query = unit(embeddings, self._header).sum(axis=0, dtype=np.float64)
            query /= max(float(np.linalg.norm(query)), 1e-12)
            rows, _ = self._rows.of(self._number(name))
            similarity = _cosine(np.max(rows.astype(np.float64) @ query))
            calibration = self._calibration
            probability = None if calibration is None else float(calibration.probability(similarity))
            return Verification(name, similarity, probability, similarity > limit)

    def limit(self, threshold: float | None = None) -> float:
        """Return the threshold that `search` takes for this argument. UserError where none is known, or it is no cosine."""
        limit = self.threshold if threshold is None else threshold
        if limit is None:
            raise UserError(f"{shown(self.folder)}: {self.describe_threshold()}")
        return _checked(limit)

    def _pair_limit(self, threshold: float | None) -> float:
        limit = self.pair_threshold if threshold is None else threshold
        if limit is None:
            raise UserError(
                f"{shown(self.folder)}: has no threshold for pairs, since its checkpoint had none: give one with --threshold, or store "
                "one with plsc eval --set-threshold and run plsc gallery upgrade"
            )
        return _checked(limit)

    def describe_threshold(self) -> str:
        """Say in a line what the threshold of a search is, and how often it gives a stranger a name."""
        header = self._header
        if header.threshold is None:
            people = max(
                len(np.unique(self._pictures.own_people)), len(np.unique(self._pictures.other_people))
            )
            return (
                f"has no threshold: how often a stranger would get a name cannot be known from pictures of {counted(people, 'person', 'people')} whom the "
                f"network was not trained on, {LEAST_PEOPLE} are needed; give a folder of strangers, plsc gallery evaluate "
                f"{shown(self.folder)} STRANGERS --set-threshold {FPIR:g}, or --threshold COSINE"
            )
        if header.measured is None:
            return f"threshold {header.threshold:.4f}, set by hand"
        how = header.measured
        return (
            f"threshold {header.threshold:.4f}: a stranger gets a name in {100 * how.fpir:.3g} % of the searches ({100 * how.low:.2g} to "
            f"{100 * how.high:.2g} % in 95 % of tests), measured by {how.pictures:,} pictures of {how.people:,} people: {how.by}"
        )

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise UserError(
                f"{shown(self.folder)}: has nobody named '{shown(name)}'; plsc gallery list shows the names"
            )
        return self._numbers[name]

    # -- changing -------------------------------------------------------------------------------------------------------------

    def add(
        self, name: str, embeddings: np.ndarray, sources: Sequence[str] = (), embedder: Any = None
    ) -> None:
        """Add pictures of a person, who may be in the gallery already. When it returns, they are on the disk.

        Args:
            embeddings: float32 [n, D], n at least 1.
            sources: the paths of the pictures.
            embedder: what the embeddings are of; None: the gallery's network, as this object knows it.

        UserError, and nothing is changed, where another process has upgraded the gallery to another network.
        """
        of = embedder or self._header
        rows = unit(embeddings, self._header)
        if not len(rows):
            raise UserError("add: needs at least one embedding")
        name = files.name_of(name)
        trained = embedder is not None and last_part(name) in embedder.trained_on()
        fields = {"add": name, "sources": [os.fspath(path) for path in sources], "trained": trained}
        self._write(fields, rows, of)

    def remove(self, name: str) -> None:
        """Remove a person with all pictures. UserError if there is none of that name.

        The rows stay in the files until they are written anew; see `erase`.
        """
        self._write({"remove": files.composed(name)})

    def erase(self, names: Sequence[str]) -> dict[str, Any]:
        """Remove people, and write all files anew: these have nothing of them any more, nor of whom `remove` has removed before.

        Return the facts of a receipt: of each person the pictures and the number of rows, and what the gallery was before and after.
        UserError if there is none of a name; nothing is changed then.
        """
        with self._held():
            names = [*dict.fromkeys(map(files.composed, names))]
            numbers = [self._number(name) for name in names]
            removed = [
                {"name": name, "pictures": self._sources[number], "rows": len(self._rows.of(number)[0])}
                for name, number in zip(names, numbers)
            ]
            before = self._state()
            for name in names:
                self._append({"remove": name})
            self._renew()
            self._replace(self._header, self._content())
            return {"removed": removed, "before": before, "after": self._state()}

    def _state(self) -> dict[str, Any]:
        """Describe what is on the disk: how many people and rows, and the SHA-256 of each file. The caller holds the lock."""
        header = self._header
        names = (files.HEADER, header.rows_file, header.people_file, header.log_file)
        sums = {name: sha256_of(self.folder / name) for name in names}
        return {"people": len(self), "rows": self.rows, "sha256": sums}

    def _write(self, fields: dict[str, Any], embeddings: np.ndarray | None = None, of: Any = None) -> None:
        """Append a change to the log, and make that part of the rows where it is long; arguments as of `_append`."""
        with self._held():
            self._append(fields, embeddings, of)
            self._renew()
            rows_bytes = self._header.files[self._header.rows_file].bytes
            if self._read_up_to > max(_LEAST_LOG, min(_MOST_LOG, rows_bytes // 4)):
                try:
                    self._replace(self._header, self._content())
                except UserError as error:  # the change itself is on the disk
                    get_logger().warning(f"the log could not be made part of the rows: {error}")

    def _append(self, fields: dict[str, Any], embeddings: np.ndarray | None = None, of: Any = None) -> None:
        """Append a change to the log. The caller holds the lock.

        embeddings, of: what is added, and the embedder or header that it is of.
        """
        with self._mutex:
            if "remove" in fields:
                self._number(fields["remove"])
            elif "add" in fields:
                self.check(of)
            record = log.encode(fields, embeddings)
            with writing(self.folder, remedy=_AS_IT_WAS):
                log.append(self.folder / self._header.log_file, self._read_up_to, record)
            self._replay()

    def _renew(self) -> None:
        """Measure the threshold anew if the gallery has changed by a hundredth since. The caller holds the lock.

        A threshold that was set by hand stays.
        """
        header = self._header
        if header.measured is None and header.threshold is not None:
            return
        if header.measured and abs(len(self) - header.measured.size) < max(1, header.measured.size // 100):
            return
        fpir = header.measured.fpir if header.measured else FPIR
        found = measure(self._rows, self._pictures, len(self), header.others, fpir)
        threshold, how = found or (None, None)
        if (threshold, how) == (header.threshold, header.measured):
            return
        try:
            self._append({"threshold": threshold, "measured": how and how.model_dump()})
        except UserError as error:  # the change itself is on the disk
            get_logger().warning(f"the threshold could not be measured anew: {error}")

    def upgrade(self, embedder: Any, people: Mapping[str, Sequence[Picture]] | None = None) -> None:
        """Embed all people anew by another network, and measure the threshold; all or nothing.

        Args:
            people: name -> pictures; None: those that were recorded.

        With the network that the gallery has, only its threshold of pairs and its calibration are taken over. Others can search meanwhile, and
        not write. Raises UserError if somebody has no picture that can be used.
        """
        with self._held():
            header = header_of(embedder, self._header.template, self._header.generation)
            same = (header.network, header.flip) == (self._header.network, self._header.flip)
            if same and people is None and self._header.mapped is None:
                ours = self._header
                kept = {"threshold": ours.threshold, "measured": ours.measured, "others": ours.others}
                self._replace(header.model_copy(update=kept), self._content())
                return
            given = (
                {name: self.sources(name) for name in self._numbers}
                if people is None
                else files.by_name(people)
            )
            content, self.left_out = embed_people(
                embedder, {name: given.get(name, ()) for name in self._numbers}, header.template
            )
            lacking = sorted(self._numbers.keys() - set(content.names))
            if lacking:
                raise UserError(
                    f"{shown(self.folder)}: {len(lacking):,} of {len(self):,} people have no picture that can be used, such as "
                    f"'{shown(lacking[0])}'; give a folder with pictures of all, or remove them first; nothing was changed"
                )
            self._replace(measured(header, content, HELD_OUT), content)

    def upgrade_by_map(self, embedder: Any, fitted: FittedMap) -> None:
        """Carry all rows over to another network by a map, without pictures; all or nothing.

        Threshold and calibration are left out: they are of pairs whose embeddings are both the network's own. Raises UserError
        if the map is of other networks, or the rows came by a map already.
        """
        with self._held():
            self.check_map(embedder, fitted.facts.network, fitted.new)
            header = header_of(embedder, self._header.template, self._header.generation)
            header = header.model_copy(
                update={"mapped": fitted.facts, "pair_threshold": None, "calibration": None}
            )
            content = self._content()
            none = files.no_pictures(header.embedding_size)
            self._replace(header, content._replace(embeddings=fitted(content.embeddings), pictures=none))

    def check_map(self, embedder: Any, old: str, new: str) -> None:
        """Refuse by UserError what `upgrade_by_map` to `embedder` refuses of a map from the network `old` to `new`."""
        ours = self._header
        if (old, new) != (ours.network, embedder.network):
            raise UserError(
                f"{shown(self.folder)}: the map is of other networks than {_name(ours)} and {_name(embedder)}; fit one of these"
            )
        if (ours.network, ours.flip) == (embedder.network, embedder.flip):
            raise UserError(
                f"{shown(self.folder)}: its embeddings are of {_name(ours)} already; name another network"
            )
        if ours.mapped:
            raise UserError(
                f"{shown(self.folder)}: its rows came by a map from {shown(ours.mapped.described)} already, and a second one would "
                "add its error to the first one's; upgrade with pictures"
            )

    def set_threshold(self, cosine: float) -> None:
        """Accept the nearest person above this cosine from now on, in all processes. UserError outside [-1, 1]."""
        with self._held():
            self._append({"threshold": _checked(float(cosine)), "measured": None})

    def measure_threshold(self, embeddings: np.ndarray, people: Sequence[Any], fpir: float = FPIR) -> None:
        """Measure the threshold by pictures of strangers, from now on.

        Args:
            embeddings: float32 [n, D], of people who are not in the gallery and whom the network was not trained on.
            people: who they are: n names or numbers.
            fpir: the share of strangers' searches that may give a name.

        UserError where the people are too few, or the gallery has nobody.
        """
        numbers = np.unique(np.asarray(people), return_inverse=True)[1].astype(np.int64)
        others = unit(embeddings, self._header)
        chosen = one_of_everybody_first(numbers, MOST_PICTURES)
        with self._held():
            content = self._content()
            pictures = content.pictures._replace(others=others[chosen], other_people=numbers[chosen])
            found = measure(self._rows, pictures, len(self), STRANGERS, fpir)
            if found is None:
                raise UserError(
                    f"{shown(self.folder)}: {len(np.unique(numbers)):,} strangers are too few for a threshold: {LEAST_PEOPLE} are needed, and "
                    "somebody in the gallery"
                )
            threshold, how = found
            header = self._header.model_copy(
                update={"threshold": threshold, "measured": how, "others": STRANGERS}
            )
            self._replace(header, content._replace(pictures=pictures))

    def _replace(self, header: files.Header, content: files.Content) -> None:
        """Write the next generation. The caller holds the lock."""
        header = header.model_copy(update={"generation": self._header.generation + 1})
        files.remove_others(self.folder, self._header)  # which killed processes have left
        try:
            with writing(self.folder, remedy=_AS_IT_WAS):
                header = files.write(self.folder, header, content)
        except UserError:
            with contextlib.suppress(UserError):  # a part of a generation must not fill the disk
                files.remove_others(self.folder, files.read_header(self.folder))
            raise
        files.remove_others(self.folder, header)
        with self._mutex:
            self._load()

    def _content(self) -> files.Content:
        """Return what is in memory, with the people numbered anew."""
        numbers = np.full(len(self._people), -1, np.int64)
        numbers[[*self._numbers.values()]] = np.arange(len(self._numbers))
        parts = self._rows.parts
        return files.Content(
            [*self._numbers],
            [self._sources[number] for number in self._numbers.values()],
            files.concatenated([part.embeddings[: part.count] for part in parts]),
            numbers[np.concatenate([part.owners[: part.count] for part in parts])],
            np.concatenate([part.lengths[: part.count] for part in parts]),
            self._pictures._replace(own_people=numbers[self._pictures.own_people]),
        )

    # -- what is on the disk --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what other processes have written since."""
        try:
            with self._mutex:
                self._read_news()
        except DamagedError:
            with self._held():  # it may have been read while another process wrote: once more, while none can
                pass

    def _read_news(self) -> None:
        if _identity(self.folder) != self._identity:
            self._load()
            return
        with reading(self.folder):
            try:
                self._replay()
            except FileNotFoundError:
                self._load()

    def _load(self) -> None:
        """Read the present generation and its log."""
        for attempt in range(10):
            identity = _identity(
                self.folder
            )  # before the header: one that is replaced meanwhile is read again
            header = files.read_header(self.folder)
            try:
                content = files.read(self.folder, header)
                self._header, self._identity = header, identity
                self._calibration = header.calibration and Calibration.from_json(header.calibration, "")
                self._people = content.names
                self._numbers = {name: number for number, name in enumerate(content.names)}
                self._sources = content.sources
                self._rows = Rows(content.embeddings, content.owners, content.lengths)
                self._pictures = content.pictures
                self._read_up_to = 0
                self._replay()
                return
            except FileNotFoundError as error:  # another process has just written the next generation
                if attempt == 9:
                    raise DamagedError(
                        f"{shown(error.filename)}: is not there; restore the gallery, or build it again"
                    ) from None
            except OSError as error:
                raise UserError(f"{shown(self.folder)}: cannot be read: {error}") from error

    def _replay(self) -> None:
        """Apply the records of the log that have not been read yet."""
        path = self.folder / self._header.log_file
        for record in log.read(path, self._read_up_to, self._header.embedding_size):
            self._apply(record)
            self._read_up_to = record.stop

    def _apply(self, record: log.Record) -> None:
        if "threshold" in record.fields:
            found = files.Threshold.model_validate(record.fields)
            self._header = self._header.model_copy(update=dict(found))
            return
        if "remove" in record.fields:
            number = self._numbers.pop(record.fields["remove"], None)
            if number is not None:
                self._rows.remove(number)
                self._sources[number] = []
                self._pictures = without(self._pictures, number)
            return
        name, rows = record.fields["add"], record.embeddings
        lengths = np.ones(len(rows), np.float32)
        is_mean = self._header.template == "mean"
        number = self._numbers.setdefault(name, len(self._people))
        if number == len(self._people):
            self._people.append(name)
            self._sources.append([])
        elif is_mean:
            before, weights = self._rows.of(number)
            rows = np.concatenate([before * weights[:, None], rows])
            self._rows.remove(number)
        self._sources[number] += record.fields["sources"]
        self._pictures = with_pictures(self._pictures, number, record.embeddings, record.fields["trained"])
        if is_mean:
            rows, lengths = sums(rows, np.zeros(1, np.int64))
        self._rows.add(number, rows, lengths)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the folder's lock, knowing all that other processes have written. Take `_mutex` after it, never before."""
        if not self.folder.is_dir():
            files.read_header(self.folder)  # says that it is gone; the lock would make it again
        with hold(self.folder, "try again", _WAIT):
            with self._mutex:
                self._read_news()
            yield

    def _say_unfinished(self) -> None:
        """Warn of a change that a process did not finish, as far as no process is at it now."""
        path = self.folder / self._header.log_file
        with contextlib.suppress(OSError), open_regular(self.folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._replay()
            rest = path.stat().st_size - self._read_up_to
            if rest > 0:
                get_logger().warning(
                    f"{shown(path)}: the last {rest:,} bytes are of a change that was not finished, and are left out"
                )


def _cosine(product: float) -> float:
    return min(1.0, max(-1.0, float(product)))


def _checked(limit: float) -> float:
    if not -1 <= limit <= 1:
        raise UserError(f"threshold: must be a cosine from -1 to 1, got {limit:g}")
    return limit


def _identity(folder: Path) -> tuple[int, int, int] | None:
    """Return what differs when gallery.json has been replaced."""
    try:
        status = os.stat(folder / files.HEADER)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _name(network: Any) -> str:
    return f"{shown(network.described)} ({shown(network.network[:12])})"
