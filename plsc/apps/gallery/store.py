"""Store a gallery in one SQLite file: people, pictures, embeddings and facts.

    store = SqliteStore.open("people.gallery")
    with store.transaction():
        store.add("Ann", ["1.jpg"], [embedding])

A gallery's file is never modified. A transaction writes a changed copy beside it, and then renames the copy
to the gallery's name. So at every moment one file contains a whole transaction's result. It may be copied,
moved, replaced and restored while other processes use it. It contains nothing that was removed.

Readers take no lock and never wait. Writers lock the file, and wait for each other. The people's mean
embeddings are kept in memory. They are computed again if the file was replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from plsc.checkpoint.tensorfile import sync_folder
from plsc.errors import MissingFileError, UserError, escape
from plsc.evaluation.search import search, unit_rows
from plsc.utils.atomic_write import atomic_write

_WAIT = 60.0  # seconds to wait for another writer
_AT_ONCE = 8192  # most rows in memory, in addition to the people's means
_APPLICATION = 0x706C7363  # "plsc", for `file` and other programs
_SCHEMA = f"""
PRAGMA application_id={_APPLICATION};
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, measures INTEGER NOT NULL);
CREATE TABLE pictures (
    id INTEGER PRIMARY KEY, person INTEGER NOT NULL REFERENCES people ON DELETE CASCADE,
    name TEXT NOT NULL, vector BLOB NOT NULL, misfiled INTEGER NOT NULL DEFAULT 0, UNIQUE (person, name));
"""
_JOINED = "FROM pictures JOIN people ON people.id = person"


class _State(NamedTuple):
    """What is kept in memory from a file."""

    stamp: tuple[int, ...] | None
    """Numbers that identify the file. None before they are set."""
    facts: dict[str, Any]
    people: dict[str, int]
    """Each person's picture count, by name, in enrolment order."""
    means: np.ndarray
    """The mean embedding of each person without misfiled pictures, float32 [people, D] of length 1."""


