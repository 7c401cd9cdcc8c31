"""Refuse before anything is written: packages that are missing, a folder that holds something else."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import paddle

from plsc.errors import UserError

_FILES = {f"inference.{end}" for end in ("json", "pdmodel", "pdiparams", "pdiparams.info")}
_FILES |= {"model.onnx", "preprocessing.json", "README.txt", "check.png", "check.npy", "check.json"}
_FILES |= {"contract.json"}  # what earlier versions called preprocessing.json


def check_packages(formats: Sequence[str]) -> None:
    if "onnx" not in formats:
        return
    if paddle.__version__.startswith(("1.", "2.")):
        raise UserError(
            "Export.formats: ONNX export needs Paddle 3, paddle2onnx 2 refuses this one "
            f"({paddle.__version__}): set Export.formats=[paddle]"
        )
    missing = [
        name for name in ("paddle2onnx", "onnx", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UserError(
            f"Export.formats: ONNX export needs the extra, {', '.join(missing)} not found: "
            "pip install -e '.[export]' in the clone of plsc, or set Export.formats=[paddle]"
        )


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but an export, since it is replaced as a whole."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder for the export")
    strangers = sorted(path.name for path in out.iterdir() if path.name not in _FILES) if out.exists() else []
    if strangers:
        raise UserError(
            f"{out}: holds other files ({strangers[0]}); name a new or empty folder for the export"
        )
