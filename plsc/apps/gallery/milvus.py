"""Store and search a gallery in Milvus, if its embeddings do not fit one machine's memory.

    Gallery.open("milvus://host:19530/people")    # PLSC_MILVUS_TOKEN has the token, or user:password
    Gallery.open("milvus:people.db")              # a Milvus Lite file, for one process

One collection contains all rows: the people, their pictures and the facts. The vector of a person's row is
the normalized mean of the person's pictures, except misfiled ones. The methods are those of SqliteStore.

Milvus has no transactions. Only one process may write at a time. If a process is killed, what it has written
stays. A new person's row is written after the pictures. So a search finds only people whose pictures are
complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from plsc.errors import MissingFileError, UserError, escape
from plsc.evaluation.search import unit_rows

TOKEN = "PLSC_MILVUS_TOKEN"  # noqa: S105 (the name of a variable)
_LONGEST = 65_535  # bytes per text, Milvus's limit
_FACTS, _PERSON, _KNOWN, _MEASURES = range(4)  # row kinds
_PICTURES = f"kind in [{_KNOWN}, {_MEASURES}]"


class MilvusStore:
    """A gallery in Milvus. Get one from `open` or `create`."""

    def __init__(self, url: str):
        self.name = escape(url)
        self._lock = threading.RLock()
        uri, self._collection = _parse_url(url)
        with self.transaction():
            self._client = _connect(uri)
        if self._exists():
            self._do("load_collection")

    @classmethod
    def open(cls, url: str) -> MilvusStore:
        """Open a gallery.

        Raises MissingFileError if there is no gallery, and UserError if Milvus reports an error.
        """
        store = cls(url)
        if not store._exists():
            raise MissingFileError(f"{store.name}: there is no gallery; make one with plsc gallery build")
        return store

    @classmethod
    def check_new(cls, url: str) -> None:
        """Raise UserError if there is a gallery at the URL."""
        with contextlib.closing(cls(url)) as store:
            if store._exists():
                raise UserError(f"{store.name}: exists already; remove it first, or choose another name")

    @classmethod
    def create(cls, url: str, fill: Callable[[MilvusStore], None]) -> MilvusStore:
        """Make a gallery.

        Args:
            url: milvus://host:port/name, or milvus:FILE.db.
            fill: writes the gallery's content. If it raises an error, the collection is removed.
        """
        store = cls(url)
        try:
            fill(store)
        except BaseException:
            store._do("drop_collection")
            raise
        return store

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write. If a call fails, what was written before stays.

        Raises UserError if Milvus reports an error.
        """
        with self._lock:
            try:
                yield
            except Exception as error:
                if not type(error).__module__.startswith(("pymilvus", "milvus_lite", "grpc")):
                    raise
                reason = escape(getattr(error, "message", error))
                raise UserError(f"{self.name}: Milvus refuses: {reason}") from error

    def facts(self) -> dict[str, Any]:
        rows = self._do("query", filter=f"kind == {_FACTS}", output_fields=["text"])
        return json.loads(rows[0]["text"]) if rows else {}

    def set_facts(self, **facts: Any) -> None:
        """Change facts. At least one person must have been added before."""
        text = json.dumps({**self.facts(), **facts})
        width = self._do("describe_collection")["fields"][-1]["params"]["dim"]
        self._do("upsert", [_row(_FACTS, text, np.ones(width, np.float32), number=0)])

    def __len__(self) -> int:
        which = f"kind == {_PERSON}"
        return self._do("query", filter=which, output_fields=["count(*)"])[0]["count(*)"]

    def people(self) -> dict[str, int]:
        """Return each person's picture count, sorted by name."""
        return dict(sorted(Counter(row["text"] for row in self._all(_PICTURES, "text")).items()))

    def pictures(self, name: str) -> tuple[list[str], np.ndarray]:
        if not self._exists():  # no person has been added yet
            return [], np.empty((0, 0), np.float32)
        found = self._all(f"person == {_hash(name)} and {_PICTURES}", "picture", "vector")
        found.sort(key=lambda row: row["picture"])
        return [row["picture"] for row in found], np.array([row["vector"] for row in found], np.float32)

    def add(
        self, name: str, pictures: Sequence[str], vectors: Sequence[np.ndarray], measures: bool = True
    ) -> None:
        if not self._exists():
            self._make(len(vectors[0]))
        kind = _MEASURES if measures else _KNOWN
        rows = [_row(kind, name, *both) for both in zip(vectors, pictures, strict=True)]
        if rows:
            self._do("insert", rows)
        self._average(name)

    def remove(self, name: str, picture: str | None = None) -> bool:
        person = _hash(name)
        number = person if picture is None else _hash(f"{name}\0{picture}")
        there = self._do("query", filter=f"id == {number}", output_fields=["id"])
        self._do("delete", filter=f"person == {person}" if picture is None else f"id == {number}")
        if picture is not None:
            self._average(name)
        return bool(there)

    def set_misfiled(self, pictures: Sequence[tuple[str, str]]) -> None:
        old = self.facts()["threshold"]["misfiled"]
        for person in {person for person, _ in [*old, *pictures]}:
            self._average(person, {picture for owner, picture in pictures if owner == person})

    def _average(self, name: str, misfiled: Collection[str] = ()) -> None:
        """Write a person's row without misfiled pictures, or remove it if the person has no pictures left."""
        person, (pictures, vectors) = _hash(name), self.pictures(name)
        counted = vectors[[picture not in misfiled for picture in pictures]]
        if len(counted):
            mean = unit_rows(counted.sum(axis=0, keepdims=True))[0]
            self._do("upsert", [_row(_PERSON, name, mean, number=person)])
        else:
            self._do("delete", filter=f"person == {person}")

    def search(self, embeddings: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
        if not len(embeddings):
            return []
        which = f"kind == {_PERSON}"
        found = self._do("search", [*embeddings], filter=which, limit=top, output_fields=["text"])
        return [[(hit["entity"]["text"], float(hit["distance"])) for hit in hits] for hits in found]

    def all_pictures(self) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
        rows = self._all(_PICTURES, "text", "picture", "kind", "vector")
        rows.sort(key=lambda row: (row["text"], row["picture"]))
        vectors = np.array([row["vector"] for row in rows], np.float32)
        measures = np.array([row["kind"] == _MEASURES for row in rows], bool)
        return vectors, [row["text"] for row in rows], [row["picture"] for row in rows], measures

    def _all(self, which: str, *fields: str) -> list[dict[str, Any]]:
        """Return the given fields from all rows that match a filter."""
        with self.transaction():
            given = {"filter": which, "output_fields": [*fields]}
            pages = self._client.query_iterator(self._collection, **given)
            return [row for page in iter(pages.next, []) for row in page]

    def _exists(self) -> bool:
        """Return whether the collection exists."""
        return self._do("has_collection")

    def _make(self, width: int) -> None:
        """Make the collection for vectors with `width` numbers."""
        from pymilvus import DataType

        schema = self._client.create_schema(enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("kind", DataType.INT64)
        schema.add_field("person", DataType.INT64)
        schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("picture", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._do("create_collection", schema=schema, index_params=index, consistency_level="Strong")

    def _do(self, action: str, *given: Any, **options: Any) -> Any:
        """Call a Milvus client method with the collection as the first argument."""
        with self.transaction():
            return getattr(self._client, action)(self._collection, *given, **options)


def _row(
    kind: int, text: str, vector: np.ndarray, picture: str = "", number: int | None = None
) -> dict[str, Any]:
    """Make a row for the collection. `text` is the person's name, or the facts as JSON.

    `number` is the row's id. None makes one from the person's and the picture's names.
    """
    number = _hash(f"{text}\0{picture}") if number is None else number
    row = {"id": number, "kind": kind, "person": _hash(text)}
    return {**row, "text": text, "picture": picture, "vector": vector}


def _parse_url(url: str) -> tuple[str, str]:
    """Return the URI that pymilvus opens and the collection's name for a gallery's URL."""
    parts = urlsplit(url)
    name = parts.path.strip("/")
    if parts.netloc and name.isidentifier() and name.isascii():
        return f"http://{parts.netloc}", name
    if not parts.netloc and name.endswith(".db"):
        return os.path.abspath(parts.path), "gallery"
    raise UserError(f"{escape(url)}: must be milvus://host:port/name, or milvus:FILE.db for Milvus Lite")


def _connect(uri: str) -> Any:
    """Open a client for a URI. Raises UserError if pymilvus is not installed."""
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise UserError(
            "a gallery in Milvus needs: pip install pymilvus milvus-lite (the extra milvus)"
        ) from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # UserError replaces its tracebacks
    return MilvusClient(uri, token=os.environ.get(TOKEN, ""))


def _hash(text: str) -> int:
    """Return 63 bits that represent a name in filters, so that filters never contain text from users."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
