"""Embed pictures with a trained network: a run's checkpoint by Paddle, or its export by ONNX Runtime or
Paddle Inference.

Both give the same embeddings. With mirror images these are sums of two of length 1, since an export gives no
others.

    embedder = from_run("output/config.yaml")
    embedder.embed(pixels) @ embedder.embed(others).T  # the cosines

The engines are imported when an embedder is made.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plsc.apps.serving.exported import Graph, check_files, read_export
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config, load
from plsc.data.preprocessing import Preprocessing
from plsc.distributed.environment import before_paddle
from plsc.errors import UserError, shown
from plsc.evaluation.strangers import one_of_everybody_first
from plsc.training.start import open_checkpoint, start
from plsc.utils.calibration import Calibration
from plsc.utils.logging import get_logger
from plsc.utils.text import last_part
from plsc.utils.vectors import unit_embeddings

if TYPE_CHECKING:
    from plsc.training.trained import TrainedNetwork

_BATCH = 64  # samples in one call of an exported graph


@dataclass(eq=False)
class NetworkFacts:
    """What is known of a network and its embeddings, without its weights."""

    network: str
    """The identity of weights and preprocessing, see `Checkpoint.network`; an export has its checkpoint's."""
    described: str
    """Where it is from, for messages."""
    preprocessing: Preprocessing
    embedding_size: int
    flip: bool = False
    """Embeddings are of an image and its mirror image together."""
    threshold: float | None = None
    """Cosine above which two samples are of the same class; None: not known."""
    calibration: Calibration | None = None
    """What a cosine means; None: not known."""
    origin: dict[str, Any] | None = None
    """How `from_origin` makes the embedder again, as plain values; None: not known."""


class Embedder(NetworkFacts, ABC):
    """Turns samples into embeddings of length 1."""

    def embed(self, samples: np.ndarray) -> np.ndarray:
        """Embed samples [B, *shape] of the preprocessing's dtype: float32 [B, D] of length 1, for any B.

        One call at a time. An embedding of zeros stays zeros. Raises UserError for another shape or dtype.
        """
        wanted = self.preprocessing
        if samples.dtype != wanted.dtype or samples.shape[1:] != wanted.shape:
            raise UserError(
                f"embed: samples must be {wanted.dtype} [n, {', '.join(map(str, wanted.shape))}], "
                f"got {samples.dtype} {list(samples.shape)}"
            )
        if not len(samples):
            return np.empty((0, self.embedding_size), np.float32)
        return unit_embeddings(self._embed, samples, self.flip)

    @abstractmethod
    def _embed(self, samples: np.ndarray) -> np.ndarray:
        """Compute embeddings float32 [B, D] of any length, of the samples alone; B is at least 1."""

    def trained_on(self) -> frozenset[str]:
        """Return the names of the classes that the network was trained on, without folders; empty where they
        are not known."""
        return frozenset()

    def held_out(self, most: int) -> tuple[np.ndarray, list[str]]:
        """Embed at most `most` pictures of people held out from training: float32 [n, D], and whom each
        shows; n is 0 if not known."""
        return np.empty((0, self.embedding_size), np.float32), []


def from_run(config: Any, overrides: Iterable[str] = ()) -> Embedder:
    """Make an embedder of a run's checkpoint: Global.checkpoint, by default the newest in Global.output_dir.

    Args:
        config: the run's folder or config.yaml, or what else `Entry` takes. overrides: as `-o` takes them.

    Where the checkpoint has a threshold, images are mirrored as for that threshold, else as
    DataLoader.Eval.flip says.
    """
    overrides = [*overrides]
    before_paddle()  # the config may name classes, whose modules import Paddle
    cfg = load(config, overrides)
    start(cfg)
    from plsc.training.trained import load_network

    network = load_network(open_checkpoint(cfg), cfg)
    origin = None
    if isinstance(config, (str, os.PathLike)):
        checkpoint = os.path.abspath(network.checkpoint.path)
        origin = {"config": os.path.abspath(config), "overrides": overrides, "checkpoint": checkpoint}
    return _OfRun(network, cfg, origin)


def from_origin(origin: dict[str, Any], network: str) -> Embedder:
    """Make an embedder again from its `origin`. network: its identity."""
    if "export" in origin:
        return from_export(origin["export"])
    if "vectors" in origin:
        return from_vectors(origin["vectors"])
    return from_run(*find_run(origin, network))


def find_run(origin: dict[str, Any], network: str) -> tuple[Any, list[str]]:
    """Return config and overrides by which a run's network is made again, also if a later training has moved
    it to previous-1, ...

    origin: of an embedder that `from_run` made. network: its identity.
    """
    config, overrides = origin["config"], origin["overrides"]
    checkpoint = Path(origin["checkpoint"])
    run = checkpoint.parents[1]
    if not _is_of(checkpoint, network):
        for aside in run.glob("previous-*"):
            moved = aside / "checkpoints" / checkpoint.name
            if _is_of(moved, network):
                in_run = run in (Path(config), Path(config).parent)
                config, checkpoint = aside if in_run else config, moved
    return config, [*overrides, f"Global.checkpoint={json.dumps(str(checkpoint))}"]


def _is_of(checkpoint: Path, network: str) -> bool:
    """Say whether a readable checkpoint is there, and is of the network with this identity."""
    try:
        return Checkpoint.open(checkpoint, verify=False).network == network
    except (UserError, OSError):
        return False


