"""Read a checkpoint: arrays, rows of any classes, and what a later evaluation stored with it: a threshold, a calibration.

Rows are read from head files of any number of ranks.

Try it: `Checkpoint.open("output/checkpoints/step-00000120").head(0, 10)["centres"]`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plsc.checkpoint.manifest import BACKBONE, EMA, Manifest, open_folder
from plsc.checkpoint.tensorfile import DamagedError, TensorFile
from plsc.checkpoint.train_state import COMPATIBLE, TrainState
from plsc.errors import UserError, writing
from plsc.utils.atomic_write import replace_file
from plsc.utils.calibration import Calibration
from plsc.utils.files import read_json

_RESUME = (
    "resume with the model and data that it was made with, or start a new run in another Global.output_dir"
)

# In the folder but not in the manifest: they may be added or removed later.
_THRESHOLD = "threshold.json"
_CALIBRATION = "calibration.json"


def set_threshold(saved: Checkpoint, cosine: float, of: str, flip: bool) -> Path:
    """Store the threshold of a later evaluation with a checkpoint; `state` has it when it is opened again.

    Args:
        cosine: two images with a higher one are of the same class.
        of: title of the set.
        flip: see DataLoader.Eval.flip.
    """
    content = {"threshold": cosine, "threshold_set": of, "threshold_step": saved.step, "flip": flip}
    return _store(saved.path / _THRESHOLD, content)


def set_calibration(saved: Checkpoint, calibration: Calibration) -> Path:
    """Store a calibration of a later evaluation with a checkpoint; `state` has it when it is opened again."""
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


def _with_later(state: TrainState, later: dict[str, Any]) -> TrainState:
    """Return the state with the fields of later evaluations, without a calibration of other embeddings than the threshold is of."""
    state = state.model_copy(update=later)
    calibration = state.calibration
    if calibration and state.threshold is not None and calibration.flip != state.flip:
        return state.model_copy(update={"calibration": None})
    return state


class Checkpoint:
    """A checkpoint, open for reading; arrays come as copies. Make one with `Checkpoint.open`.

    Attributes: path, manifest (a `Manifest`), and from it step, epoch, num_classes, embedding_size, state,
    preprocessing, config_yaml.
    """

    def __init__(self, path: Path, manifest: Manifest, tensors: dict[str, TensorFile]):
        self.path = path
        self.manifest = manifest
        self._tensors = tensors
        self.step, self.epoch = manifest.step, manifest.epoch
        self.num_classes, self.embedding_size = manifest.num_classes, manifest.embedding_size
        self.state = _with_later(manifest.state, {**_read_threshold(path), **_read_calibration(path)})
        self.preprocessing, self.config_yaml = manifest.preprocessing, manifest.config

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> Checkpoint:
        """Open the folder `path`.

        Args:
            verify: read every file and compare its checksum. Without, only sizes, headers and ranges are
                checked; right after `store.find` has verified, that is enough.

        Raises: DamagedError (cut, altered, never completed, hostile), MissingFileError, UserError (another
        format, no permission).
        """
        path = Path(path)
        return cls(path, *open_folder(path, verify))

    def require(self, section: str, *keys: str) -> None:
        """Raise UserError unless `section`, "state" or "preprocessing", has all `keys`; imported centres lack some."""
        known = self.state.to_json() if section == "state" else self.preprocessing
        lacking = [key for key in keys if known.get(key) is None]
        if lacking:
            raise UserError(
                f"{self.path}/manifest.json: {section}.{lacking[0]}: is missing, so this cannot be used as a run's "
                "checkpoint; name one of a training, start from this one with Global.init_from, or import centres with --backbone"
            )

    def backbone(self) -> dict[str, np.ndarray]:
        """Read all arrays of the backbone, parameters and buffers, as the training left them."""
        return self._all(BACKBONE)

    @property
    def weights_file(self) -> str:
        """The file of the weights to use, for everything but to train on: the averaged ones if there are any."""
        return EMA if EMA in self._tensors else BACKBONE

    def weights(self) -> dict[str, np.ndarray]:
        """Read all arrays of `weights_file`; the names are those of `backbone`."""
        return self._all(self.weights_file)

    @functools.cached_property
    def network(self) -> str:
        """The identity of the network that makes the embeddings: a SHA-256, 64 hex digits.

        It is over the arrays of `weights` (name, dtype, shape and bytes of each, sorted by name) and the preprocessing.
        Embeddings of networks with another one cannot be compared.
        """
        digest = hashlib.sha256(json.dumps(self.preprocessing, sort_keys=True).encode())
        file = self._tensors[self.weights_file]
        for name, entry in sorted(file.arrays.items()):
            digest.update(json.dumps([name, entry.dtype.name, entry.shape]).encode())
            digest.update(np.ascontiguousarray(file.read(name)))
        return digest.hexdigest()

    @property
    def compatible_with(self) -> str | None:
        """The identity of the network with whose embeddings this one's can be compared, too (Global.compatible_with)."""
        return self.state.other_networks.get(COMPATIBLE)

    def ema(self) -> dict[str, np.ndarray] | None:
        """Read the averaged weights; None if the run had none."""
        return self._all(EMA) if EMA in self._tensors else None

    def optimizer(self) -> dict[str, np.ndarray]:
        """Read all arrays of the backbone's optimizer."""
        return self._all("optimizer.safetensors")

    def _all(self, name: str) -> dict[str, np.ndarray]:
        return {array: self._tensors[name].read(array) for array in self._tensors[name].arrays}

    def classes(self) -> list[str] | None:
        """Read the name of each class, or None if the run had none."""
        if "classes.json" not in self.manifest.files:
            return None
        names = read_json(self.path / "classes.json")
        if (
            not isinstance(names, list)
            or len(names) != self.num_classes
            or not all(isinstance(n, str) for n in names)
        ):
            raise DamagedError(f"{self.path}/classes.json: is not a list of {self.num_classes} names")
        return names

    @property
    def head_arrays(self) -> dict[str, Any]:
        """The head's arrays by name, with `.dtype` and `.shape`; the first axis is that of one file."""
        return self._tensors[self.manifest.heads[0].file].arrays

    def head(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read only the rows of classes [start, stop) of the head's arrays, [stop - start, ...] each."""
        return {name: self.rows(name, start, stop) for name in self.head_arrays}

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read the rows of classes [start, stop) of one of the head's arrays."""
        assert 0 <= start <= stop <= self.num_classes
        entry = self.head_arrays[name]
        out = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        for part in self.manifest.heads:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                self._tensors[part.file].read_rows(name, low - part.start, out[low - start : high - start])
        return out

    def check_matches(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        backbone: Mapping[str, Any] | None = None,
        optimizer: Mapping[str, Any] | None = None,
        head: Mapping[str, Any] | None = None,
        remedy: str = _RESUME,
    ) -> None:
        """Raise UserError for a checkpoint of another model or data, with each difference and `remedy`.

        Args:
            backbone, optimizer, head: this run's arrays or tensors by name; names and shapes must agree (of
                the head's, all axes but the first). None = not compared.
        """
        differences = []
        if self.num_classes != num_classes:
            differences.append(f"has {self.num_classes} classes, this run has {num_classes}")
        if self.embedding_size != embedding_size:
            differences.append(f"has embedding size {self.embedding_size}, this run has {embedding_size}")
        files = {"backbone": BACKBONE, "optimizer": "optimizer.safetensors"}
        for part, wanted in (("backbone", backbone), ("optimizer", optimizer), ("head", head)):
            if wanted is not None and not (part == "head" and self.embedding_size != embedding_size):
                arrays = self.head_arrays if part == "head" else self._tensors[files[part]].arrays
                differences += _differences(part, arrays, wanted)
        if differences:
            raise UserError(f"checkpoint {self.path.name} {'; '.join(differences)}: {remedy}")


def _differences(part: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """List at most one difference of each kind: missing names, extra names, other shapes."""
    axes = slice(1 if part == "head" else 0, None)
    lack, surplus = sorted(set(wanted) - set(saved)), sorted(set(saved) - set(wanted))
    other = [
        n
        for n in sorted(set(saved) & set(wanted))
        if list(saved[n].shape)[axes] != list(wanted[n].shape)[axes]
    ]
    differences = []
    if lack:
        differences.append(f"lacks {len(lack)} {part} arrays that this run has ({lack[0]})")
    if surplus:
        differences.append(f"has {len(surplus)} {part} arrays that this run lacks ({surplus[0]})")
    if other:
        name = other[0]
        shapes = f"{list(saved[name].shape)[axes]}, this run has {list(wanted[name].shape)[axes]}"
        differences.append(f"has {len(other)} {part} arrays of another shape ({name}: {shapes})")
    return differences
