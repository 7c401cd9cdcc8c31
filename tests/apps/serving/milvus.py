"""Galleries of tests in both engines: a file of SQLite, and one of Milvus Lite, where the extra `milvus` is
installed."""

import importlib.util

import pytest

INSTALLED = all(importlib.util.find_spec(name) for name in ("pymilvus", "milvus_lite"))
_SKIP = pytest.mark.skipif(not INSTALLED, reason="the extra milvus is not installed")
ENGINES = ["sqlite", pytest.param("milvus", marks=_SKIP)]


def needs_milvus():
    """Skip the test where the extra is absent."""
    if not INSTALLED:
        pytest.skip("the extra milvus is not installed")


def place(folder, engine):
    """Return where a gallery `g` of an engine lies."""
    if engine == "sqlite":
        return folder / "g"
    from pymilvus.settings import Config

    Config.WaitTimeDurationWhenLoad = (
        0.01  # seconds between two looks at a collection that is made, 0.5 by default
    )
    return f"milvus:{folder / 'g.db'}"