class _OfRun(Embedder):
    def __init__(self, network: TrainedNetwork, config: Config, origin: dict[str, Any] | None):
        saved = network.checkpoint
        known = network.threshold
        flip = network.choose_flip(config.DataLoader.Eval.flip)
        super().__init__(
            saved.network,
            network.described,
            network.preprocessing,
            saved.embedding_size,
            flip,
            known.cosine,
            None,
            origin,
        )
        self._network = network
        self._saved = saved
        self._config = config

    def trained_on(self) -> frozenset[str]:
        return frozenset(map(last_part, self._saved.classes() or ()))

    def held_out(self, most: int) -> tuple[np.ndarray, list[str]]:
        from plsc.training.evaluator import build_saved_sets

        if self._config.DataLoader.Eval.dataset is None:
            return super().held_out(most)
        try:
            data = next(iter(build_saved_sets(self._config, self._saved).values()))
            people = data.people()
            chosen = one_of_everybody_first(people, most)
            parts = [chosen[start : start + _BATCH] for start in range(0, len(chosen), _BATCH)]
            embeddings = [
                self.embed(np.concatenate([data.images(n, n + 1) for n in part.tolist()])) for part in parts
            ]
        except UserError as error:
            get_logger().warning(
                f"the people held out from training cannot be searched for the threshold: {error}"
            )
            return super().held_out(most)
        if not embeddings:
            return super().held_out(most)
        return np.concatenate(embeddings), [str(people[n]) for n in chosen.tolist()]

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        return self._network.embed(samples, self._config.DataLoader.Eval.batch_size)


def from_vectors(size: int) -> Embedder:
    """Make an embedder that takes vectors float32 [size] of another program for embeddings. Nobody knows
    which network made them."""
    described = f"vectors of {size:,} numbers"
    network = hashlib.sha256(described.encode()).hexdigest()
    return _OfVectors(network, described, Preprocessing((size,), "float32"), size, origin={"vectors": size})


class _OfVectors(Embedder):
    def _embed(self, samples: np.ndarray) -> np.ndarray:
        return samples


def from_export(folder: str | os.PathLike, described: str | None = None) -> Embedder:
    """Make an embedder of an export: by ONNX Runtime if it and model.onnx are there, else by Paddle
    Inference.

    described: where the network is from, for messages; None: the folder.

    The checksums of the graph's files are compared, and one sample is tried. Raises MissingFileError,
    UserError.
    """
    folder = Path(folder)
    export, preprocessing = read_export(folder)
    onnx = "onnx" in export.files and find_spec("onnxruntime") is not None
    graph = export.files.get("onnx" if onnx else "paddle")
    if graph is None:
        why = "ONNX Runtime only, which is not installed" if "onnx" in export.files else "other programs only"
        raise UserError(
            f"{shown(folder)}: has a graph for {why}: pip install onnxruntime, and export with Export.formats=[onnx], or [paddle]"
        )
    check_files(folder, export, ["model.onnx"] if onnx else [graph.model, graph.params or ""])
    try:
        embedder = _OfExport(
            _onnx_runtime(folder, graph) if onnx else _paddle_inference(folder, graph),
            network=export.network,
            described=described or shown(folder),
            preprocessing=preprocessing,
            embedding_size=export.embedding_size,
            flip=export.flip,
            threshold=export.threshold,
            calibration=_of_flip(export.calibration, export.flip),
            origin={"export": os.path.abspath(folder)},
        )
        one = np.zeros((1, *preprocessing.shape), preprocessing.dtype)
        width = embedder._embed(one).shape[1]
    except Exception as error:  # the engines' own, of many kinds and lines
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
        raise UserError(
            f"{shown(folder)}: its graph cannot be loaded ({shown(lines[0])}); export again"
        ) from error
    if width != export.embedding_size:
        raise UserError(
            f"{shown(folder)}: its graph gives embeddings of {width:,} numbers, preprocessing.json says {export.embedding_size:,}; "
            "export again"
        )
    return embedder


def _of_flip(calibration: Calibration | None, flip: bool) -> Calibration | None:
    """Return the calibration if it is of embeddings with this `flip`."""
    return calibration if calibration and calibration.flip == flip else None


class _OfExport(Embedder):
    def __init__(self, run: Any, **fields: Any):
        super().__init__(**fields)
        self._run = run

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        parts = [samples[start : start + _BATCH] for start in range(0, len(samples), _BATCH)]
        return np.concatenate([self._run(part.astype(np.float32)) for part in parts])


def _onnx_runtime(folder: Path, graph: Graph):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns of each constant that it removes
    # Its threads would wait for the next batch at full speed, and take the processors from what prepares it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return lambda samples: session.run([graph.output], {graph.input: samples})[0]


def _paddle_inference(folder: Path, graph: Graph):
    from paddle import inference

    config = inference.Config(str(folder / graph.model), str(folder / graph.params))
    config.disable_glog_info()
    predictor = inference.create_predictor(config)

    def run(samples: np.ndarray) -> np.ndarray:
        predictor.get_input_handle(graph.input).copy_from_cpu(samples)
        predictor.run()
        return predictor.get_output_handle(graph.output).copy_to_cpu()

    return run
