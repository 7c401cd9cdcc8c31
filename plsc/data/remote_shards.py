"""Read tar shards from a server: whole shards are fetched into a cache on this machine, and read there as
shards on disk are.

    open_remote("s3://bucket/faces", Cache())       # or https://, oss://, hf://: what fsspec knows

Where the shards' index lies beside them (plsc convert writes it), it is fetched first, and nothing else is
asked of the server for a warm cache. Else all shards are fetched to make it. Several processes may use a
cache at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from plsc.data.shard_index import ShardIndex, read_index, scan, write_index
from plsc.errors import MissingFileError, UserError, shown, writing
from plsc.utils.bar import Bar
from plsc.utils.files import cache_folder
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

_CHUNK = 2**20  # bytes that are asked for at a time
_POLL = 0.05  # seconds between two looks at a download
_LONGEST_PAUSE = 10.0  # seconds between two tries
# What servers say of a file that changes with its content.
_VERSION = ("etag", "lastmodified", "mtime", "created", "blobid")
_KEYS = {
    "folder": (str, "text"),
    "bytes": (int, "a whole number above 0"),
    "stall": ((int, float), "a number above 0"),
    "patience": ((int, float), "a number above 0"),
}  # of a cache in a config: types and rule
_HTTP = ("http", "https")


def is_url(path: str) -> bool:
    """Say whether a path is on a server."""
    return bool(re.match(r"[a-z][a-z0-9+]*://", path))


@dataclass(frozen=True)
class Cache:
    """Files of servers on this machine, of which the least recently used make room for others.

    folder: where they are; empty = plsc in the user's folder of caches. bytes: most of all of them together.
    stall: seconds without a byte after which a try to fetch a file is given up. patience: seconds of tries
    that give nothing after which the file is given up.
    """

    folder: str = ""
    bytes: int = 200 * 10**9
    stall: float = 30.0
    patience: float = 600.0

    @classmethod
    def of(cls, keys: dict[str, Any]) -> Cache:
        """Make it of the keys of a config. UserError about one that is wrong."""
        for key, value in keys.items():
            if key not in _KEYS:
                raise UserError(f"cache: has no key '{key}', only {', '.join(_KEYS)}")
            kinds, rule = _KEYS[key]
            if isinstance(value, bool) or not isinstance(value, kinds) or (kinds is not str and value <= 0):
                raise UserError(f"cache: {key} must be {rule}, got {value!r}")
        return cls(**keys)

    def fetch(self, url: str, version: str, size: int) -> str:
        """Return the path of the copy of a file, which is fetched if it is not there. `version` tells its
        contents apart; `size`: its bytes.

        MissingFileError if the server has no such file; UserError if it fails or sends nothing for too long,
        or there is no room.
        """
        if size > self.bytes:
            raise UserError(
                f"cache: bytes must be at least those of {shown(url)}, {size:,} (got {self.bytes:,})"
            )
        path = self._path(url, version)
        with self._locked(f"{path}.lock"):  # one process fetches it, the others wait for that
            if os.path.exists(path):
                os.utime(path)
            else:
                part = f"{path}.part"
                self._tried(url, partial(self._download, url, part, size))
                os.replace(part, path)
        return path

    def look(self, url: str) -> tuple[str, int]:
        """Ask the server for the version and the bytes of a file. MissingFileError, UserError as `fetch`."""
        info = self._tried(
            url, lambda fresh: self._in_thread(lambda said: _filesystem(url, fresh)[0].info(url))
        )
        known = {re.sub(r"\W|_", "", key.lower()): str(value) for key, value in info.items()}
        if not known.get("size", "").isdigit():
            raise UserError(f"{shown(url)}: the server does not say how many bytes it has")
        version = sorted((key, known[key]) for key in known if key in _VERSION)
        return str(version or time.time_ns()), int(info["size"])  # what has no version is fetched anew

    def shards_in(self, url: str) -> list[str]:
        """List the .tar files of a folder by their names, sorted."""
        found = self._tried(
            url, lambda fresh: self._in_thread(lambda said: _filesystem(url, fresh)[0].ls(url, detail=False))
        )
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found if name.endswith(".tar")})

    def path_of_index(self, key: str) -> str:
        """Name a file for an index that was made here."""
        return self._path(key, "index")

    @property
    def _root(self) -> str:
        root = os.path.abspath(self.folder or cache_folder())
        with writing(root):
            os.makedirs(root, exist_ok=True)
        return root

    def _path(self, url: str, version: str) -> str:
        digest = hashlib.sha256(f"{url}\n{version}".encode()).hexdigest()[:24]
        name = re.sub(r"[^\w.-]", "_", url.rpartition("/")[2])[-80:]
        return os.path.join(self._root, f"{digest}-{name}")

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        """Hold a lock among threads and processes of this machine; it ends with its process."""
        with writing(path), open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _tried(self, url: str, work: Callable[[bool], Any]) -> Any:
        """Do what asks a server, again and again for `patience` seconds while it fails. MissingFileError,
        UserError.

        work: is told whether to take a fresh connection, since another one has failed.
        """
        began = time.monotonic()
        tries = 0
        while True:
            try:
                return work(tries > 0)
            except UserError:
                raise
            except Exception as error:
                _refuse_final(url, error)
                tries += 1
                cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
                what = shown(" ".join(f"{type(cause).__name__}: {cause}".split())[:200])
                waited = time.monotonic() - began
                if waited >= self.patience:
                    raise UserError(
                        f"{shown(url)}: the server failed in {counted(tries, 'try', 'tries')} within {waited:.0f} s ({what}); is it up? cache: "
                        f"patience says how long it is tried"
                    ) from error
                if tries == 1:
                    get_logger().warning(f"{shown(url)}: {what}; trying again for {self.patience:.0f} s")
                time.sleep(min(_LONGEST_PAUSE, self.patience / 20, 2.0**tries / 4))

    def _download(self, url: str, part: str, size: int, fresh: bool) -> None:
        """Fetch a file into `part`, a new file each time: a thread that was given up may still write to the
        old one."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
        self._make_room(part, size)

        def read(said: Callable[[], None]) -> None:
            system, path = _filesystem(url, fresh)
            with open(part, "r+b") as file, system.open(path, "rb") as remote:
                while data := remote.read(_CHUNK):
                    said()
                    file.write(data)
                file.truncate()

        self._in_thread(read)
        if (got := os.path.getsize(part)) != size:
            raise OSError(f"sent {got:,} of {size:,} bytes")

    def _make_room(self, part: str, size: int) -> None:
        """Reserve bytes for a file that is fetched, and remove the files of the cache that were used longest
        ago."""
        with self._locked(os.path.join(self._root, "room.lock")):
            with writing(part), open(part, "xb") as file:
                file.truncate(size)
            entries = [
                entry
                for entry in os.scandir(self._root)
                if entry.is_file() and not entry.name.endswith(".lock")
            ]
            used = sorted((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path) for entry in entries)
            total = sum(held for _, held, _ in used)
            for _, held, path in used:
                if total <= self.bytes:
                    break
                if not (path.endswith(".part") and _is_held(f"{path.removesuffix('.part')}.lock")):
                    os.remove(path)
                    total -= held

    def _in_thread(self, work: Callable[[Callable[[], None]], Any]) -> Any:
        """Do what may hang in a thread of its own; TimeoutError if it has not `said` anything for `stall`
        seconds, nor ended."""
        last = time.monotonic()
        given_up = False
        outcome: dict[str, Any] = {}

        def said() -> None:
            nonlocal last
            if given_up:
                raise TimeoutError
            last = time.monotonic()

        def run() -> None:
            try:
                outcome["value"] = work(said)
            except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
                outcome["error"] = error

        thread = threading.Thread(target=run, name="plsc-fetch", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL)
            if thread.is_alive() and time.monotonic() - last > self.stall:
                given_up = True
                raise TimeoutError(f"nothing came for {self.stall:g} s")
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]


