"""Refuse an installation that PaddlePaddle's own plsc shares the folder with.

Both are imported as `plsc`, so that pip puts their files into one folder: `plsc/data/dataset/` of that one
hides `plsc/data/dataset.py` of this one. Where that one was installed last, its `plsc/__init__.py` is
imported and this is never called.
"""

from __future__ import annotations

from pathlib import Path

from plsc.errors import UserError, shown

_PACKAGE = Path(__file__).resolve().parents[1]


def refuse_mixed_files(folder: Path = _PACKAGE) -> None:
    """Raise UserError where the package's folder has files of PaddlePaddle's plsc, too."""
    if (folder / "engine" / "engine.py").exists():
        raise UserError(
            f"{shown(folder)}: two programs share this folder, plsc-sharded (this one) and PaddlePaddle's plsc, and each has "
            "overwritten files of the other; pip uninstall -y plsc plsc-sharded, then install the one that you want"
        )
