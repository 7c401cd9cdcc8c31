"""Read a checkpoint.

A checkpoint contains the class rows, and the states of the parts of a run. The part that a state belongs to
is called the state's owner. The rows for any range of classes can be read, however many ranks wrote the head
files.

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
"""Version of the embedding's definition, which plsc.training.embed.with_mirror contains."""


class Checkpoint:
    """A checkpoint that is open for reading. Make one with `Checkpoint.open`.

    Arrays are returned as copies. The files stay open, so the arrays can still be read if a run deletes the
    checkpoint.
    """

    def __init__(
        self, path: Path, manifest: Manifest, tensors: dict[str, TensorFile], classes: list[str] | None
    ):
        self.path = path
        self.manifest = manifest
        self._tensors = tensors
        self._classes = classes
        self.step, self.epoch = manifest.step, manifest.epoch
        self.num_classes, self.row_width = manifest.num_classes, manifest.row_width
        self.preprocessing, self.config = manifest.preprocessing, manifest.config

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> Checkpoint:
        """Open the checkpoint in the folder `path`. Raises what `open_folder` raises.

        Args:
            path: the checkpoint's folder.
            verify: whether to read every file and compare its checksum. If false, only sizes and headers are
                checked, which is enough if `store.find` has just verified the checkpoint.
        """
        return cls(Path(path), *open_folder(Path(path), verify))

    def plain(self, owner: str) -> dict[str, Any]:
        """Return the values in an owner's state that are not arrays, or {} if there are none."""
        return self.manifest.state.get(owner, {})

    def arrays(self, owner: str) -> dict[str, np.ndarray]:
        """Read all arrays in an owner's state. Return {} if there are none."""
        file = self._tensors.get(file_of(owner))
        return {name: file.read(name) for name in file.arrays} if file else {}

    def state_dict(self, owner: str) -> dict[str, Any]:
        """Return the state that an owner has saved, or {} if the checkpoint has no such state.

        If the state has arrays, the key "arrays" contains them by name.
        """
        arrays = self.arrays(owner)
        return {**self.plain(owner), **({"arrays": arrays} if arrays else {})}

    @contextlib.contextmanager
    def loading(self, owner: str) -> Iterator[None]:
        """Raise UserError with one line if the code in the block cannot load an owner's state."""
        where = f"{self.path}/manifest.json: state.{owner}"
        remedy = "it was written by another program or run; start from it with Global.init_from"
        try:
            yield
        except KeyError as error:
            raise UserError(f"{where}: has no '{escape(error.args[0])}'; {remedy}") from error
        except ValidationError as error:
            key, message = first_problem(error)
            raise UserError(f"{where}.{escape(key)}: {escape(message)}; {remedy}") from error

    @property
    def evaluation(self) -> Evaluation | None:
        """This checkpoint's evaluation on the main set, or None if it has not been evaluated."""
        return Evaluation.read(self.path)

    @property
    def last_threshold(self) -> VerificationThreshold:
        """The threshold from the run's last evaluation of the main set at or before this step."""
        if evaluation := self.evaluation:
            return evaluation.threshold
        with self.loading("evaluation"):
            return VerificationThreshold.model_validate(self.plain("evaluation"))

    def threshold(self, flip: bool) -> float | None:
        """Return the cosine above which two embeddings count as one class.

        The value comes from the run's last evaluation of the main set. Return None if that evaluation found
        no threshold, or if it used another `flip`.

        Args:
            flip: whether the embeddings are sums over an image and its mirror image.
        """
        known = self.last_threshold
        return known.cosine if known.flip == flip else None

    @property
    def weights_file(self) -> str:
        """Name of the file with the weights for everything except training."""
        return file_of(self.manifest.weights)

    def weights(self) -> dict[str, np.ndarray]:
        """Read all arrays in `weights_file`."""
        return self.arrays(self.manifest.weights)

    def network(self, flip: bool) -> str:
        """Compute the network's identity, a SHA-256 of all that embeddings depend on, as 64 hex digits.

        The identity covers the arrays in `weights` (each name, dtype, shape and bytes, sorted by name), the
        preprocessing, the embedding's definition, and `flip`. Embeddings from networks with different
        identities cannot be compared.

        Args:
            flip: whether the mirror image's embedding is added.
        """
        facts = {**self.preprocessing.to_json(), "embedding": EMBEDDING, "flip": flip}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        file = self._tensors[self.weights_file]
        for name, entry in sorted(file.arrays.items()):
            digest.update(json.dumps([name, entry.dtype.name, entry.shape]).encode())
            digest.update(np.ascontiguousarray(file.read(name)))
        return digest.hexdigest()

    def classes(self) -> list[str] | None:
        """Return each class's name, or None if the run had no class names."""
        return self._classes

    @property
    def head_arrays(self) -> dict[str, Any]:
        """The head's arrays by name, with `.dtype` and `.shape`.

        The length of the first axis is the number of classes in the first head file, not in all head files.
        """
        return self._tensors[self.manifest.heads[0].file].arrays

    def head(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read the rows for classes [start, stop) from all head arrays, [stop - start, ...] each, by name."""
        return {name: self.rows(name, start, stop) for name in self.head_arrays}

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read the rows for classes [start, stop) from the head array `name`: [stop - start, ...]."""
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
        row_width: int,
        *,
        backbone: Mapping[str, Any] | None = None,
        head: Mapping[str, Any] | None = None,
        remedy: str = _RESUME,
    ) -> None:
        """Raise UserError if the checkpoint belongs to another model or other data.

        The message names the first difference and the remedy.

        Args:
            num_classes: this run's class count.
            row_width: length of a class's row of centres in this run.
            backbone: this run's backbone arrays or tensors by name. Names and shapes must agree. None skips
                this comparison.
            head: this run's head arrays by name. Names and shapes must agree, except for the first axis. None
                skips this comparison.
            remedy: how the message ends.
        """
        differences = [
            f"its {what} is {there}, this run's {here}"
            for what, there, here in (
                ("number of classes", self.num_classes, num_classes),
                ("embedding size x sub-centres", self.row_width, row_width),
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
