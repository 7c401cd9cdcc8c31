"""Read a checkpoint: the states that a run has saved, by their owners' names, and rows of any classes.

Rows are read from head files of any number of ranks.

Try it: `Checkpoint.open("output/checkpoints/step-00000120").head(0, 10)["centres"]`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from plsc.checkpoint.evaluation import Evaluation, VerificationThreshold
from plsc.checkpoint.manifest import BACKBONE, Manifest, file_of, open_folder
from plsc.checkpoint.tensorfile import TensorFile, tensor_differences
from plsc.errors import UserError, escape
from plsc.utils.section import first_problem

_RESUME = (
    "resume with the model and data that it was made with, or start a new run in another Global.output_dir"
)

EMBEDDING = 1
"""Version of the definition in plsc.training.embed.with_mirror."""


class Checkpoint:
    """A checkpoint, open for reading; arrays come as copies. Make one with `Checkpoint.open`.

    Its files stay open, so a training that deletes the checkpoint meanwhile does not disturb the reader.
    """

    def __init__(
        self, path: Path, manifest: Manifest, tensors: dict[str, TensorFile], classes: list[str] | None
    ):
        self.path = path
        self.manifest = manifest
        self._tensors = tensors
        self._classes = classes
        self.step, self.epoch = manifest.step, manifest.epoch
        self.num_classes, self.embedding_size = manifest.num_classes, manifest.embedding_size
        self.preprocessing, self.config = manifest.preprocessing, manifest.config

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> Checkpoint:
        """Open the folder `path`.

        verify: read every file and compare its checksum. Without, only sizes and headers are checked; right
        after `store.find` has verified, that is enough. Raises what `open_folder` raises.
        """
        return cls(Path(path), *open_folder(Path(path), verify))

    def plain(self, owner: str) -> dict[str, Any]:
        """Return what the owner of a state keeps beside arrays; {} if the checkpoint has none of it."""
        return self.manifest.state.get(owner, {})

    def arrays(self, owner: str) -> dict[str, np.ndarray]:
        """Read all arrays of the owner of a state; {} if it has none."""
        file = self._tensors.get(file_of(owner))
        return {name: file.read(name) for name in file.arrays} if file else {}

    def state_dict(self, owner: str) -> dict[str, Any]:
        """Return the state that its owner has saved, with "arrays" if it had some; {} if the checkpoint has
        none of it."""
        arrays = self.arrays(owner)
        return {**self.plain(owner), **({"arrays": arrays} if arrays else {})}

    @contextlib.contextmanager
    def loading(self, owner: str) -> Iterator[None]:
        """Turn what is wrong with a state, while its owner takes it over in the block, into one line."""
        where = f"{self.path}/manifest.json: state.{owner}"
        remedy = "it is of another program, or of another run: start from it with Global.init_from"
        try:
            yield
        except KeyError as error:
            raise UserError(f"{where}: has no '{escape(error.args[0])}'; {remedy}") from error
        except ValidationError as error:
            key, message = first_problem(error)
            raise UserError(f"{where}.{escape(key)}: {escape(message)}; {remedy}") from error

    @property
    def evaluation(self) -> Evaluation | None:
        """The main set's evaluation of this checkpoint, None without one."""
        return Evaluation.read(self.path)

    @property
    def last_threshold(self) -> VerificationThreshold:
        """The threshold of the main set's last evaluation in the run, this checkpoint's own included."""
        if evaluation := self.evaluation:
            return evaluation.threshold
        with self.loading("evaluation"):
            return VerificationThreshold.model_validate(self.plain("evaluation"))

    def threshold(self, flip: bool) -> float | None:
        """Return the cosine above which two embeddings, made with or without mirror images (`flip`), are of
        one class.

        It comes from the run's last evaluation of the main set. None: that found none, or embedded otherwise.
        """
        known = self.last_threshold
        return known.cosine if known.flip == flip else None

    @property
    def weights_file(self) -> str:
        """The file of the weights to use, for everything but to train on."""
        return file_of(self.manifest.weights)

    def weights(self) -> dict[str, np.ndarray]:
        """Read all arrays of `weights_file`."""
        return self.arrays(self.manifest.weights)

    def network(self, flip: bool) -> str:
        """Compute the identity of what makes the embeddings: a SHA-256, 64 hex digits.

        It covers the arrays of `weights` (name, dtype, shape and bytes of each, sorted by name), the
        preprocessing, the definition of an embedding, and whether mirror images are added (`flip`).
        Embeddings with different identities cannot be compared.
        """
        facts = {**self.preprocessing.to_json(), "embedding": EMBEDDING, "flip": flip}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        file = self._tensors[self.weights_file]
        for name, entry in sorted(file.arrays.items()):
            digest.update(json.dumps([name, entry.dtype.name, entry.shape]).encode())
            digest.update(np.ascontiguousarray(file.read(name)))
        return digest.hexdigest()

    def classes(self) -> list[str] | None:
        """Read the name of each class, or None if the run had none."""
        return self._classes

    @property
    def head_arrays(self) -> dict[str, Any]:
        """The head's arrays by name, with `.dtype` and `.shape`; the first axis is that of one file."""
        return self._tensors[self.manifest.heads[0].file].arrays

    def head(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read only the rows of classes [start, stop) of the head's arrays, [stop - start, ...] each."""
        return {name: self.rows(name, start, stop) for name in self.head_arrays}

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read the rows of classes [start, stop) of one of the head's arrays."""
        pieces = []
        for part in self.manifest.heads:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                pieces.append(self._tensors[part.file].read(name, low - part.start, high - part.start))
        if not pieces:
            return self._tensors[self.manifest.heads[0].file].read(name, 0, 0)
        return np.concatenate(pieces)

    def check_matches(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        backbone: Mapping[str, Any] | None = None,
        head: Mapping[str, Any] | None = None,
        remedy: str = _RESUME,
    ) -> None:
        """Raise UserError for a checkpoint of another model or data, with a difference and `remedy`.

        backbone, head: this run's arrays or tensors by name; names and shapes must agree (of the head's, all
        axes but the first). None: not compared.
        """
        differences = [
            f"its {what} is {there}, this run's {here}"
            for what, there, here in (
                ("number of classes", self.num_classes, num_classes),
                ("embedding size", self.embedding_size, embedding_size),
            )
            if there != here
        ]
        saved, run = "the checkpoint", "this run"
        if backbone is not None:
            differences += tensor_differences(self._tensors[file_of(BACKBONE)].arrays, backbone, saved, run)
        if head is not None:
            differences += tensor_differences(self.head_arrays, head, saved, run, first_axis=1)
        if differences:
            more = f" (one of {len(differences)} differences)" if len(differences) > 1 else ""
            raise UserError(f"checkpoint {self.path.name}: {differences[0]}{more}: {remedy}")
