"""Open another run, whose network or class centres take part in this one without being trained.

other = OtherRun("output/before", "Global.compatible_with")
network = other.build_network(dataset.preprocessing)
row_C = other.rows_of(class_names(dataset))
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.class_names import match_names, refuse_duplicates
from plsc.checkpoint.manifest import config_sections
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.store import find_at
from plsc.config import load
from plsc.data.preprocessing import Preprocessing
from plsc.errors import MissingFileError, UserError
from plsc.training.trained import load_network


class OtherRun:
    """Holds the checkpoint of another run. Every rank makes one; rank 0 alone reads every byte.

    Args:
        path: the folder of a run, whose newest checkpoint is taken, or of a checkpoint.
        key: the key of the config that names it, for messages.
        alone: this process makes one without the other ranks, as for a dry run.

    Attributes: `saved`, the checkpoint; `cfg`, a config with the sections Model, Head and Optimizer of that
    run; `where`, key and path.

    Raises UserError: no checkpoint there, a damaged one, or one without a config.
    """

    def __init__(self, path: str, key: str, alone: bool = False):
        self.where = f"{key}: {path}"
        find_here = partial(_find, path, self.where)
        checkpoint = find_here() if alone else distributed.run_on_rank_0(find_here)
        self.saved = Checkpoint.open(checkpoint, verify=False)
        sections = config_sections(self.saved.config_yaml)
        if "Model" not in sections:
            raise UserError(f"{self.where}: says nothing of its network; name a checkpoint of a training")
        given = [
            f"{name}={json.dumps(sections[name])}"
            for name in ("Model", "Head", "Optimizer")
            if name in sections
        ]
        try:
            self.cfg = load(None, given)
        except UserError as error:
            raise UserError(f"{self.where}: its config does not fit this version: {error}") from error

    @property
    def network(self) -> str:
        """The identity of its network."""
        return self.saved.network

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of its samples."""
        return Preprocessing.from_json(self.saved.preprocessing)

    def refuse_other(self, preprocessing: Preprocessing, embedding_size: int) -> None:
        """Refuse by UserError a run whose samples or embeddings are not of the kind of this run's."""
        if self.preprocessing.differences(preprocessing):
            raise UserError(
                f"{self.where}: has samples {self.saved.preprocessing}, this run has {preprocessing.to_json()}; both must be alike"
            )
        if self.saved.embedding_size != embedding_size:
            raise UserError(
                f"{self.where}: has embeddings of {self.saved.embedding_size} numbers, this run of {embedding_size}; "
                f"set Model.embedding_size={self.saved.embedding_size}"
            )

    def build_network(self) -> paddle.nn.Layer:
        """Build its network with its weights, averaged if it has such, in evaluation mode and without
        gradients."""
        network = load_network(self.saved, self.cfg).backbone
        network.eval()
        for parameter in network.parameters():
            parameter.stop_gradient = True
        return network

    def rows_of(self, names: list[str] | None) -> np.ndarray:
        """Find the row of each class of this run, by the names of both, -1 for one that it does not know:
        int64 [C].

        Raises UserError if a run has no names, or a name twice, or if no name is in both.
        """
        there = self.saved.classes()
        for of_run, whose in ((there, "its classes"), (names, "the classes of the data")):
            if of_run is None:
                raise UserError(f"{self.where}: {whose} have no names, by which classes are found")
            refuse_duplicates(of_run, self.where)
        row_C, _ = match_names(there, names)
        if (row_C < 0).all():
            raise UserError(
                f"{self.where}: no class of it ('{there[0]}', ...) is in the data ('{names[0]}', ...)"
            )
        return row_C


def refuse_other_network(part: str, state: dict[str, Any], network: str) -> None:
    """Refuse by UserError to resume with another network of another run than the checkpoint's `state` of a
    part names."""
    if (known := state.get("network")) != network:
        raise UserError(
            f"the checkpoint was made with the network {known} as its {part}, this run has {network}: resume with the same, or start a "
            "new run with Global.init_from in another Global.output_dir"
        )


def _find(path: str, where: str) -> Path:
    """Find the checkpoint that `path` means, every checksum verified."""
    try:
        found = find_at(path)
    except MissingFileError as error:
        raise MissingFileError(
            f"{where}: there is no run, and no checkpoint; name the folder of one"
        ) from error
    if found is None:
        raise MissingFileError(
            f"{where}: there is no checkpoint; name the folder of a run, or of one of its checkpoints"
        )
    return found
