"""Keep a gallery in one SQLite file: people, pictures, embeddings, facts.

    store = SqliteStore("people.gallery")
    with store.transaction():
        store.add("Ann", [embedding])

A change is on the disk when its transaction ends. Processes on one machine may read and write at the same
time: readers see whole transactions, writers wait for each other. The means of people's embeddings are kept
in memory, and made again when another process has written. `-wal` and `-shm` beside the file belong to it;
`sqlite3 people.gallery ".backup copy.gallery"` copies it while it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plsc.checkpoint.tensorfile import sync_folder
from plsc.errors import MissingFileError, UserError, shown
from plsc.evaluation.search import search, unit_rows
from plsc.utils.atomic_write import atomic_write

_WAIT = 60.0  # seconds for another process that writes
_APPLICATION = 0x706C7363  # "plsc", for `file` and other programs
_SCHEMA = f"""
PRAGMA application_id={_APPLICATION};
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, measures INTEGER NOT NULL);
CREATE TABLE pictures (
    id INTEGER PRIMARY KEY, person INTEGER NOT NULL REFERENCES people ON DELETE CASCADE,
    vector BLOB NOT NULL);
CREATE INDEX pictures_of_a_person ON pictures (person);
"""
_PICTURES = "SELECT name, vector FROM pictures JOIN people ON people.id = person"


class _People(NamedTuple):
    """What is searched."""

    version: int
    names: list[str]
    means: np.ndarray
    """float32 [people, D]: of each person's pictures, of length 1."""


class SqliteStore:
    """A gallery's file; `open` or `create` makes one. Threads may share one."""

    def __init__(self, path: str | os.PathLike):
        self.name = shown(path)
        self._lock = threading.RLock()
        self._people: _People | None = None
        with _said(path):
            self._sql = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            self._path, self._file = os.path.abspath(path), os.stat(path)
            if self._all("PRAGMA application_id") != [(_APPLICATION,)]:
                raise UserError(f"{self.name}: is no gallery; name a file that plsc gallery build wrote")
            # A removed embedding is overwritten, and what was written is on the disk after each transaction.
            for setting in ("secure_delete=ON", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                self._sql.execute(f"PRAGMA {setting}")

    @classmethod
    def open(cls, path: str | os.PathLike) -> SqliteStore:
        """Open a gallery. Raises MissingFileError, UserError."""
        if not os.path.isfile(path):
            raise MissingFileError(f"{shown(path)}: there is no gallery; make one with plsc gallery build")
        if not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise UserError(f"{shown(path)}: SQLite writes beside what it reads; copy it into another folder")
        return cls(path)

    @classmethod
    def check_new(cls, path: str | os.PathLike) -> None:
        """Refuse by UserError a path at which no gallery can be made."""
        if os.path.lexists(path):
            raise UserError(f"{shown(path)}: is there already; remove it first, or take another name")

    @classmethod
    def create(cls, path: str | os.PathLike, fill: Callable[[SqliteStore], None]) -> SqliteStore:
        """Make a gallery; it is at `path` when `fill` has written into it and all is on the disk."""
        cls.check_new(path)  # another process may have made one since the build began
        with _said(path), atomic_write(path) as beside:
            for file in (path, beside):  # of a gallery that was deleted by hand, and of a killed build
                for end in ("-wal", "-shm", "-journal"):
                    Path(f"{file}{end}").unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(beside)) as sql:
                sql.executescript(_SCHEMA)
            with contextlib.closing(cls(beside)) as store, store.transaction():
                fill(store)
        sync_folder(os.path.dirname(path) or ".")
        return cls(path)

    def close(self) -> None:
        self._sql.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write: all or nothing, and on the disk at the end. Waits for other writers."""
        with self._lock, _said(self.name):
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._sql.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self._sql.execute("ROLLBACK")
                raise
            finally:
                self._people = None

    def facts(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._all("SELECT key, value FROM facts")}

    def set_facts(self, **facts: Any) -> None:
        for key, value in facts.items():
            self._all("REPLACE INTO facts VALUES (?, ?)", key, json.dumps(value))

    def __len__(self) -> int:
        return len(self._current().names)

    def names(self) -> list[str]:
        return self._current().names

    def pictures(self) -> int:
        return self._all("SELECT COUNT(*) FROM pictures")[0][0]

    def add(self, name: str, vectors: Sequence[np.ndarray], measures: bool = True) -> None:
        """Add pictures of a person, new or known: their embeddings float32 [D] of length 1. measures: whether
        they measure the threshold."""
        self._all("INSERT OR IGNORE INTO people (name, measures) VALUES (?, ?)", name, measures)
        ((person,),) = self._all("SELECT id FROM people WHERE name = ?", name)
        for vector in vectors:
            data = vector.astype("<f4").tobytes()
            self._all("INSERT INTO pictures (person, vector) VALUES (?, ?)", person, data)
        self._people = None

    def remove(self, name: str) -> bool:
        """Remove a person with all pictures; return whether there was one."""
        removed = self._all("DELETE FROM people WHERE name = ? RETURNING id", name)
        self._people = None
        return bool(removed)

    def search(self, embeddings: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
        """Find the most similar people for each embedding [n, D]: names and cosines, best first."""
        _, names, means = self._current()
        if not names:
            return [[] for _ in embeddings]
        cosines, people = search(embeddings, means, top)
        return [
            [(names[person], cosine) for person, cosine in zip(*both)]
            for both in zip(people.tolist(), cosines.tolist())
        ]

    def measuring(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pictures that measure the threshold, float32 [n, D], and whose they are, text [n]."""
        return _columns(self._all(f"{_PICTURES} WHERE measures ORDER BY person, pictures.id"))

    def _current(self) -> _People:
        with self._lock:
            ((version,),) = self._all("PRAGMA data_version")
            if self._people is None or self._people.version != version:
                vectors, owners = _columns(self._all(f"{_PICTURES} ORDER BY person, pictures.id"))
                starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])[: len(owners)])
                means = unit_rows(np.add.reduceat(vectors, starts)) if len(starts) else vectors
                self._people = _People(version, owners[starts].tolist(), means)
            return self._people

    def _all(self, statement: str, *values: Any) -> list[tuple]:
        with self._lock, _said(self.name):
            if not os.path.samestat(self._file, os.stat(self._path)):
                raise UserError(f"{self.name}: has been replaced; open it again, or start the service again")
            return self._sql.execute(statement, values).fetchall()


@contextlib.contextmanager
def _said(path: str | os.PathLike) -> Iterator[None]:
    """Turn SQLite's errors, and those of the disk, into a line for the user."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or shown(error)
        damaged = type(error) is sqlite3.DatabaseError  # of its subclasses none says so
        remedy = "it is damaged: take a copy, or build it again" if damaged else "nothing was changed"
        raise UserError(f"{shown(path)}: {reason}; {remedy}") from error


def _columns(rows: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """Turn rows of name and vector into float32 [n, D], and text [n]."""
    vectors = np.array([np.frombuffer(data, "<f4") for _, data in rows], np.float32)
    return vectors, np.array([name for name, _ in rows], object)
