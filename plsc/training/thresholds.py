"""Read and store what the cosines of a network mean: the threshold and the calibration of a checkpoint.

A run saves those of its last main evaluation; `plsc eval --set-threshold` and `--calibrate` store others
beside them. Imports no Paddle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from plsc.checkpoint.saved import Checkpoint
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import replace_file
from plsc.utils.calibration import Calibration
from plsc.utils.files import read_json

OWNER = "evaluation"  # of this state in a checkpoint

# In the folder of a checkpoint but not in the manifest: they may be added or removed later.
_THRESHOLD = "threshold.json"
_CALIBRATION = "calibration.json"


def set_threshold(saved: Checkpoint, cosine: float, of: str, flip: bool) -> Path:
    """Store the threshold of a later evaluation with a checkpoint; `thresholds_of` reads it.

    Args:
        cosine: two images with a higher one are of the same class.
        of: title of the set.
        flip: see DataLoader.Eval.flip.
    """
    content = {"threshold": cosine, "threshold_set": of, "threshold_step": saved.step, "flip": flip}
    return _store(saved.path / _THRESHOLD, content)


def set_calibration(saved: Checkpoint, calibration: Calibration) -> Path:
    """Store a calibration of a later evaluation with a checkpoint; `thresholds_of` reads it."""
    return _store(saved.path / _CALIBRATION, calibration.to_json())


def _store(file: Path, content: dict[str, Any]) -> Path:
    with writing(file, remedy="copy the checkpoint to a folder of yours"):
        replace_file(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return file


def _read_threshold(path: Path) -> dict[str, Any]:
    """Read the fields that `set_threshold` stored with a checkpoint; {} if there are none."""
    file = path / _THRESHOLD
    if not file.is_file():
        return {}
    kinds = {"threshold": float, "threshold_set": str, "threshold_step": int, "flip": bool}
    try:
        content = read_json(file)
    except UserError:
        content = None
    right = isinstance(content, dict) and all(type(content.get(key)) is kind for key, kind in kinds.items())
    if not right or not -1 <= content["threshold"] <= 1:
        raise UserError(f"{file}: is not what plsc eval --set-threshold writes; delete it, or write it anew")
    return {key: content[key] for key in kinds}


def _read_calibration(path: Path) -> dict[str, Any]:
    """Read what `set_calibration` stored with a checkpoint, as a field of the state; {} if there is none."""
    file = path / _CALIBRATION
    if not file.is_file():
        return {}
    try:
        content = read_json(file)
    except UserError:
        content = None
    return {"calibration": Calibration.from_json(content, str(file))}


class Thresholds(BaseModel):
    """What the cosines of a network mean."""

    model_config = ConfigDict(strict=True, frozen=True)
    threshold: FiniteFloat | None = None
    """Cosine above which two images are of one class."""
    flip: bool = False
    """Whether `threshold` is of embeddings of an image and its mirror image together."""
    calibration: Calibration | None = None
    """What a cosine means; None: the evaluation was not of pairs."""
    threshold_set: str | None = None
    """Title of the set that a threshold chosen after the training is of."""
    threshold_step: NonNegativeInt | None = None
    """Step of the checkpoint that it was chosen with."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are known, as plain values."""
        return self.model_dump(exclude_none=True)


def thresholds_of(saved: Checkpoint) -> Thresholds:
    """Read those of a checkpoint; a calibration of other embeddings than the threshold is of is left out."""
    later = {**_read_threshold(saved.path), **_read_calibration(saved.path)}
    with saved.loading(OWNER):
        found = Thresholds.model_validate(saved.plain(OWNER)).model_copy(update=later)
    if found.calibration and found.threshold is not None and found.calibration.flip != found.flip:
        return found.model_copy(update={"calibration": None})
    return found
