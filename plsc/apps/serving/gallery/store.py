"""Keep a gallery in one SQLite file, which is the truth: people, pictures, embeddings, facts.

    store = SqliteStore("people.gallery")
    with store.transaction():
        store.add([Addition("Ann", embeddings)])

A change is on the disk when its transaction ends. Several processes may read and write: readers see whole
transactions and wait for nobody, writers wait for each other. `revision` changes with each transaction.

Every program for SQLite can read the file. Its tables:

    people       id, never used again; name; collection; meta, JSON
    pictures     id; person; path and sha256 of the file, null for pixels; quality, JSON of numbers; aligned, 1: eyes, nose and mouth
                 of a face lie at ArcFace's places, 0: not, null: not known; measures, 1: it measures the threshold, since the
                 network was not trained on the person; added, UTC
    embeddings   picture; vector, float32 in little endian, of length 1
    facts        key and value, JSON: the network (its hash, where it is, whether images are mirrored, preprocessing), the
                 thresholds, how they were measured, calibration
    strangers    picture; person, a number; vector: who is not in the gallery, and measures the threshold
    changes      revision; person who was changed, 0: everybody; token: what readers have not seen yet

    SELECT name, collection, count(*) FROM people JOIN pictures ON pictures.person = people.id GROUP BY people.id;

Another program that writes adds a row to `changes` with person 0. Triggers and views are refused. `-wal` and
`-shm` beside the file
belong to it: copy it by `plsc gallery backup`, and put a backup in the place of all three. From 50,000 rows
on `.index` beside it has the rows that are searched; it may be deleted, and is made again. All processes must
be on one machine: not over NFS.

A process that has the store open must not open its files in another way: closing them would drop SQLite's
locks (POSIX).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plsc.checkpoint.tensorfile import sync_folder
from plsc.errors import MissingFileError, UserError, reading, shown, writing
from plsc.utils.disk import nearest_folder
from plsc.utils.files import parse_json, refuse_irregular

_WAIT = 60.0  # seconds for another process that writes
_APPLICATION = 0x706C7363  # "plsc", for `file` and other programs
_FORMAT = 1
_PAGE = 16_384  # bytes: seven embeddings of 512 numbers
_AT_ONCE = 4096  # people who are noted as changed; of more it is said that everything is
_EVERYTHING = 0  # in place of a person: all of them have changed
_REMEDY = "restore a backup, or build it again"
_SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE people (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, collection TEXT NOT NULL, meta TEXT);
CREATE TABLE pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT, person INTEGER NOT NULL REFERENCES people ON DELETE CASCADE, path TEXT, sha256 TEXT,
    quality TEXT, aligned INTEGER, measures INTEGER NOT NULL, added TEXT NOT NULL);
CREATE INDEX pictures_of_a_person ON pictures (person);
CREATE INDEX pictures_that_measure ON pictures (person) WHERE measures;
CREATE TABLE embeddings (picture INTEGER PRIMARY KEY REFERENCES pictures ON DELETE CASCADE, vector BLOB NOT NULL);
CREATE TABLE strangers (picture INTEGER PRIMARY KEY, person INTEGER NOT NULL, vector BLOB NOT NULL);
CREATE TABLE changes (
    revision INTEGER PRIMARY KEY AUTOINCREMENT, person INTEGER, token INTEGER NOT NULL DEFAULT (random()));
"""
_BESIDE = ("-wal", "-shm", "-journal")


class Source(NamedTuple):
    """Where a picture came from."""

    path: str | None = None
    """Absolute; None: it came as an array."""
    sha256: str | None = None
    """Of the file."""
    quality: dict[str, Any] | None = None
    """Numbers of its quality."""
    aligned: bool | None = None
    """Whether a face was found and aligned; None: not known."""


class Addition(NamedTuple):
    """Pictures of a person who is new, or there already."""

    name: str
    vectors: np.ndarray
    """float32 [n, D] of length 1."""
    sources: Sequence[Source] = ()
    """Of each picture; (): they came as arrays."""
    measures: bool = True
    """Whether the pictures measure the threshold: the network was not trained on the person."""
    collection: str = ""
    meta: Any = None
    """A JSON value; None leaves what is there."""

    def pictures(self) -> Iterator[tuple[Source, np.ndarray]]:
        """Iterate over where each picture came from, and its vector."""
        return zip(self.sources or [Source()] * len(self.vectors), self.vectors, strict=True)


