"""Keep a gallery in Milvus, and search there: for galleries beyond one machine's memory, and for many
machines that read.

    Gallery.open("milvus://host:19530/people")    # a server; milvus+tls:// by TLS; PLSC_MILVUS_TOKEN has the token, or user:password
    Gallery.open("milvus:people.db")              # a file of Milvus Lite, for one process

Four collections: NAME has the people, each with the mean of their pictures as the vector; NAME_pictures the
pictures; NAME_strangers who measures the threshold; NAME_facts the facts, as JSON. Filters hold integers
only: names are looked up by a hash.

Milvus has no transactions. A change of several rows ends with the people's, so whoever is found is whole, and
all reading is at consistency level Strong; but a process that is killed leaves what it has written so far,
and two that write at the same time may undo each other's work on a person. One process writes at a time.

The answers are those of SQLite: Milvus multiplies in float32 over all rows (index FLAT), and the nearest are
multiplied in float64 here. `upgrade` and `backup` are refused (build a gallery under another name; use
milvus-backup), and so are names that are no text. A killed addition may leave pictures of somebody who is not
found: `plsc gallery remove GALLERY` without names takes them. A removed person is found no more; when the
bytes go is Milvus' matter, and the receipt says so under `erased`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from plsc.apps.serving.gallery.search import float32_error, products
from plsc.apps.serving.gallery.store import (
    Addition,
    Person,
    Revision,
    Source,
    another_collection,
    checked,
    first_of,
)
from plsc.errors import MissingFileError, UserError, shown, writing
from plsc.utils.files import parse_json
from plsc.utils.vectors import unit_rows

TOKEN = "PLSC_MILVUS_TOKEN"  # noqa: S105 (the name of a variable)
ERASURE = (
    "deleted in Milvus, and found no more; not guaranteed: Milvus takes the bytes away when it compacts and collects garbage, at a time of "
    "its own, and from its log and backups later or never"
)
_SCHEMES = ("milvus", "milvus+tls")
_FORMAT = 1
_REVISION = "plsc"  # the row of NAME_facts that is written last
_LONGEST = 65_535  # bytes of a text, Milvus' limit
_MOST = 16_384  # rows of an answer, Milvus' limit
_AT_ONCE = 2048  # rows that are written, or ids that are asked for, at once
_BYTES = 2**25  # of the vectors in an answer
_MARGIN = 16  # rows that are asked for beyond those that are wanted: Milvus sorts by float32
_TEXT, _INTEGER, _TRUTH = "VARCHAR", "INT64", "BOOL"
_FIELDS = {
    "": {
        "id": _INTEGER,
        "key": _INTEGER,
        "name": _TEXT,
        "part": _INTEGER,
        "collection": _TEXT,
        "meta": _TEXT,
    },
    "_pictures": {
        "id": _INTEGER,
        "person": _INTEGER,
        "part": _INTEGER,
        "source": _TEXT,
        "measures": _TRUTH,
        "added": _TEXT,
    },
    "_strangers": {"id": _INTEGER, "person": _INTEGER},
    "_facts": {"id": _INTEGER, "key": _TEXT, "value": _TEXT},
}
_PEOPLE, _PICTURES, _STRANGERS, _FACTS = _FIELDS
_PERSON = ["name", "collection", "meta"]
_ALL = "id >= 0"
# pymilvus asks an idle server every ten seconds whether it is alive. Milvus Lite's does not allow that, and
# ends the connection, with a warning, again and again; it is in this process, so nobody need ask.
_WITHOUT_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}
_lite = threading.Lock()
_clients: Counter[str] = Counter()  # of each file of Milvus Lite


def is_url(path: str | os.PathLike) -> bool:
    """Say whether this names a gallery in Milvus."""
    return os.fspath(path).partition(":")[0] in _SCHEMES


class MilvusStore:
    """A gallery in Milvus, with the methods of plsc.apps.serving.gallery.store.SqliteStore; `open` or
    `create` makes one."""

    file = None
    """The rows are searched where they are kept."""
    erasure = ERASURE

    def __init__(self, url: str | os.PathLike):
        self.path = os.fspath(url)
        self._uri, self._base = _place(self.path)
        self._writer = threading.Lock()
        self._written = False
        self._opened: Any = None
        self._connecting = threading.Lock()

    @classmethod
    def open(cls, url: str | os.PathLike) -> MilvusStore:
        """Open a gallery. Raises MissingFileError, UserError."""
        store = cls(url)
        if store._is_absent():
            raise MissingFileError(
                f"{store.name}: is no gallery, there is nothing; make one with plsc gallery build"
            )
        try:
            with _said(store.name):
                state = store._state() if store._exists(_FACTS) else {}
            if state.get("format") != _FORMAT:
                raise UserError(
                    f"{store.name}: is no gallery of this plsc, or its build was not finished; build it under another name"
                )
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def create(cls, url: str | os.PathLike, fill: Callable[[MilvusStore], None], width: int) -> MilvusStore:
        """Make a gallery of embeddings of `width` numbers, and nothing where `fill` fails."""
        refuse_existing(url)
        store = cls(url)
        try:
            with _said(store.name):
                for part in _FIELDS:
                    store._create(part, 2 if part == _FACTS else width)
            with store.transaction():
                fill(store)
        except BaseException:
            with contextlib.suppress(Exception):  # the server may be gone
                for part in _FIELDS:
                    store._client.drop_collection(store._base + part)
            store.close()
            raise
        return store

    def _create(self, part: str, width: int) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for field, kind in _FIELDS[part].items():
            text = {"max_length": _LONGEST} if kind == _TEXT else {}
            schema.add_field(field, DataType[kind], is_primary=field == "id", **text)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        # With one shard a request that writes rows is one message.
        self._client.create_collection(
            self._base + part, schema=schema, index_params=index, num_shards=1, consistency_level="Strong"
        )

    @property
    def name(self) -> str:
        """What the user calls it, for messages."""
        return shown(self.path)

    # -- transactions, as far as there are any
    # ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write. What is wrong with an addition is said before anything is written; what the server refuses
        later leaves the rest."""
        with self._writer, _said(self.name):
            self._written = False
            try:
                yield
            finally:
                if self._written:
                    state = {"format": _FORMAT, "token": secrets.randbits(62)}
                    self.set_facts({_REVISION: state})

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read. Each question is answered by what is there then."""
        with _said(self.name):
            yield

    def revision(self) -> Revision:
        """Return the present state's numbers."""
        return Revision(0, self._state().get("token", 0))

    def _state(self) -> dict[str, Any]:
        """Return the format and a random number that changes with each transaction; {} in a gallery whose
        build was not finished."""
        row = self._query(_FACTS, f"id == {_hash(_REVISION)}", ["value"])
        return json.loads(row[0]["value"]) if row else {}

    def changes(self, since: Revision) -> set[int] | None:
        """Return the ids of the people who were changed since; None: everything may be different."""
        return set() if self.revision() == since else None

    # -- facts
    # ------------------------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """Return the facts, each as JSON."""
        rows = self._query(_FACTS, _ALL, ["key", "value"])
        return {row["key"]: row["value"] for row in rows if row["key"] != _REVISION}

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the facts."""
        vector = [1.0, 0.0]  # Milvus wants one
        rows = [
            {"id": _hash(key), "key": key, "value": json.dumps(value), "vector": vector}
            for key, value in facts.items()
        ]
        self._write(_FACTS, rows)

    def strangers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of strangers' pictures float32 [n, D], and who they are int64 [n]."""
        return self._arrays(self._query(_STRANGERS, _ALL, ["person", "vector"]))

    def set_strangers(self, vectors: np.ndarray, people: np.ndarray) -> None:
        """Replace the strangers' pictures."""
        self._delete(_STRANGERS, _ALL)
        start = _new_ids(len(vectors))
        self._write(
            _STRANGERS,
            (
                {"id": start + number, "person": person, "vector": vector}
                for number, (person, vector) in enumerate(zip(people.tolist(), vectors))
            ),
        )

    # -- people
    # -----------------------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Person | None:
        """Return the person of this name."""
        rows = self._query(_PEOPLE, f"key == {_hash(name)}", _PERSON)
        return next((person for person in self._people(rows) if person.name == name), None)

    def people(self, ids: Iterable[int] | None = None) -> Iterator[Person]:
        """Yield people in the order in which they came: those with these ids, or all."""
        if ids is None:
            return self._people(self._query(_PEOPLE, _ALL, _PERSON))
        return self._people(self._get(_PEOPLE, [*ids], _PERSON))

    def _people(self, rows: list[dict[str, Any]]) -> Iterator[Person]:
        for row in rows:
            yield Person(row["id"], row["name"], row["collection"], parse_json(row["meta"], self.path))

    def sources(self, people: Sequence[int]) -> list[Source]:
        """Return where the pictures of people came from, in the order of `embeddings`."""
        return [*map(self._source, self._pictures_of(people, ["source"]))]

    def sources_of(self, pictures: Sequence[int]) -> list[Source]:
        """Return where pictures with these increasing ids came from."""
        return [*map(self._source, self._get(_PICTURES, pictures, ["source"]))]

    def _source(self, row: dict[str, Any]) -> Source:
        return Source(**parse_json(row["source"], self.path))

    def add(self, additions: Iterable[Addition]) -> None:
        """Add pictures of people. UserError, before anything is written, if somebody is in another collection
        already."""
        additions = [*additions]
        names = {new.name for new in additions}
        for text in {*names, *(new.collection for new in additions)}:
            _refuse_no_text(text)
        keys = _blocks([*map(_hash, names)])
        people = {
            person.name: person
            for some in keys
            for person in self._people(self._query(_PEOPLE, f"key in {some}", _PERSON))
            if person.name in names
        }
        known = [person.id for person in people.values()]
        start = _new_ids(len(additions) + sum(len(new.vectors) for new in additions))
        for new in additions:
            person = people.get(new.name)
            if person is None:
                person, start = Person(start, new.name, new.collection, new.meta), start + 1
            elif new.collection not in ("", person.collection):
                raise another_collection(new, person.collection)
            people[new.name] = person._replace(meta=person.meta if new.meta is None else new.meta)
        before, owners = self.embeddings(sorted(known))
        parts = {person: [before[owners == person]] for person in known}
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        rows = []
        for new in additions:
            person = people[new.name]
            parts.setdefault(person.id, []).append(new.vectors)
            for source, vector in new.pictures():
                rows.append(
                    {
                        "id": start,
                        "person": person.id,
                        "part": _hash(person.collection),
                        "source": json.dumps(source._asdict()),
                        "measures": bool(new.measures),
                        "added": now,
                        "vector": vector,
                    }
                )
                start += 1
        self._write(_PICTURES, rows)
        self._write_people(people.values(), {person: np.concatenate(part) for person, part in parts.items()})
        if len(rows) > _AT_ONCE:  # Milvus Lite takes seconds for each search among rows that are not flushed
            for part in (_PEOPLE, _PICTURES):
                self._client.flush(self._base + part)

    def _write_people(self, people: Iterable[Person], vectors: dict[int, np.ndarray]) -> None:
        """Write the rows of people, with the means of these pictures; a person is found when this is done."""
        self._write(
            _PEOPLE,
            (
                {
                    "id": person.id,
                    "key": _hash(person.name),
                    "name": person.name,
                    "part": _hash(person.collection),
                    "collection": person.collection,
                    "meta": json.dumps(person.meta),
                    "vector": unit_rows(np.add.reduceat(vectors[person.id], [0], axis=0))[0],
                }
                for person in people
            ),
        )

    def remove(self, people: Iterable[int]) -> None:
        """Remove people with their pictures; see ERASURE."""
        for some in _blocks([*people]):
            self._delete(_PEOPLE, f"id in {some}")
            self._delete(_PICTURES, f"person in {some}")

    def remove_paths(self, person: int, paths: Sequence[str]) -> list[str]:
        """Remove a picture of a person for each of these paths, the newest first, and the person where none
        is left; return their paths."""
        rows = self._pictures_of([person], ["source"])
        gone = dict(first_of([(row["id"], self._source(row).path) for row in reversed(rows)], paths))
        if len(gone) == len(rows):
            self.remove([person])
        elif gone:
            for some in _blocks([*gone]):
                self._delete(_PICTURES, f"id in {some}")
            self._write_people(self.people([person]), {person: self.embeddings([person])[0]})
        return [*gone.values()]

    def check_replaceable(self) -> None:
        """Refuse by UserError to replace everything: there are no transactions."""
        raise UserError(
            f"{self.name}: Milvus has no transactions, so a gallery there is not upgraded in place; build one of the new network "
            "under another name, and remove this one then"
        )

    def remove_pictures(self) -> None:
        """Refuse, as `check_replaceable`."""
        self.check_replaceable()

    def set_vectors(self, pictures: np.ndarray, vectors: np.ndarray) -> None:
        """Refuse, as `check_replaceable`."""
        self.check_replaceable()

    # -- embeddings
    # -------------------------------------------------------------------------------------------------------------------

    def embeddings(self, people: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pictures' embeddings of people, float32 [n, D] of length 1, and whose each is, int64
        [n], increasing."""
        return self._arrays(self._pictures_of(people, ["vector"]))

    def _pictures_of(self, people: Sequence[int], fields: list[str]) -> list[dict[str, Any]]:
        """Read the pictures of people, in the order of the people's ids, then of their own."""
        asked = ["person", *fields]
        rows = [row for some in _blocks(people) for row in self._query(_PICTURES, f"person in {some}", asked)]
        return sorted(rows, key=lambda row: (row["person"], row["id"]))

    def vectors(self, pictures: np.ndarray) -> np.ndarray:
        """Return the embeddings of pictures with these increasing ids, float32 [n, D]."""
        return self._arrays(self._get(_PICTURES, pictures.tolist(), ["person", "vector"]))[0]

    def pictures(self, measuring: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all pictures, or those that measure the threshold, increasing, and whose each is:
        int64 [n], int64 [n]."""
        rows = self._query(_PICTURES, "measures == true" if measuring else _ALL, ["person"])
        pairs = np.array([(row["id"], row["person"]) for row in rows], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _arrays(self, rows: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of rows float32 [n, D], and the numbers of their people int64 [n]."""
        vectors = np.array([row["vector"] for row in rows], np.float32).reshape(len(rows), -1 if rows else 0)
        return checked(vectors, self.name), np.array([row["person"] for row in rows], np.int64)

    def searched(self, template: str) -> MilvusRows:
        """Return what searches the rows, those of the present revision. template: see `Gallery.build`."""
        return MilvusRows(self, _PEOPLE if template == "mean" else _PICTURES)

    # -- what a file would have
    # -------------------------------------------------------------------------------------------------------

    def erase(self) -> None:
        """Take what an interrupted change has left, and ask Milvus to compact; see ERASURE."""
        with self.transaction():
            known = [row["id"] for row in self._query(_PEOPLE, _ALL, [])]
            lost = np.setdiff1d(self.pictures()[1], known).tolist()
            self.remove(lost)
            for part in (_PEOPLE, _PICTURES):
                self._client.compact(self._base + part)

    def backup(self, target: str | os.PathLike) -> None:
        """Refuse by UserError: Milvus has a tool for it."""
        raise UserError(
            f"{self.name}: is not copied by plsc; use Milvus' own tool, milvus-backup, for all collections whose names begin with "
            f"{self._base}"
        )

    def files(self) -> list[Path]:
        """Return no files: they are Milvus'."""
        return []

    def close(self) -> None:
        """Close the connection; the last one to a file ends its server."""
        with self._connecting:
            if self._opened is not None:
                _disconnect(self._opened, self._uri)
                self._opened = None

    # -- Milvus
    # -----------------------------------------------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        with self._connecting:
            if self._opened is None:
                self._opened = _connect(self._uri)
                for part in _FIELDS:
                    if self._opened.has_collection(self._base + part):
                        self._opened.load_collection(self._base + part)
            return self._opened

    def _is_absent(self) -> bool:
        """Say whether there is no file of Milvus Lite, which connecting would make."""
        return "://" not in self._uri and not os.path.exists(self._uri)

    def _exists(self, part: str) -> bool:
        return self._client.has_collection(self._base + part)

    def _query(self, part: str, which: str, fields: list[str]) -> list[dict[str, Any]]:
        """Read all rows for which a filter, without text of others, is true, in the order of their ids."""
        asked = {"filter": which, "output_fields": ["id", *fields], "consistency_level": "Strong"}
        most = _AT_ONCE if "vector" in fields else _MOST
        rows: list[dict[str, Any]] = [*self._client.query(self._base + part, limit=most, **asked)]
        if len(rows) < most:
            return _by_id(rows)
        rows.clear()
        pages = self._client.query_iterator(self._base + part, batch_size=most, **asked)
        try:
            while page := pages.next():
                rows += page
        finally:
            pages.close()
        return _by_id(rows)

    def _get(self, part: str, ids: Sequence[int], fields: list[str]) -> list[dict[str, Any]]:
        """Read the rows with these ids, in their order."""
        asked = {"output_fields": ["id", *fields], "consistency_level": "Strong"}
        return _by_id(
            row for some in _blocks(ids) for row in self._client.query(self._base + part, ids=some, **asked)
        )

    def _write(self, part: str, rows: Iterable[dict[str, Any]]) -> None:
        for some in _blocks([*rows]):
            self._written = True
            self._client.upsert(self._base + part, some)

    def _delete(self, part: str, which: str) -> None:
        self._written = True
        self._client.delete(self._base + part, filter=which)

    def count(self, part: str) -> int:
        """Count the rows of a part."""
        rows = self._client.query(
            self._base + part, filter="", output_fields=["count(*)"], consistency_level="Strong"
        )
        return int(rows[0]["count(*)"])

    def search(self, part: str, queries: np.ndarray, limit: int, which: str) -> list[list[tuple]]:
        """Search by the inner product: for each query tuples of person, vector and Milvus' product, best
        first."""
        owner = "id" if part == _PEOPLE else "person"
        found = self._client.search(
            self._base + part,
            data=[*queries],
            limit=limit,
            filter=which,
            output_fields=[owner, "vector"],
            search_params={"metric_type": "IP"},
            consistency_level="Strong",
        )
        return [
            [(hit["entity"][owner], hit["entity"]["vector"], hit["distance"]) for hit in hits]
            for hits in found
        ]


class MilvusRows:
    """Search a gallery's rows in Milvus, with the methods of plsc.apps.serving.gallery.index.Index that a
    gallery needs."""

    def __init__(self, store: MilvusStore, part: str):
        self._store = store
        self._part = part

    @cached_property
    def people(self) -> int:
        """Whose rows these are."""
        return self._store.count(_PEOPLE)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    @cached_property
    def _rows(self) -> int:
        return self._store.count(self._part)

    def __contains__(self, collection: object) -> bool:
        """Say whether somebody is in this collection."""
        return isinstance(collection, str) and bool(
            self._store._query(_PEOPLE, f"part == {_hash(collection)}", [])
        )

    def of(self, collection: str, person: int) -> np.ndarray:
        """Return the rows of a person float32 [n, D]."""
        owner = "id" if self._part == _PEOPLE else "person"
        rows = self._store._query(self._part, f"{owner} == {person}", ["vector"])
        return checked(np.array([row["vector"] for row in rows], np.float32), self._store.name)

    def nearest(
        self, queries: np.ndarray, people: int, collection: str | None = None
    ) -> list[dict[int, float]]:
        """Find for each query the most similar people, as plsc.apps.serving.gallery.search.nearest: exact, in
        float64.

        Milvus sorts by float32 products. More rows than are wanted are asked for, until the last one's
        product, with all that float32 may add, is below the last one that is wanted.
        """
        which = "" if collection is None else f"part == {_hash(collection)}"
        found: list[dict[int, float]] = [{} for _ in queries]
        limit, left = min(people + _MARGIN, _MOST), [*range(len(queries))]
        while left:
            at_once = max(1, _BYTES // (4 * queries.shape[1] * limit))
            lacking = []
            for start in range(0, len(left), at_once):
                some = left[start : start + at_once]
                answers = self._store.search(self._part, queries[some], limit, which)
                for number, hits in zip(some, answers, strict=True):
                    found[number], complete = self._best(queries[number], hits, people, limit)
                    if not complete:
                        lacking.append(number)
            if lacking and limit == _MOST:
                raise UserError(
                    f"{self._store.name}: {_MOST:,} rows are as near as those that are wanted, more than Milvus gives; ask for fewer people"
                )
            limit, left = min(8 * limit, _MOST), lacking
        return found

    def _best(
        self, query: np.ndarray, hits: list[tuple], people: int, limit: int
    ) -> tuple[dict[int, float], bool]:
        """Return the nearest people of an answer, and whether nobody else can be among them."""
        if not hits:
            return {}, True
        owners, vectors, scores = zip(*hits)
        rows = checked(np.array(vectors, np.float32), self._store.name)
        best: dict[int, float] = {}
        for owner, product in zip(
            owners, products(rows, np.arange(len(rows)), query[np.newaxis], 0).tolist()
        ):
            best[owner] = max(product, best.get(owner, -np.inf))
        order = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:people]
        error = float32_error(query, 1.001)
        complete = len(hits) < limit or (len(order) == people and min(scores) + error < order[-1][1])
        return dict(order), complete


def refuse_existing(url: str | os.PathLike) -> None:
    """Refuse by UserError to make a gallery where something is already."""
    store = MilvusStore(url)
    if store._is_absent():
        return
    with contextlib.closing(store), _said(store.name):
        taken = [store._base + part for part in _FIELDS if store._exists(part)]
    if taken:
        raise UserError(f"{store.name}: the collection {taken[0]} exists already; name another gallery")


def _place(url: str) -> tuple[str, str]:
    """Return what pymilvus opens, and the name of the collections, for a gallery's URL."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            f"{shown(url)}: must be milvus://host:port/name; a token, or user:password, is taken from {TOKEN}"
        )
    if parts.netloc:
        name = parts.path.strip("/")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name):
            raise UserError(
                f"{shown(url)}: must be milvus://host:port/name, the name of letters, digits and _; got '{shown(name)}'"
            )
        return f"{'https' if parts.scheme.endswith('tls') else 'http'}://{parts.netloc}", name
    if not parts.path.endswith(".db"):
        raise UserError(f"{shown(url)}: must be milvus://host:port/name, or milvus:FILE.db for Milvus Lite")
    return os.path.abspath(parts.path), "gallery"


def _connect(uri: str) -> Any:
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError as error:
        raise UserError(
            f"a gallery in Milvus needs pymilvus, and milvus-lite for a file ({error}): pip install pymilvus milvus-lite (the extra milvus)"
        ) from None
    # What it logs of refusals, with tracebacks, `_said` says in a line.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    if "://" in uri:
        # Not one that pymilvus shares: `close` would leave it open.
        return MilvusClient(uri, token=os.environ.get(TOKEN, ""), dedicated=True)
    with writing(uri, remedy="name another file"):
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    # Milvus Lite's server is in this process, and logs what it lacks.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    try:
        with _lite:
            client = MilvusClient(uri, dedicated=True, grpc_options=_WITHOUT_PINGS)
            _clients[uri] += 1
    except MilvusException as error:
        raise UserError(
            f"{shown(uri)}: Milvus Lite cannot open it ({shown(error.message)}): is another process using it? A file is of one process "
            "at a time, a server takes many"
        ) from error
    return client


def _disconnect(client: Any, uri: str) -> None:
    """Close a client, and with the last one of a file its server, which pymilvus started and leaves
    running."""
    client.close()
    if "://" in uri:
        return
    from milvus_lite import server_manager_instance

    with _lite:
        _clients[uri] -= 1
        if not _clients[uri]:
            server_manager_instance.release_server(uri)


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    """Turn Milvus' refusals into a line for the user. name: of the gallery, for messages."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pymilvus", "milvus_lite", "grpc")):
            raise
        raise UserError(f"{name}: Milvus refuses: {shown(getattr(error, 'message', error))}") from error


def _hash(text: str) -> int:
    """Return 63 bits that stand for a text in filters."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _new_ids(count: int) -> int:
    """Return the first of `count` ids that nobody has had: milliseconds, and 20 random bits for processes
    that ask at the same time."""
    return (time.time_ns() // 1_000_000 << 20) + secrets.randbits(20)


def _by_id(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def _refuse_no_text(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(f"'{shown(text)}': Milvus keeps text only ({error.reason})") from None
    if size > _LONGEST:
        raise UserError(
            f"'{shown(text[:40])}...': Milvus keeps at most {_LONGEST:,} bytes of a name, got {size:,}"
        )


def _blocks(items: Sequence[Any]) -> Iterator[list[Any]]:
    return (list(items[start : start + _AT_ONCE]) for start in range(0, len(items), _AT_ONCE))
