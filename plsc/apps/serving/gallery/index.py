"""Hold the rows that are searched. They follow from the store, and can be made of it again at any time.

A large gallery has them in a file beside it as well, which is mapped into memory: a million rows are open at
once. Who was changed since the file was written is read from the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plsc.apps.serving.gallery.rows import Rows
from plsc.apps.serving.gallery.store import Revision, unfinished
from plsc.checkpoint.tensorfile import FileRows, TensorFile, layout, write_synced
from plsc.errors import UserError
from plsc.utils.vectors import unit_rows

FILE_ROWS = 50_000
"""From which on there is a file: fewer are read from the store in some tenths of a second."""
_PEOPLE_AT_ONCE = 4096


class Index:
    """The rows of a gallery, of each collection by themselves.

    Args:
        width: numbers of an embedding. template: see `Gallery.build`.
    """

    def __init__(self, width: int, template: str):
        self._width = width
        self._template = template
        self._rows: dict[str, Rows] = {}
        self._newest = 0  # the largest id of a person
        self._unsaved = 0  # people who are not in the file as they are here
        self.people = 0
        """Whose rows these are."""

    @classmethod
    def of_store(cls, store: Any, width: int, template: str) -> Index:
        """Make the rows of everybody in a store."""
        index = cls(width, template)
        people: dict[str, list[int]] = {}
        for person in store.people():
            people.setdefault(person.collection, []).append(person.id)
        for collection, ids in people.items():
            starts = range(0, len(ids), _PEOPLE_AT_ONCE)
            parts = [index._read(store, ids[start : start + _PEOPLE_AT_ONCE]) for start in starts]
            rows, owners = map(np.concatenate, zip(*parts))
            index._put(collection, rows, owners)
        index._unsaved = index.people
        return index

    @classmethod
    def of_file(cls, path: Path, width: int, template: str) -> tuple[Index, Revision] | None:
        """Map the rows of a file, and say of which revision they are; None: there is none, or it is
        damaged."""
        index = cls(width, template)
        try:
            before = _identity(path)
            tensors = TensorFile(path)
            for number, collection in enumerate(json.loads(tensors.read("collections").tobytes())):
                rows, owners = tensors.rows(f"rows {number}"), tensors.read(f"owners {number}")
                if rows.shape != (len(owners), width) or rows.dtype != np.float32 or owners.dtype != np.int64:
                    return None
                index._put(collection, rows, owners)
            revision = Revision(*tensors.read("revision").tolist())
            same = _identity(path) == before  # replaced meanwhile, it is of two halves
            return (index, revision) if same else None
        except (OSError, UserError, KeyError, TypeError, ValueError):
            return None

    def save(self, path: Path, revision: Revision) -> None:
        """Write the rows, which are of a revision, to a file. The caller is the only one to write. Raises
        OSError."""
        names = json.dumps([*self._rows]).encode()
        arrays = {"collections": np.frombuffer(names, np.uint8), "revision": np.array(revision, np.int64)}
        for number, rows in enumerate(self._rows.values()):
            arrays[f"rows {number}"], arrays[f"owners {number}"] = rows.all()
        remove(path)
        beside = unfinished(path)
        try:
            write_synced(beside, layout(arrays))
            beside.rename(path)
        except OSError:
            remove(path)  # a part of it must not fill the disk
            raise

    def is_due(self, path: Path) -> bool:
        """Say whether the file should be written: the gallery is large, and there is none, or one that lacks
        a quarter of it."""
        return len(self) >= FILE_ROWS and (4 * self._unsaved > self.people or not path.exists())

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self._rows.values()))

    def update(self, store: Any, people: set[int]) -> None:
        """Replace the rows of these people by what the store has of them."""
        known, self._newest = self._newest, max(self._newest, *people, 0)
        self._unsaved += len(people)
        if replaced := [person for person in people if person <= known]:
            self.people -= sum(rows.remove(replaced) for rows in self._rows.values())
        there: dict[str, list[int]] = {}
        for person in store.people(people):
            there.setdefault(person.collection, []).append(person.id)
        for collection, ids in there.items():
            rows, owners = self._read(store, ids)
            if collection not in self._rows:
                self._put(collection, rows, owners)
                continue
            starts = np.flatnonzero(np.diff(owners, prepend=-1))
            for owner, own in zip(owners[starts].tolist(), np.split(rows, starts[1:])):
                self._rows[collection].add(owner, own)
                self.people += 1

    def of(self, collection: str, person: int) -> np.ndarray:
        """Return the rows of a person float32 [n, D]."""
        return self._rows[collection].of(person)

    def __contains__(self, collection: object) -> bool:
        """Say whether somebody is in this collection, or was."""
        return collection in self._rows

    def nearest(
        self, queries: np.ndarray, people: int, collection: str | None = None
    ) -> list[dict[int, float]]:
        """Find for each query the most similar people, of a collection or of all: see `Rows.nearest`."""
        wanted = [*self._rows.values()] if collection is None else [self._rows[collection]]
        found = [rows.nearest(queries, people) for rows in wanted if len(rows)]
        if len(found) < 2:
            return found[0] if found else [{} for _ in queries]
        return [_best(parts, people) for parts in zip(*found)]

    def _put(self, collection: str, rows: np.ndarray | FileRows, owners: np.ndarray) -> None:
        self._rows[collection] = Rows(rows, owners)
        self._newest = max(self._newest, int(owners.max(initial=0)))
        self.people += len(np.unique(owners))

    def _read(self, store: Any, people: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of people float32 [n, D], and whose each is int64 [n], increasing."""
        vectors, owners = store.embeddings(people)
        if not len(vectors):
            return np.empty((0, self._width), np.float32), np.empty(0, np.int64)
        if vectors.shape[1] != self._width:
            raise UserError(
                f"{store.name}: has embeddings of {vectors.shape[1]} numbers, its network has {self._width}; build it again"
            )
        if self._template == "images":
            return vectors, owners
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        return unit_rows(np.add.reduceat(vectors, starts, axis=0)), owners[starts]


def load(store: Any, width: int, template: str) -> Any:
    """Return the rows of a store: where it searches itself, what does; else those of the index's file, if it
    is the store's, and what has changed since; else those of everybody."""
    path = path_of(store)
    found = path and Index.of_file(path, width, template)
    if found:
        rows, since = found
        changed = store.changes(since)
        if changed is not None:
            rows.update(store, changed)
            return rows
    return of_everybody(store, width, template)


def of_everybody(store: Any, width: int, template: str) -> Any:
    """Return the rows of everybody in a store; where it searches itself, what does."""
    return Index.of_store(store, width, template) if store.file else store.searched(template)


def path_of(store: Any) -> Path | None:
    """Return the path of the index's file; None: the rows are searched elsewhere."""
    return store.file and Path(f"{store.file}.index")


def remove(path: Path | None) -> None:
    """Remove an index's file, and what a process that was killed has left of one."""
    for each in (path, unfinished(path)) if path else ():
        each.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _best(parts: Sequence[dict[int, float]], people: int) -> dict[int, float]:
    found = [item for part in parts for item in part.items()]
    return dict(sorted(found, key=lambda item: (-item[1], item[0]))[:people])