class Person(NamedTuple):
    """A person of a gallery."""

    id: int
    """Never used again for another person."""
    name: str
    collection: str
    meta: Any


class Revision(NamedTuple):
    """A state of a store. Two are the same if both numbers are: a restored backup counts from where it
    was."""

    number: int
    token: int


class _Connection(sqlite3.Connection):
    """A connection that can be referred to weakly."""


class SqliteStore:
    """A gallery's file. Methods may be called from several threads, each of which has a connection of its
    own.

    What changes something is called within `transaction()`. Raises MissingFileError, UserError.
    """

    erasure = "the files of the gallery have nothing of them any more"
    """What a removal does with the bytes, for its receipt."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)  # as the user calls it
        self.file = Path(os.path.abspath(path))
        self._writer = threading.Lock()
        self._here = threading.local()
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._refuse_other_files()
        with _said(self.name):
            self._check_schema()

    def _refuse_other_files(self) -> None:
        with reading(self.path, missing="is no gallery, there is nothing; make one with plsc gallery build"):
            mode = os.stat(self.file).st_mode
        if stat.S_ISDIR(mode):
            raise UserError(
                f"{self.name}: is a folder, as galleries were once; now they are files: build it again with plsc gallery build"
            )
        refuse_irregular(self.path, mode)

    def _check_schema(self) -> None:
        found = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        if found[0] != _APPLICATION:
            raise UserError(f"{self.name}: is no gallery; name a file that plsc gallery build wrote")
        strange = self._one("SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')")
        if found[1] != _FORMAT or strange:  # a trigger would write what nobody asked for
            raise UserError(
                f"{self.name}: its tables are not those of this plsc (format {found[1]}, expected {_FORMAT}); build it again"
            )

    @classmethod
    def create(cls, path: str | os.PathLike, fill: Callable[[SqliteStore], None]) -> SqliteStore:
        """Make a gallery's file; it appears at `path` when `fill` has written into it and all is on the
        disk."""
        with _new_file(path) as beside:
            with _said(shown(path)), contextlib.closing(sqlite3.connect(beside)) as connection:
                connection.execute(f"PRAGMA page_size={_PAGE}")
                connection.execute(f"PRAGMA application_id={_APPLICATION}")
                connection.executescript(f"{_SCHEMA} PRAGMA user_version={_FORMAT};")
            with contextlib.closing(cls(beside)) as store:
                # Nobody else knows of it: what matters is that all is on the disk when it gets its name.
                store._run("PRAGMA journal_mode=OFF")
                store._run("PRAGMA synchronous=OFF")
                with store.transaction():
                    fill(store)
                store._run("PRAGMA journal_mode=WAL")
        return cls(path)

    @property
    def name(self) -> str:
        """What the user calls it, for messages."""
        return shown(self.path)

    # -- transactions
    # ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write: all or nothing, and on the disk at the end. Waits for other writers. UserError, and nothing
        is changed, if it cannot."""
        with self._writer, _said(self.name):
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self._run("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read: one state, whatever others write meanwhile."""
        with _said(self.name):
            if self._connected().in_transaction:
                yield
                return
            self._run("BEGIN")
            try:
                yield
            finally:
                self._run("COMMIT")

    def revision(self) -> Revision:
        """Return the present state's numbers."""
        row = self._row("SELECT revision, token FROM changes ORDER BY revision DESC LIMIT 1")
        return Revision(*(row or (0, 0)))

    def changes(self, since: Revision) -> set[int] | None:
        """Return the ids of the people who were changed or removed since; None: everything may be
        different."""
        if self._row("SELECT revision, token FROM changes WHERE revision = ?", since.number) != since:
            return None
        rows = self._all(
            "SELECT DISTINCT person FROM changes WHERE revision > ? AND person IS NOT NULL", since.number
        )
        people = {person for (person,) in rows}
        return None if _EVERYTHING in people else people

    def _changed(self, person: int | None) -> None:
        self._run("INSERT INTO changes (person) VALUES (?)", person)

    # -- facts
    # ----------------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """Return the facts, each as JSON."""
        return dict(self._all("SELECT key, value FROM facts"))

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the facts."""
        rows = [(key, json.dumps(value)) for key, value in facts.items()]
        self._connected().executemany("REPLACE INTO facts VALUES (?, ?)", rows)
        self._changed(None)

    def strangers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of strangers' pictures float32 [n, D], and who they are int64 [n]."""
        return self._arrays("SELECT person, vector FROM strangers ORDER BY picture")

    def set_strangers(self, vectors: np.ndarray, people: np.ndarray) -> None:
        """Replace the strangers' pictures."""
        self._run("DELETE FROM strangers")
        rows = ((person, _bytes(vector)) for person, vector in zip(people.tolist(), vectors))
        self._connected().executemany("INSERT INTO strangers (person, vector) VALUES (?, ?)", rows)
        self._changed(_EVERYTHING)

    # -- people
    # ---------------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Person | None:
        """Return the person of this name."""
        return next(self._people("WHERE name = CAST(? AS TEXT)", _utf8(name)), None)

    def people(self, ids: Iterable[int] | None = None) -> Iterator[Person]:
        """Yield people in the order in which they came: those with these ids, or all."""
        if ids is None:
            return self._people("")
        return self._people("WHERE id IN (SELECT value FROM json_each(?))", json.dumps([*ids]))

    def _people(self, which: str, *values: Any) -> Iterator[Person]:
        text = f"SELECT id, name, collection, meta FROM people {which} ORDER BY id"  # noqa: S608
        rows = self._connected().execute(text, values)
        for id, name, collection, meta in rows:
            yield Person(id, name, collection, self._parsed(meta))

    def sources(self, people: Sequence[int]) -> list[Source]:
        """Return where the pictures of people came from, in the order of `embeddings`."""
        return self._sources("person", people)

    def sources_of(self, pictures: Sequence[int]) -> list[Source]:
        """Return where pictures with these increasing ids came from."""
        return self._sources("id", pictures)

    def _sources(self, column: str, ids: Sequence[int]) -> list[Source]:
        rows = self._all(
            "SELECT path, sha256, quality, aligned FROM pictures "  # noqa: S608
            f"WHERE {column} IN (SELECT value FROM json_each(?)) ORDER BY {column}, id",
            json.dumps([*ids]),
        )
        return [
            Source(path, sha256, self._parsed(quality), None if aligned is None else bool(aligned))
            for path, sha256, quality, aligned in rows
        ]

    def add(self, additions: Iterable[Addition]) -> None:
        """Add pictures of people. UserError if somebody is in another collection already."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        connection = self._connected()
        changed = []
        for new in additions:
            person = self._person_of(connection, new)
            for source, vector in new.pictures():
                path = source.path and _utf8(source.path)
                row = (person, path, source.sha256, _json(source.quality), source.aligned, new.measures, now)
                picture = connection.execute(
                    "INSERT INTO pictures (person, path, sha256, quality, aligned, measures, added) "
                    "VALUES (?, CAST(? AS TEXT), ?, ?, ?, ?, ?)",
                    row,
                ).lastrowid
                connection.execute("INSERT INTO embeddings VALUES (?, ?)", (picture, _bytes(vector)))
            changed.append(person)
        for person in changed if len(changed) <= _AT_ONCE else [_EVERYTHING]:
            self._changed(person)

    def _person_of(self, connection: _Connection, new: Addition) -> int:
        """Return the id of the person of an addition, who is made if there is none."""
        text = "SELECT id, collection FROM people WHERE name = CAST(? AS TEXT)"
        known = connection.execute(text, (_utf8(new.name),)).fetchone()
        if known is None:
            row = (_utf8(new.name), _utf8(new.collection), _json(new.meta))
            text = "INSERT INTO people (name, collection, meta) VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?)"
            return connection.execute(text, row).lastrowid
        person, collection = known
        if new.collection not in ("", collection):
            raise another_collection(new, collection)
        if new.meta is not None:
            self._run("UPDATE people SET meta = ? WHERE id = ?", _json(new.meta), person)
        return person

    def remove(self, people: Iterable[int]) -> None:
        """Remove people with their pictures and embeddings; `erase` takes what is left of them in free parts
        of the file."""
        for person in people:
            self._run("DELETE FROM people WHERE id = ?", person)
            self._changed(person)

    def remove_paths(self, person: int, paths: Sequence[str]) -> list[str]:
        """Remove a picture of a person for each of these paths, the newest first, and the person where none
        is left; return their paths."""
        rows = self._all("SELECT id, path FROM pictures WHERE person = ? ORDER BY id DESC", person)
        gone = first_of(rows, paths)
        for id, _ in gone:
            self._run("DELETE FROM pictures WHERE id = ?", id)
        self._run("DELETE FROM people WHERE id = ? AND id NOT IN (SELECT person FROM pictures)", person)
        self._changed(person)
        return [path for _, path in gone]

    def check_replaceable(self) -> None:
        """Refuse by UserError, before anything is embedded, to replace all embeddings where a store cannot do
        it at once."""

    def remove_pictures(self) -> None:
        """Remove all pictures, and keep the people."""
        self._run("DELETE FROM pictures")
        self._changed(_EVERYTHING)

    # -- embeddings
    # -----------------------------------------------------------------------------------------------------------

    def embeddings(self, people: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pictures' embeddings of people, float32 [n, D] of length 1, and whose each is, int64
        [n], increasing."""
        return self._arrays(
            "SELECT person, vector FROM pictures JOIN embeddings ON picture = id "
            "WHERE person IN (SELECT value FROM json_each(?)) ORDER BY person, id",
            json.dumps([*people]),
        )

    def vectors(self, pictures: np.ndarray) -> np.ndarray:
        """Return the embeddings of pictures with these increasing ids, float32 [n, D]."""
        text = "SELECT picture, vector FROM embeddings WHERE picture IN (SELECT value FROM json_each(?)) ORDER BY picture"
        return self._arrays(text, json.dumps(pictures.tolist()))[0]

    def set_vectors(self, pictures: np.ndarray, vectors: np.ndarray) -> None:
        """Replace the embeddings of pictures. They measure no threshold any more, since they are not the
        network's own."""
        rows = zip(map(_bytes, vectors), pictures.tolist())
        self._connected().executemany("UPDATE embeddings SET vector = ? WHERE picture = ?", rows)
        self._run("UPDATE pictures SET measures = 0 WHERE measures")
        self._changed(_EVERYTHING)

    def pictures(self, measuring: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all pictures, or those that measure the threshold, increasing, and whose each is:
        int64 [n], int64 [n]."""
        which = "WHERE measures" if measuring else ""
        rows = np.array(self._all(f"SELECT id, person FROM pictures {which}"), np.int64).reshape(-1, 2)  # noqa: S608
        rows = rows[np.argsort(rows[:, 0])]
        return rows[:, 0], rows[:, 1]

    def _parsed(self, text: str | None) -> Any:
        return None if text is None else parse_json(text, self.path)

    def _arrays(self, text: str, *values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Read rows of a number and a vector: the vectors float32 [n, D], and the numbers int64 [n]."""
        rows = self._all(text, *values)
        numbers = np.array([number for number, _ in rows], np.int64)
        lengths = {len(vector) if isinstance(vector, bytes) else -1 for _, vector in rows}
        if len(lengths) > 1 or any(length % 4 for length in lengths):
            raise UserError(f"{self.name}: has embeddings of different sizes; {_REMEDY}")
        width = lengths.pop() // 4 if lengths else 0
        data = bytearray().join(vector for _, vector in rows)
        return checked(np.frombuffer(data, "<f4").reshape(len(rows), width), self.name), numbers

    # -- the file
    # -------------------------------------------------------------------------------------------------------------

    def erase(self) -> None:
        """Write the file anew, without what is left of removed people in its free parts, and empty its
        log."""
        end = time.monotonic() + _WAIT
        with self._writer, _said(self.name):
            while not self._erased():
                if time.monotonic() > end:
                    raise sqlite3.OperationalError("database is locked")
                time.sleep(0.01)

    def _erased(self) -> bool:
        """Say whether it was done. SQLite gives up at once where another connection is at the same."""
        try:
            self._run("VACUUM")
            return self._one("PRAGMA wal_checkpoint(TRUNCATE)") == 0
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False

    def backup(self, target: str | os.PathLike) -> None:
        """Copy the gallery's present state to a new file, while others read and write."""
        with (
            _new_file(target) as beside,
            _said(shown(target)),
            contextlib.closing(sqlite3.connect(beside)) as to,
        ):
            self._connected().backup(to)

    def files(self) -> list[Path]:
        """Return the store's files that are there."""
        paths = (Path(f"{self.file}{end}") for end in ("", *_BESIDE))
        return [path for path in paths if path.exists()]

    def close(self) -> None:
        """Close all connections; what was written is in the one file then."""
        for connection in [*self._connections]:
            connection.close()
        self._here = threading.local()

    # -- SQLite
    # ---------------------------------------------------------------------------------------------------------------

    def _connected(self) -> _Connection:
        """Return this thread's connection to the file that has the gallery's name now."""
        try:
            status = os.stat(self.file)
        except OSError:
            raise MissingFileError(f"{self.name}: is not there any more; {_REMEDY}") from None
        identity = os.getpid(), status.st_dev, status.st_ino
        if getattr(self._here, "identity", None) != identity:
            self._here.connection = self._connect()
            self._here.identity = identity
        return self._here.connection

    def _connect(self) -> _Connection:
        # Where nobody may write, nobody does, unless a process that may is at it now.
        unused = "ro" if os.path.exists(f"{self.file}-wal") else "ro&immutable=1"
        mode = "rw" if os.access(self.file.parent, os.W_OK) else unused
        connection = sqlite3.connect(
            f"{self.file.as_uri()}?mode={mode}",
            uri=True,
            timeout=_WAIT,
            isolation_level=None,
            check_same_thread=False,  # `close`
            factory=_Connection,
        )
        # Names are text, and paths whatever bytes the file system has.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        for setting in ("trusted_schema=OFF", "foreign_keys=ON", "secure_delete=ON", "synchronous=FULL"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        self._connections.add(connection)
        return connection

    def _run(self, text: str, *values: Any) -> None:
        self._connected().execute(text, values).fetchall()

    def _all(self, text: str, *values: Any) -> list[tuple]:
        return self._connected().execute(text, values).fetchall()

    def _row(self, text: str, *values: Any) -> tuple | None:
        return self._connected().execute(text, values).fetchone()

    def _one(self, text: str, *values: Any) -> Any:
        return self._row(text, *values)[0]


def checked(vectors: np.ndarray, name: str) -> np.ndarray:
    """Return embeddings float32 [n, D] that a store has. UserError for others than of length 1, or 0: NaN
    would hide others from a search."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    if not np.all((np.abs(squares - 1) < 1e-3) | (squares == 0)):
        raise UserError(f"{name}: has embeddings that are not of length 1; {_REMEDY}")
    return vectors


def first_of(pictures: Iterable[tuple[int, str | None]], paths: Sequence[str]) -> list[tuple[int, str]]:
    """Pick the first of the pictures, (id, path), for each of these paths; a path that is named twice picks
    two."""
    left = Counter(paths)
    picked = []
    for id, path in pictures:
        if left[path]:
            left[path] -= 1
            picked.append((id, path))
    return picked


def another_collection(new: Addition, collection: str) -> UserError:
    """Say that a person is in another collection than an addition's."""
    return UserError(
        f"'{shown(new.name)}': is in the collection '{shown(collection)}', not '{shown(new.collection)}'; "
        "remove the person first, or leave the collection out"
    )


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    """Turn SQLite's refusals into a line for the user. name: of the file, for messages."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        what = shown(error)
        if "locked" in what:
            raise UserError(f"{name}: is in use by another process that writes; try again") from error
        if any(word in what for word in ("malformed", "not a database", "no such")):
            raise UserError(f"{name}: is damaged, or no gallery ({what}); {_REMEDY}") from error
        raise UserError(f"{name}: cannot be read or written: {what}; the gallery is as it was") from error


@contextlib.contextmanager
def _new_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield where to write a file that gets its name when all of it is on the disk, and leaves nothing
    otherwise."""
    refuse_existing(path)
    final = Path(os.path.abspath(path))
    beside = unfinished(final)
    with writing(beside, remedy="name another file"):
        final.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL, 0o666))  # what is there is another process's
    try:
        yield beside
        with writing(path, remedy="name another file"), open(beside, "rb") as file:
            os.fsync(file.fileno())
            beside.rename(final)
            sync_folder(final.parent)
    finally:
        for end in ("", *_BESIDE):
            Path(f"{beside}{end}").unlink(missing_ok=True)


def refuse_existing(path: str | os.PathLike) -> None:
    """Refuse by UserError to make a file where something is already, or nothing can be written."""
    path = Path(path)
    names = (path, *(Path(f"{path}{end}") for end in _BESIDE), unfinished(path))
    taken = next((name for name in names if os.path.lexists(name)), None)
    if taken:
        raise UserError(f"{shown(taken)}: exists already; remove it, or name another file")
    above = nearest_folder(Path(os.path.abspath(path)).parent)
    if not os.access(above, os.W_OK):
        raise UserError(f"{shown(above)}: cannot be written to; name another folder for the gallery")


def unfinished(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return Path(f"{path}.tmp")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UserError(f"{shown(repr(text))}: is no text ({error.reason})") from None


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _bytes(vector: np.ndarray) -> bytes:
    return vector.astype("<f4", copy=False).tobytes()
