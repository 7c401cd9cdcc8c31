"""Train, evaluate, predict and export with a config: `Entry("configs/", ["Global.epochs=1"]).train()`.

An Entry holds a Config. Each method calls a module in plsc.training or plsc.apps. The methods import
Paddle, and this module does not, so that a wrong config is refused at once.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from plsc.config import Config, load
from plsc.distributed import environment
from plsc.errors import UserError
from plsc.training.run_folder import start


class Entry:
    """Trains, evaluates, predicts and exports with one config.

        run = Entry("faces.yaml", {"Global.epochs": 2})
        run.train()
        embeddings, names = Entry("output/faces").predict(["ann.jpg", "bob.jpg"])

    Args:
        config: a YAML file, a folder (a run's, or one with a default.yaml), a mapping, a Config, or None for
            the defaults.
        overrides: a mapping "Section.key" -> value, or an iterable of "Section.key=value", as `-o` takes
            them. They take precedence over `config`.
        model: a paddle.nn.Layer to use instead of Model.name's, or None. It maps samples [B, *shape] to
            embeddings [B, Model.embedding_size]. `train` trains this layer itself. The other methods copy
            it, and load the checkpoint's weights into the copy. The given layer keeps its own weights.

    `predict`, `classify`, `model` and `export` share one network. It has the checkpoint's weights, unless you
    change the layer that `model` returned. `evaluate` always evaluates the checkpoint.

    Raises UserError if the config has mistakes, with one line per mistake, and if `model` is not a Layer.
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
            raise UserError(f"model: must be a paddle.nn.Layer object (got {model!r})")
        self._model = model
        self._network: Any = None  # the network that `predict`, `classify`, `model` and `export` share
        self._head: Any = None

    def train(self) -> dict[str, Any]:
        """Train to the end, evaluate, and write the report. In a launch every rank calls it.

        SIGTERM, SIGINT or SIGHUP stops the training after a step, with that step's checkpoint.

        Returns {"accuracy", ..., "seconds", "output_dir"}. The numbers are from the last evaluation. Without
        a set for it, the accuracy is None. If evaluations or the report failed, "failures" has one line for
        each. After a signal it returns {"stopped", "step", "output_dir"}.

        The best step may be an earlier one. output_dir/results.json has it as "best": {"step", "set",
        "metric", "value"}. `predict`, `classify`, `evaluate` and `export` use its checkpoint if
        Global.checkpoint is "best", otherwise the newest.

        Raises UserError if another run is using output_dir.
        """
        from plsc.training.run import train

        self._network = self._head = None
        with self.config.naming_places():
            return train(self.config, self._model)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate a checkpoint on DataLoader.Eval's sets.

        The checkpoint is Global.checkpoint, or the newest in output_dir. Prints the table, and writes the
        report and results.json to output_dir/test. The weights are always the checkpoint's, also after the
        layer that `model` returned was changed.

        Returns the main set's numbers.
        """
        self.config.check_data(training=False)
        start(self.config.Global)
        from plsc.training.inference import evaluate

        with self.config.naming_places():
            return evaluate(self.config, self._model)

    def predict(
        self, images: str | os.PathLike | Sequence[Any] | np.ndarray, output: str | os.PathLike | None = None
    ) -> tuple[np.ndarray, list[str]]:
        """Embed images with a checkpoint's backbone.

        The embeddings are L2-normalised, so their inner products are cosines. The first call of `predict`,
        `classify`, `model` or `export` reads the checkpoint. The first call after `train` reads it again. If
        you change the layer that `model` returned, `predict` uses the changed weights.

        Args:
            images: a list file (one path per line, which a label may follow), an image file, a folder of
                images at any depth, a PIL image, a list of these, or an array with pixels.
                The array is uint8 [n, C, H, W] from 0 to 255, not normalised. Its size and its order of
                channels are the network's, `model()[1].shape` and `model()[1].channels` ("RGB", "BGR" or
                "grey"). A Gallery takes arrays [H, W, 3] in OpenCV's order BGR instead.
            output: folder for embeddings.npy and names.txt. None writes nothing.

        Returns the embeddings [n, D] float32, and the n names (paths, or "0", "1", ...). The row of an image
            that cannot be read is NaN, and the log contains the reason.

        Raises UserError if no image can be read.
        """
        start(self.config.Global)
        from plsc import distributed
        from plsc.training.inference import predict, write_embeddings

        with self.config.naming_places():
            embeddings, names = predict(self.config, images, self._opened())
            if output is not None and distributed.rank() == 0:
                write_embeddings(Path(output), embeddings, names)
        return embeddings, names

    def classify(
        self,
        images: str | os.PathLike | Sequence[Any] | np.ndarray,
        output: str | os.PathLike | None = None,
        top: int = 1,
    ) -> tuple[list[list[str | None]], np.ndarray, list[str]]:
        """Find each image's most similar classes in the training data.

            classes, similarity, names = Entry("output/faces").classify(["ann.jpg", "bob.jpg"], top=5)
            print(classes[0][0], similarity[0, 0])  # the first image's most similar class

        The first class is the one that an evaluation on labelled images predicts. Every image gets classes,
        also if it shows none of them. The similarity is then usually low. A Gallery can answer "nobody".

        Args:
            images: the images, as `predict` takes them.
            output: folder for classes.csv. None writes nothing.
            top: how many classes to find for each image, T. If there are fewer classes, all are found.

        Returns three things for the n images:
            n lists with the names of T classes, the most similar class first. A name is the class's number
                as text if the training data has no names. It is None if several classes are equally similar,
                or if the image cannot be read.
            the similarities, float32 [n, T]. If the head has a margin, a similarity is the cosine between the
                embedding and the class centre. Otherwise it is the head's logit. It is NaN if the image
                cannot be read.
            the images' names, as `predict` returns them.
        """
        if not isinstance(top, Integral) or top < 1:
            raise UserError(
                f"classify: top, the number of classes per image, must be 1 or more (got {top!r})"
            )
        start(self.config.Global)
        from plsc import distributed
        from plsc.training.inference import classify, open_head, write_classes

        with self.config.naming_places():
            network = self._opened()
            self._head = self._head or open_head(self.config, network[1])
            classes, similarity, names = classify(self.config, images, network, self._head, top)
            if output is not None and distributed.rank() == 0:
                what = "cosine" if self._head.margin else "logit"
                write_classes(Path(output), classes, similarity, names, what)
        return classes, similarity, names

    def model(self) -> tuple[Any, Any]:
        """Return the checkpoint's trained network, and its samples' preprocessing.

            layer, preprocessing = Entry("output/faces").model()
            embeddings = layer(preprocessing(paddle.to_tensor(pixels)))  # pixels uint8 [n, C, H, W]

        The pixels are those that `predict` takes as an array. Later calls of `predict`, `classify` and
        `export` use the same layer, so if you change its weights, they use the changed weights.

        Returns the paddle.nn.Layer, in evaluation mode, and its plsc.utils.preprocessing.Preprocessing. The
        layer's embeddings [n, D] are not normalised.
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
        """Export a checkpoint's backbone in Export.formats, and compare each exported file with the backbone.

        If you changed the layer that `model` returned, the export contains the changed weights. It then has
        no threshold, because the threshold was measured for the checkpoint.

        Args:
            output: the folder to write to. None is output_dir/export.

        Returns the facts of plsc.apps.export.export: files and largest differences.
        """
        start(self.config.Global)
        from plsc.apps.export import export_checkpoint

        with self.config.naming_places():
            return export_checkpoint(self.config, output, self._opened())

    def dry_run(self, ranks: int | None = None) -> str:
        """Return the resolved config and the run's plan as text.

        It does not train, connect ranks, or build a head.

        Args:
            ranks: world size to plan for. None is the world size in this launch.
        """
        from plsc.training.dry_run import dry_run

        with self.config.naming_places():
            return dry_run(self.config, ranks, self._model)[0]