def _is_held(lock: str) -> bool:
    """Say whether a thread or process holds a lock: it fetches the file now."""
    with open(lock, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _refuse_final(url: str, error: Exception) -> None:
    """Raise MissingFileError or UserError for what does not become better by another try."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        raise UserError(
            f"cache: cannot be written: {error.strerror}; make room, or name another folder"
        ) from error
    cause = error.__cause__
    # fsspec calls every failure of HTTP a missing file; the cause knows the status, and a connection that
    # failed has none.
    status = getattr(cause, "status", 0) if type(cause).__module__.startswith("aiohttp") else None
    if isinstance(error, PermissionError) or status in (401, 403):
        raise UserError(
            f"{shown(url)}: the server does not let it be read; give fsspec the means to log in"
        ) from error
    if isinstance(error, FileNotFoundError) and status in (None, 404, 410):
        raise MissingFileError(f"{shown(url)}: the server has no such file") from error


def _filesystem(url: str, fresh: bool) -> tuple[Any, str]:
    """Open fsspec's file system for a URL, and the path in it. fresh: not one that was opened before, whose
    connection may hang."""
    try:
        import fsspec

        options: dict[str, Any] = {"skip_instance_cache": fresh, "use_listings_cache": False}
        if url.partition(":")[0] in _HTTP:
            import aiohttp

            # Its own limit of five minutes is of a whole file; how long nothing may come is limited here.
            options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(total=None)}
        return fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise UserError(
            f'{shown(url)}: {error}; pip install "plsc[remote]" brings what servers need'
        ) from error
    except ValueError as error:
        raise UserError(f"{shown(url)}: {error}; give a path, or https://, s3://, oss:// or hf://") from error


@dataclass(frozen=True)
class _Shards:
    """Shards on a server: the folder's URL, and version and bytes of each by its name."""

    cache: Cache
    folder: str
    known: dict[str, tuple[str, int]]

    def fetch(self, name: str) -> str:
        """Return the path of a shard's copy."""
        return self.cache.fetch(f"{self.folder}/{name}", *self.known[name])

    def fetch_all(self) -> list[str]:
        """Fetch all shards; processes that do so at once begin at different ones, and share the work."""
        names = list(self.known)
        first = os.getpid() % len(names)
        with Bar(f"fetching {shown(self.folder)}", len(names), "shards") as bar:
            for name in names[first:] + names[:first]:
                self.fetch(name)
                bar.update()
        return [self.fetch(name) for name in names]

    @property
    def fit(self) -> bool:
        """Say whether the cache has room for all shards; a warning says what it means if not."""
        total = sum(size for _, size in self.known.values())
        if total > self.cache.bytes:
            get_logger().warning(
                f"{shown(self.folder)}: its shards have {total:,} bytes, the cache takes {self.cache.bytes:,}: in random order they are fetched again "
                "and again, and ranks wait for each other; raise cache: bytes"
            )
        return total <= self.cache.bytes


def open_remote(url: str, cache: Cache) -> ShardIndex:
    """Open shards on a server: a folder, one .tar file, or several as `faces-{000..019}.tar`. Raises
    MissingFileError, UserError.

    All of them are fetched now if they fit the cache: ranks whose next batch waits for a download would be
    taken for dead.
    """
    folder, _, pattern = (
        url.rstrip("/").rpartition("/") if url.endswith(".tar") else (url.rstrip("/"), "", "")
    )
    names = _expanded(pattern) if pattern else None
    index = _index_of_server(folder, cache) if names is None else None
    if index is None:
        return _indexed_here(folder, cache.shards_in(folder) if names is None else names, cache)
    described = (text.rpartition(" ") for text in index["shards"].tolist())
    known = {name: (str(index["made"]), int(size)) for name, _, size in described}
    shards = _Shards(cache, folder, known)
    if shards.fit:
        shards.fetch_all()
    return ShardIndex.of(index, shards.fetch)


def _expanded(pattern: str) -> list[str]:
    """List the names that a pattern with one range of numbers, such as a-{00..19}.tar, stands for."""
    found = re.fullmatch(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)", pattern)
    if not found:
        if "{" in pattern:
            raise UserError(
                f"shards: {shown(pattern)} must have one range of numbers, such as faces-{{000..019}}.tar"
            )
        return [pattern]
    before, first, last, after = found.groups()
    return [f"{before}{number:0{len(first)}}{after}" for number in range(int(first), int(last) + 1)]


def _index_of_server(folder: str, cache: Cache) -> dict[str, np.ndarray] | None:
    """Fetch the index that lies beside the shards; None if there is none, or none of this version."""
    url = f"{folder}/index.npz"
    try:
        version, size = cache.look(url)
    except MissingFileError:
        return None
    return read_index(cache.fetch(url, version, size))


def _indexed_here(folder: str, names: list[str], cache: Cache) -> ShardIndex:
    """Fetch all shards, and make their index, which the cache keeps."""
    if not names:
        raise UserError(f"shards: {shown(folder)} has no .tar file")
    known = {name: cache.look(f"{folder}/{name}") for name in names}
    shards = _Shards(cache, folder, known)
    path = cache.path_of_index(f"{folder} {known}")
    index = read_index(path)
    if index is None or shards.fit:
        if not shards.fit:
            raise UserError(
                "cache: bytes must be at least those of all shards to index them; write them by plsc convert, with an index"
            )
        paths = shards.fetch_all()
        if index is None:
            index = {
                "shards": np.array([f"{name} {size}" for name, (_, size) in known.items()]),
                **scan(paths),
            }
            write_index(path, index)
    return ShardIndex.of(index, shards.fetch)
