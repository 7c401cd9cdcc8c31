"""Keep a gallery in Milvus, and search there: for more people than one machine has memory for.

    Gallery.open("milvus://host:19530/people")    # PLSC_MILVUS_TOKEN has the token, or user:password
    Gallery.open("milvus:people.db")              # a file of Milvus Lite, for one process

Three collections: NAME has the people, each with the mean of the pictures as the vector; NAME_pictures the
pictures, and the strangers'; NAME_facts the facts. The methods are those of SqliteStore. Milvus has no
transactions: one process writes at a time, and what is killed leaves what it has written so far; a person's
own row is written last, so whoever is found is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from plsc.errors import MissingFileError, UserError, shown
from plsc.utils.vectors import unit_rows

TOKEN = "PLSC_MILVUS_TOKEN"  # noqa: S105 (the name of a variable)
_LONGEST = 65_535  # bytes of a text, Milvus' limit
_MOST = 16_384  # rows of an answer, Milvus' limit
_FIELDS = {
    "": {"name": "VARCHAR"},
    "_pictures": {"person": "INT64", "name": "VARCHAR", "kind": "INT64"},
    "_facts": {"value": "VARCHAR"},
}
_KNOWN, _MEASURES, _STRANGER = range(3)  # kinds of pictures


class MilvusStore:
    """A gallery in Milvus; `open` or `create` makes one."""

    def __init__(self, url: str):
        self.name = shown(url)
        self._lock = threading.RLock()
        uri, self._base = _place(url)
        with self.transaction():
            self._client = _connect(uri)
        for part in filter(self._has, _FIELDS):
            self._do("load_collection", part)

    @classmethod
    def open(cls, url: str) -> MilvusStore:
        """Open a gallery. Raises MissingFileError, UserError."""
        store = cls(url)
        if not store._has("_facts"):
            raise MissingFileError(f"{store.name}: there is no gallery; make one with plsc gallery build")
        return store

    @classmethod
    def check_new(cls, url: str) -> None:
        """Refuse by UserError a place at which there is a gallery."""
        with contextlib.closing(cls(url)) as store:
            if store._has("_facts"):
                raise UserError(f"{store.name}: is there already; remove it first, or take another name")

    @classmethod
    def create(cls, url: str, fill: Callable[[MilvusStore], None]) -> MilvusStore:
        """Make a gallery, and nothing where `fill` fails."""
        store = cls(url)
        try:
            store._make("_facts", 2)
            fill(store)
        except BaseException:
            for part in _FIELDS:
                store._do("drop_collection", part)
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
        rows = self._query("_facts", "id == 0", ["value"])
        return json.loads(rows[0]["value"]) if rows else {}

    def set_facts(self, **facts: Any) -> None:
        row = {"id": 0, "value": json.dumps({**self.facts(), **facts}), "vector": [1.0, 0.0]}  # it wants one
        self._do("upsert", "_facts", [row])

    def __len__(self) -> int:
        return self._query("", "", ["count(*)"])[0]["count(*)"]

    def __contains__(self, name: str) -> bool:
        return bool(self._query("", f"id == {_hash(name)}", ["name"]))

    def names(self) -> list[str]:
        with self.transaction():
            pages = self._client.query_iterator(self._base, filter="id >= 0", output_fields=["name"])
            return sorted(row["name"] for page in iter(pages.next, []) for row in page)

    def pictures(self) -> int:
        return self._query("_pictures", f"kind != {_STRANGER}", ["count(*)"])[0]["count(*)"]

    def add(self, name: str, vectors: Sequence[np.ndarray], measures: bool = True) -> None:
        person, kind = _hash(name), _MEASURES if measures else _KNOWN
        for part in ("", "_pictures"):
            self._make(part, len(vectors[0]))
        of_person = {"person": person, "name": name, "kind": kind}
        self._do("insert", "_pictures", [{**of_person, "vector": vector} for vector in vectors])
        found = self._query("_pictures", f"person == {person}", ["vector"])
        mean = unit_rows(np.sum([row["vector"] for row in found], axis=0, dtype=np.float32)[np.newaxis])[0]
        self._do("upsert", "", [{"id": person, "name": name, "vector": mean}])

    def remove(self, name: str) -> None:
        self._do("delete", "", filter=f"id == {_hash(name)}")
        self._do("delete", "_pictures", filter=f"person == {_hash(name)}")

    def search(self, embeddings: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
        if not len(embeddings):
            return []
        found = self._do("search", "", [*embeddings], limit=top, output_fields=["name"])
        return [[(hit["entity"]["name"], float(hit["distance"])) for hit in hits] for hits in found]

    def measuring(self) -> tuple[np.ndarray, np.ndarray]:
        return self._of_kind(_MEASURES)

    def strangers(self) -> tuple[np.ndarray, np.ndarray]:
        return self._of_kind(_STRANGER)

    def set_strangers(self, vectors: np.ndarray, names: Sequence[str]) -> None:
        """Store the pictures of people held out from training, once, after some of known people."""
        common = {"person": 0, "kind": _STRANGER}
        rows = [{**common, "name": name, "vector": vector} for name, vector in zip(names, vectors)]
        if rows:
            self._do("insert", "_pictures", rows)

    def _of_kind(self, kind: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._query("_pictures", f"kind == {kind}", ["name", "vector"])
        names = np.array([row["name"] for row in rows], object)
        return np.array([row["vector"] for row in rows], np.float32), names

    def _has(self, part: str) -> bool:
        return self._do("has_collection", part)

    def _make(self, part: str, width: int) -> None:
        """Make a collection for vectors of `width` numbers, if it is not there."""
        from pymilvus import DataType

        if self._has(part):
            return
        schema = self._client.create_schema(auto_id=part == "_pictures", enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        for field, kind in _FIELDS[part].items():
            schema.add_field(field, DataType[kind], **({"max_length": _LONGEST} if kind == "VARCHAR" else {}))
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._do("create_collection", part, schema=schema, index_params=index, consistency_level="Strong")

    def _query(self, part: str, which: str, fields: list[str]) -> list[dict[str, Any]]:
        """Read the rows for which a filter is true, at most _MOST."""
        limit = {} if fields == ["count(*)"] else {"limit": _MOST}
        return self._do("query", part, filter=which, output_fields=fields, **limit)

    def _do(self, action: str, part: str, *given: Any, **options: Any) -> Any:
        """Call a method of Milvus' client for a collection."""
        with self.transaction():
            return getattr(self._client, action)(self._base + part, *given, **options)


def _place(url: str) -> tuple[str, str]:
    """Return what pymilvus opens, and the name of the collections, for a gallery's URL."""
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
