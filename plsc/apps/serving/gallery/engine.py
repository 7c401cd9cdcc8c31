"""Choose what keeps a gallery, by its name: SQLite for a file, Milvus for milvus://host:port/name and
milvus:FILE.db.

A store has the methods of plsc.apps.serving.gallery.store.SqliteStore; tests/apps/serving/test_store.py
states what they must do.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from plsc.apps.serving.gallery import milvus, store
from plsc.apps.serving.gallery.milvus import MilvusStore
from plsc.apps.serving.gallery.store import SqliteStore

Store = SqliteStore | MilvusStore


def open_store(path: str | os.PathLike) -> Store:
    """Open a gallery's store. Raises MissingFileError, UserError."""
    return MilvusStore.open(path) if milvus.is_url(path) else SqliteStore(path)


def create_store(path: str | os.PathLike, fill: Callable[[Store], None], width: int) -> Store:
    """Make a gallery's store, which `fill` writes into. width: numbers of an embedding."""
    if milvus.is_url(path):
        return MilvusStore.create(path, fill, width)
    return SqliteStore.create(path, fill)


def refuse_existing(path: str | os.PathLike) -> None:
    """Refuse by UserError to make a gallery where something is already, or nothing can be written."""
    (milvus if milvus.is_url(path) else store).refuse_existing(path)
