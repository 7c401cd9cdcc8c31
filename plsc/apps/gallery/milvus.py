"""Keep a gallery in Milvus, and search there: for more people than one machine has memory for.

    Gallery.open("milvus://host:19530/people")    # PLSC_MILVUS_TOKEN has the token, or user:password
    Gallery.open("milvus:people.db")              # a file of Milvus Lite, for one process

One collection has all rows: people, each with the mean of the pictures as the vector, their pictures, and the
facts. The methods are those of SqliteStore. Milvus has no transactions: one process writes at
a time, and what is killed leaves what it has written so far; a person's own row is written last, so
whoever is found is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from plsc.errors import MissingFileError, UserError, shown
from plsc.evaluation.search import unit_rows

TOKEN = "PLSC_MILVUS_TOKEN"  # noqa: S105 (the name of a variable)
_LONGEST = 65_535  # bytes of a text, Milvus' limit
_MOST = 16_384  # rows of an answer, Milvus' limit
_FACTS, _PERSON, _KNOWN, _MEASURES = range(4)  # kinds of rows


class MilvusStore:
    """A gallery in Milvus; `open` or `create` makes one."""

    def __init__(self, url: str):
        self.name = shown(url)
        self._lock = threading.RLock()
        uri, self._collection = _place(url)
        with self.transaction():
            self._client = _connect(uri)
        if self._exists():
            self._do("load_collection")

    @classmethod
    def open(cls, url: str) -> MilvusStore:
        """Open a gallery. Raises MissingFileError, UserError."""
        store = cls(url)
        if not store._exists():
            raise MissingFileError(f"{store.name}: there is no gallery; make one with plsc gallery build")
        return store

    @classmethod
    def check_new(cls, url: str) -> None:
        """Refuse by UserError a place at which there is a gallery."""
        with contextlib.closing(cls(url)) as store:
            if store._exists():
                raise UserError(f"{store.name}: is there already; remove it first, or take another name")

    @classmethod
    def create(cls, url: str, fill: Callable[[MilvusStore], None]) -> MilvusStore:
        """Make a gallery, and nothing where `fill` fails."""
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
        """Write; what is refused halfway leaves the rest. Milvus' refusals are a line for the user."""
        with self._lock:
            try:
                yield
            except Exception as error:
                if not type(error).__module__.startswith(("pymilvus", "milvus_lite", "grpc")):
                    raise
                reason = shown(getattr(error, "message", error))
                raise UserError(f"{self.name}: Milvus refuses: {reason}") from error

    def facts(self) -> dict[str, Any]:
        rows = self._rows(_FACTS, "text")
        return json.loads(rows[0]["text"]) if rows else {}

    def set_facts(self, **facts: Any) -> None:
        """Change facts, after somebody was added."""
        text = json.dumps({**self.facts(), **facts})
        width = self._do("describe_collection")["fields"][-1]["params"]["dim"]
        self._do("upsert", [_row(_FACTS, text, np.ones(width, np.float32), number=0)])

    def __len__(self) -> int:
        return self._count(_PERSON)

    def names(self) -> list[str]:
        with self.transaction():
            given = {"filter": f"kind == {_PERSON}", "output_fields": ["text"]}
            pages = self._client.query_iterator(self._collection, **given)
            return sorted(row["text"] for page in iter(pages.next, []) for row in page)

    def pictures(self) -> int:
        return self._count(_KNOWN) + self._count(_MEASURES)

    def add(self, name: str, vectors: Sequence[np.ndarray], measures: bool = True) -> None:
        if not self._exists():
            self._make(len(vectors[0]))
        kind = _MEASURES if measures else _KNOWN
        self._do("insert", [_row(kind, name, vector) for vector in vectors])
        person = _hash(name)
        which = f"person == {person} and kind in [{_KNOWN}, {_MEASURES}]"
        found = self._do("query", filter=which, output_fields=["vector"])
        mean = unit_rows(np.sum([row["vector"] for row in found], axis=0, dtype=np.float32)[np.newaxis])[0]
        self._do("upsert", [_row(_PERSON, name, mean, number=person)])

    def remove(self, name: str) -> bool:
        person = _hash(name)
        there = self._do("query", filter=f"id == {person}", output_fields=["id"])
        self._do("delete", filter=f"person == {person}")
        return bool(there)

    def search(self, embeddings: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
        if not len(embeddings):
            return []
        which = f"kind == {_PERSON}"
        found = self._do("search", [*embeddings], filter=which, limit=top, output_fields=["text"])
        return [[(hit["entity"]["text"], float(hit["distance"])) for hit in hits] for hits in found]

    def measuring(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._rows(_MEASURES, "text", "vector")
        names = np.array([row["text"] for row in rows], object)
        return np.array([row["vector"] for row in rows], np.float32), names

    def _rows(self, kind: int, *fields: str) -> list[dict[str, Any]]:
        return self._do("query", filter=f"kind == {kind}", output_fields=[*fields], limit=_MOST)

    def _count(self, kind: int) -> int:
        return self._do("query", filter=f"kind == {kind}", output_fields=["count(*)"])[0]["count(*)"]

    def _exists(self) -> bool:
        return self._do("has_collection")

    def _make(self, width: int) -> None:
        """Make the collection, for vectors of `width` numbers."""
        from pymilvus import DataType

        schema = self._client.create_schema(enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("kind", DataType.INT64)
        schema.add_field("person", DataType.INT64)
        schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._do("create_collection", schema=schema, index_params=index, consistency_level="Strong")

    def _do(self, action: str, *given: Any, **options: Any) -> Any:
        """Call a method of Milvus' client for the collection."""
        with self.transaction():
            return getattr(self._client, action)(self._collection, *given, **options)


def _row(kind: int, text: str, vector: np.ndarray, number: int | None = None) -> dict[str, Any]:
    number = secrets.randbits(63) if number is None else number
    return {"id": number, "kind": kind, "person": _hash(text), "text": text, "vector": vector}


def _place(url: str) -> tuple[str, str]:
    """Return what pymilvus opens, and the collection's name, for a gallery's URL."""
    parts = urlsplit(url)
    name = parts.path.strip("/")
    if parts.netloc and name.isidentifier() and name.isascii():
        return f"http://{parts.netloc}", name
    if not parts.netloc and name.endswith(".db"):
        return os.path.abspath(parts.path), "gallery"
    raise UserError(f"{shown(url)}: must be milvus://host:port/name, or milvus:FILE.db for Milvus Lite")


def _connect(uri: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise UserError(
            "a gallery in Milvus needs: pip install pymilvus milvus-lite (the extra milvus)"
        ) from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # its tracebacks are said in a line
    return MilvusClient(uri, token=os.environ.get(TOKEN, ""))


def _hash(text: str) -> int:
    """Return 63 bits that stand for a name in filters, which so never hold text of others."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