class SqliteStore:
    """A gallery's file. Get one from `open` or `create`. Threads may share one."""

    def __init__(self, path: str | os.PathLike):
        self.name = escape(path)
        self._path = os.path.realpath(path)
        self._loading, self._writing = threading.Lock(), threading.RLock()
        self._state: _State | None = None
        self._local = threading.local()  # its `sql` is this thread's transaction

    @classmethod
    def open(cls, path: str | os.PathLike) -> SqliteStore:
        """Open a gallery.

        Raises MissingFileError if the file does not exist, and UserError if it is not a gallery or cannot be
        read.
        """
        store = cls(path)
        store._current()
        return store

    @classmethod
    def check_new(cls, path: str | os.PathLike) -> None:
        """Raise UserError if the path exists, so that no gallery can be made there."""
        if os.path.isdir(path):
            raise UserError(f"{escape(path)}: is a folder; name the new file of the gallery first")
        if os.path.lexists(path):
            raise UserError(f"{escape(path)}: exists already; remove it first, or choose another name")

    @classmethod
    def create(cls, path: str | os.PathLike, fill: Callable[[SqliteStore], None]) -> SqliteStore:
        """Make a gallery. The file appears at `path` after its whole content has been written to the disk.

        Args:
            path: the new file's path.
            fill: writes the gallery's content.

        Raises UserError if `path` exists, or if another process creates it in the meantime.
        """
        cls.check_new(path)
        store = cls(path)
        with _readable_errors(path):
            with atomic_write(store._path, new=True) as beside, store._edit(beside) as sql:
                sql.executescript(_SCHEMA)
                fill(store)
            sync_folder(os.path.dirname(store._path))
        return store

    def close(self) -> None:
        """Free the memory. The next call reads the file again."""
        self._state = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the `with` block, or nothing if it fails. At the end the changes are on the
        disk.

        Waits for other writers. Raises UserError if another process writes for more than 60 s, or if the file
        cannot be written.
        """
        with self._writing, _readable_errors(self.name), _locked(self._path) as old:
            with atomic_write(self._path) as beside:
                with open(beside, "xb") as new:
                    shutil.copyfileobj(old, new, 1 << 24)
                with self._edit(beside) as sql:
                    sql.execute("BEGIN")
                    yield
                    sql.execute("COMMIT")
                status = os.fstat(old.fileno())
                with contextlib.suppress(PermissionError):  # else the writing user owns the new file
                    os.chown(beside, status.st_uid, status.st_gid)
                os.chmod(beside, status.st_mode & 0o7777)
            sync_folder(os.path.dirname(self._path))

    @contextlib.contextmanager
    def _edit(self, beside: Path) -> Iterator[sqlite3.Connection]:
        """Let this thread write to the file `beside`, which will replace the gallery's file.

        At the end its content is on the disk.
        """
        self._local.removed = False
        with contextlib.closing(sqlite3.connect(beside, isolation_level=None)) as sql:
            # If writing fails, the whole file is discarded. So it needs no journal.
            for setting in ("journal_mode=OFF", "synchronous=OFF", "foreign_keys=ON"):
                sql.execute(f"PRAGMA {setting}")
            self._local.sql = sql
            try:
                yield sql
            finally:
                self._local.sql = None
            if self._local.removed:  # the file's free pages still contain what was removed
                compact = beside.with_name("compact")
                sql.execute("VACUUM INTO ?", [os.fspath(compact)])
                os.replace(compact, beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())

    def facts(self) -> dict[str, Any]:
        """Return what is stored about the gallery as a whole, such as its network and threshold."""
        sql = getattr(self._local, "sql", None)
        return self._current().facts if sql is None else _facts(sql)

    def set_facts(self, **facts: Any) -> None:
        """Set or replace facts, which JSON must be able to store. The calling thread must be in a
        transaction."""
        for key, value in facts.items():
            self._change("REPLACE INTO facts VALUES (?, ?)", key, json.dumps(value))

    def __len__(self) -> int:
        """Count the people."""
        return len(self._current().people)

    def people(self) -> dict[str, int]:
        """Return each person's picture count, by name, in enrolment order."""
        return self._current().people

    def pictures(self, name: str) -> tuple[list[str], np.ndarray]:
        """Return a person's picture names and their embeddings, float32 [n, D]."""
        with self._sql() as sql:
            rows = sql.execute(
                f"SELECT pictures.name, vector {_JOINED} WHERE people.name = ? ORDER BY pictures.id", [name]
            ).fetchall()
        return [picture for picture, _ in rows], _vectors(vector for _, vector in rows)

    def add(
        self, name: str, pictures: Sequence[str], vectors: Sequence[np.ndarray], measures: bool = True
    ) -> None:
        """Add a person's pictures. The calling thread must be in a transaction.

        Args:
            name: the person's name, new or known.
            pictures: the pictures' names, which the person must not have yet.
            vectors: each picture's unit embedding, float32 [D].
            measures: whether a new person's pictures are used to measure the threshold.
        """
        self._change("INSERT OR IGNORE INTO people (name, measures) VALUES (?, ?)", name, measures)
        for picture, vector in zip(pictures, vectors, strict=True):
            insert = "INSERT INTO pictures (person, name, vector) SELECT id, ?, ? FROM people WHERE name = ?"
            self._change(insert, picture, vector.astype("<f4").tobytes(), name)

    def remove(self, name: str, picture: str | None = None) -> bool:
        """Remove a person or a picture. A person is removed with the last picture.

        Args:
            name: the person's name.
            picture: a picture's name. None removes the person with all pictures.

        Returns whether the person or picture existed.
        """
        self._local.removed = True
        if picture is None:
            return self._change("DELETE FROM people WHERE name = ?", name) > 0
        delete = "DELETE FROM pictures WHERE name = ? AND person = (SELECT id FROM people WHERE name = ?)"
        removed = self._change(delete, picture, name)
        self._change("DELETE FROM people WHERE name = ? AND id NOT IN (SELECT person FROM pictures)", name)
        return removed > 0

    def set_misfiled(self, pictures: Sequence[tuple[str, str]]) -> None:
        """Exclude these pictures (person, name) alone from people's means. The calling thread must be in a
        transaction."""
        self._change("UPDATE pictures SET misfiled = 0 WHERE misfiled")
        update = (
            "UPDATE pictures SET misfiled = 1 "
            "WHERE person = (SELECT id FROM people WHERE name = ?) AND name = ?"
        )
        for person, picture in pictures:
            self._change(update, person, picture)

    def search(self, embeddings: np.ndarray, top: int) -> list[list[tuple[str, float]]]:
        """Find the most similar people for each embedding.

        Args:
            embeddings: float32 [n, D], unit rows.
            top: most people for an embedding.

        Returns for each embedding the people's names and cosines, best first.
        """
        state = self._current()
        names = [*state.people]
        if not names:
            return [[] for _ in embeddings]
        cosines, people = search(embeddings, state.means, top)
        return [
            [(names[person], cosine) for person, cosine in zip(*both)]
            for both in zip(people.tolist(), cosines.tolist())
        ]

    def all_pictures(self) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
        """Return all pictures, in their people's order.

        Returns four values:

        - the embeddings, float32 [n, D]
        - each picture's person, by name
        - the name of each picture
        - whether each picture is used to measure the threshold, bool [n]
        """
        with self._sql() as sql:
            rows = sql.execute(
                f"SELECT vector, people.name, pictures.name, measures {_JOINED} ORDER BY person, pictures.id"
            ).fetchall()
        vectors, owners, names, measures = zip(*rows) if rows else ((), (), (), ())
        return _vectors(vectors), [*owners], [*names], np.array(measures, bool)

    def _change(self, statement: str, *values: Any) -> int:
        """Change rows, and return their number."""
        return self._local.sql.execute(statement, values).rowcount

    @contextlib.contextmanager
    def _sql(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for reading: to this thread's transaction, else to the current file."""
        if (sql := getattr(self._local, "sql", None)) is not None:
            yield sql
            return
        with _readable_errors(self.name):
            # A gallery's file is never modified. So it needs no lock, and has no journal beside it.
            uri = f"{Path(self._path).as_uri()}?mode=ro&immutable=1"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as sql:
                yield sql

    def _current(self) -> _State:
        """Return the current file's content. Read the file if it was replaced."""
        with _readable_errors(self.name):
            stamp = self._stamp()
            state = self._state
            if state is not None and state.stamp == stamp:
                return state
            with self._loading:
                if self._state is None or self._state.stamp != self._stamp():
                    self._state = self._load_file()
                return self._state

    def _load_file(self) -> _State:
        """Read the file. Raises UserError if it is not a gallery."""
        while True:
            stamp = self._stamp()
            with self._sql() as sql:
                if sql.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                    raise UserError(
                        f"{self.name}: is not a gallery; name a file that plsc gallery build wrote"
                    )
                state = _load(sql)._replace(stamp=stamp)
            if stamp == self._stamp():  # else the file was replaced in the meantime
                return state

    def _stamp(self) -> tuple[int, ...]:
        """Return numbers that distinguish the current file from earlier ones with the same name.

        Raises MissingFileError if it does not exist.
        """
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            missing = f"{self.name}: there is no gallery; make one with plsc gallery build"
            raise MissingFileError(missing) from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{self.name}: is no file; name one that plsc gallery build wrote")
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _load(sql: sqlite3.Connection) -> _State:
    """Read the facts and the people, and compute each person's mean embedding."""
    counted = sql.execute(
        "SELECT people.id, people.name, COUNT(pictures.id) FROM people JOIN pictures ON people.id = person "
        "GROUP BY people.id ORDER BY people.id"
    ).fetchall()
    people = {name: pictures for _, name, pictures in counted}
    places = {id: place for place, (id, *_) in enumerate(counted)}
    means = np.empty((0, 0), np.float32)
    rows = sql.execute("SELECT person, vector FROM pictures WHERE NOT misfiled ORDER BY person, id")
    while some := rows.fetchmany(_AT_ONCE):
        vectors = _vectors(vector for _, vector in some)
        if not means.size:
            means = np.zeros((len(people), vectors.shape[1]), np.float32)
        owners = np.array([places[person] for person, _ in some])
        starts = np.flatnonzero(np.diff(owners, prepend=-1))  # the last person may continue in the next rows
        means[owners[starts]] += np.add.reduceat(vectors, starts)
    for start in range(0, len(means), _AT_ONCE):
        means[start : start + _AT_ONCE] = unit_rows(means[start : start + _AT_ONCE])
    return _State(None, _facts(sql), people, means)


def _facts(sql: sqlite3.Connection) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in sql.execute("SELECT key, value FROM facts")}


def _vectors(rows: Iterator[bytes] | Sequence[bytes]) -> np.ndarray:
    """Convert rows' stored embeddings to an array float32 [n, D]."""
    rows = [*rows]
    width = len(rows[0]) // 4 if rows else 0
    return np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), width)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[IO[bytes]]:
    """Lock the file at a path against other writers, and yield it open.

    Raises UserError if another process holds the lock for more than 60 s.
    """
    end = time.monotonic() + _WAIT
    while True:
        with open(path, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    waited = f"another process has been writing for {_WAIT:g} s; nothing was changed"
                    raise UserError(f"{escape(path)}: {waited}") from None
                time.sleep(0.005)
                continue
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                yield file
                return


@contextlib.contextmanager
def _readable_errors(path: str | os.PathLike) -> Iterator[None]:
    """Replace errors of SQLite and of the operating system by a UserError of one line about the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or escape(error)
        damaged = type(error) is sqlite3.DatabaseError  # its subclasses have other causes
        remedy = "it is damaged: restore a copy, or build it again" if damaged else "nothing was changed"
        if "not a database" in str(reason):
            remedy = "it is not a gallery, or it is damaged: name a gallery, or restore a copy"
        raise UserError(f"{escape(path)}: {reason}; {remedy}") from error
