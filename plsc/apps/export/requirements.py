"""Refuse before anything is written: packages that are missing, other pictures than a format takes, a folder
of something else."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle

from plsc.apps.export import insightface, paddlex
from plsc.apps.export.kit import FOLDER as KIT
from plsc.apps.export.kit import PICTURES
from plsc.errors import UserError

NEED_ONNX = frozenset({"onnx", "onnx_int8", "insightface"})
_FOLDERS = {"onnx_int8", "insightface", "paddlex"}
_KIT_FILES = {
    "kit.txt",
    "check.py",
    "check.c",
    "check",
    "reference.npy",
    "faults.npy",
    "samples.npy",
    "mine.npy",
}
_PNG_FILES = {f"{number:04d}.png" for number in range(1000)}  # Export.kit is at most that
_FILES = {f"inference.{end}" for end in ("json", "pdmodel", "pdiparams", "pdiparams.info", "yml")}
_FILES |= {"model.onnx", "preprocessing.json", "README.txt"}
_FILES |= {"contract.json", "check.png", "check.npy", "check.json"}  # of earlier versions


def check_packages(formats: Sequence[str]) -> None:
    if NEED_ONNX.isdisjoint(formats):
        return
    if paddle.__version__.startswith(("1.", "2.")):
        raise UserError(
            "Export.formats: ONNX export needs Paddle 3, paddle2onnx 2 refuses this one "
            f"({paddle.__version__}): set Export.formats=[paddle]"
        )
    needed = ["paddle2onnx", "onnx", "onnxruntime"]
    if "onnx_int8" in formats:
        needed.append("ml_dtypes")  # imported by onnxruntime.quantization, which does not ask for it
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Export.formats: ONNX export needs the extra, {', '.join(missing)} not found: "
            "pip install -e '.[export]' in the clone of plsc, or set Export.formats=[paddle]"
        )


def check_pictures(formats: Sequence[str], preprocessing: Any) -> None:
    if "insightface" in formats:
        insightface.refuse_other_pictures(preprocessing)
    if "paddlex" in formats:
        paddlex.refuse_other_pictures(preprocessing)


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but an export, since it is replaced as a whole."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder for the export")
    others = _other_files(out) if out.exists() else []
    if others:
        raise UserError(f"{out}: holds other files ({others[0]}); name a new or empty folder for the export")


def _other_files(out: Path) -> list[str]:
    known = {out: _FILES, out / KIT: _KIT_FILES, out / KIT / PICTURES: _PNG_FILES}
    known.update((out / name, _FILES) for name in _FOLDERS)
    paths = [(path, names) for folder, names in known.items() if folder.is_dir() for path in folder.iterdir()]
    return sorted(
        str(path.relative_to(out))
        for path, names in paths
        if not (path in known and path.is_dir() or path.name in names)
    )
