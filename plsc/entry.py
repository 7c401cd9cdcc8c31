"""Train, evaluate, predict and export by a config: `Entry("configs/", ["Global.epochs=1"]).train()`.

An Entry holds a Config, and each verb is a method that calls the modules below. The verbs import Paddle, not
this module, so that a wrong config is refused at once.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plsc.config import Config, load
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.training.run_folder import start


class Entry:
    """Train, evaluate, predict and export by one config.

        run = Entry("faces.yaml", {"Global.epochs": 2})
        run.train()
        embeddings, names = Entry("output/faces").predict(["ann.jpg", "bob.jpg"])

    Args:
        config: a YAML file, a folder (of a run, or with a default.yaml), a mapping, a Config, or None for
            the defaults.
        overrides: "Section.key" -> value, or "Section.key=value" each, as `-o` takes them; they win over
            `config`.
        model: a paddle.nn.Layer, samples [B, *shape] -> embeddings [B, Model.embedding_size], in place of
            Model.name's.

    Raises UserError with all mistakes in the config, one line each.
    """

    def __init__(
        self,
        config: str | os.PathLike | Mapping[str, Any] | Config | None = None,
        overrides: Iterable[str] | Mapping[str, Any] = (),
        model: Any = None,
    ):
        environment.before_paddle()  # the config may name classes, whose modules import Paddle
        self.config = load(config, overrides)
        if model is not None and (isinstance(model, type) or not hasattr(model, "sublayers")):
            raise UserError(f"model: must be a paddle.nn.Layer that is made already (got {model!r})")
        self._model = model
        self._network: Any = None  # which predict and model have read

    def train(self) -> dict[str, Any]:
        """Train to the end, evaluate, write the report. Every rank calls it in a launch.

        SIGTERM, SIGINT or SIGHUP stops it after a step, with a checkpoint of that step.

        Returns {"accuracy", ..., "seconds", "output_dir"} of the last evaluation (accuracy None without a set
        for it), and "failures" if evaluations or the report failed beside the training, a line each.
        After a signal: {"stopped", "step", ...}. UserError if another run is at work in output_dir.
        """
        from plsc.training.run import train

        self._network = None
        with self.config.naming_places():
            return train(self.config, self._model)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate a checkpoint (Global.checkpoint, or the newest in output_dir) on DataLoader.Eval's sets.

        Prints the table, writes report and results.json to output_dir/test. Returns the main set's numbers.
        """
        self.config.check_data(training=False)
        start(self.config.Global)
        from plsc.training.inference import evaluate

        with self.config.naming_places():
            return evaluate(self.config, self._model)

    def predict(
        self, images: str | os.PathLike | Sequence[Any] | np.ndarray, output: str | os.PathLike | None = None
    ) -> tuple[np.ndarray, list[str]]:
        """Embed images by a checkpoint's backbone, L2-normalised: their inner products are the cosines.

        The checkpoint is read by the first call; `train` makes the next call read it again.

        Args:
            images: a list file (a path a line, a label may follow), an image file, a folder of images at any
                depth, a PIL image, a list of these, or an array of pixels uint8 [n, C, H, W].
            output: folder for embeddings.npy and names.txt; None: nothing is written.

        Returns: embeddings [n, D] float32, and the n names (paths, or "0", "1", ...).
        """
        start(self.config.Global)
        from plsc import distributed
        from plsc.training.inference import predict, write_embeddings

        with self.config.naming_places():
            embeddings, names = predict(self.config, images, self._opened())
            if output is not None and distributed.rank() == 0:
                write_embeddings(Path(output), embeddings, names)
        return embeddings, names

    def model(self) -> tuple[Any, Any]:
        """Return the trained network of the checkpoint, and how it wants its samples.

            layer, preprocessing = Entry("output/faces").model()
            embeddings = layer(preprocessing(paddle.to_tensor(pixels)))  # pixels uint8 [n, C, H, W]

        Returns: the paddle.nn.Layer, in evaluation mode, and its plsc.utils.preprocessing.Preprocessing. The
        embeddings [n, D] are of any length.
        """
        start(self.config.Global)
        with self.config.naming_places():
            layer, saved = self._opened()
        return layer, saved.preprocessing

    def _opened(self) -> Any:
        from plsc.training.inference import open_network

        if self._network is None:
            self._network = open_network(self.config, self._model)
        return self._network

    def __repr__(self) -> str:
        section = self.config
        return (
            f"Entry(output_dir={section.Global.output_dir!r}, model={section.Model.name!r}, "
            f"head={section.Head.name!r})"
        )

    def export(self, output: str | os.PathLike | None = None) -> dict[str, Any]:
        """Write a checkpoint's backbone to a folder in Export.formats, and compare each.

        Args:
            output: the folder; None: output_dir/export.

        Returns the facts of plsc.apps.export.export: files and largest differences.
        """
        start(self.config.Global)
        from plsc.apps.export import export_checkpoint

        with self.config.naming_places():
            return export_checkpoint(self.config, output, self._model)

    def dry_run(self, ranks: int | None = None) -> str:
        """Return the resolved config and the plan of the run on so many `ranks`, or on those of this launch.

        Trains nothing, starts no group, makes no head.
        """
        from plsc.training.dry_run import dry_run

        with self.config.naming_places():
            return dry_run(self.config, ranks, self._model)[0]
