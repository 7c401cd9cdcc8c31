"""Evaluate a network on the main set (DataLoader.Eval.dataset) and the further ones, all ranks together.

Every rank embeds its share of a set's images; rank 0 alone computes the numbers, which may take a minute,
while the others wait in a barrier that may wait so long, and then sends them the row of metrics.jsonl.
Training and `plsc eval` share this.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.saved import Threshold
from plsc.data.config import DataLoaderCfg
from plsc.errors import UserError
from plsc.evaluation.sets import EvalSet, Result
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import embed
from plsc.training.metrics import Metrics
from plsc.utils.logging import get_logger


class Evaluator:
    """Evaluates a network on sets of images. Every rank makes one.

    Args:
        loader: DataLoader: batch size, mirror images.
        sets: title -> set, the main one first.
        backbone: the bare layer.
        num_classes: of the training set.
        head: predicts the classes of labelled images; None where no set has any.
        weights: gives the backbone the weights to evaluate with, while a block runs; None: it has them.

    Attributes: after `evaluate`, on every rank, `step`, at which it was made, and `rows`, title -> row of
    metrics.jsonl; on rank 0 only, `results`, title -> result.
    """

    def __init__(
        self,
        loader: DataLoaderCfg,
        sets: dict[str, EvalSet],
        backbone: paddle.nn.Layer,
        num_classes: int,
        head: SoftmaxHead | None = None,
        weights: Callable[[], AbstractContextManager[None]] | None = None,
    ):
        self.sets = sets
        self.rows: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Result] = {}
        self.step: int | None = None
        self._batch_size = loader.Train.batch_size
        self._flip = loader.Eval.flip
        self._threshold = Threshold(flip=self._flip)
        self._backbone = backbone
        self.num_classes = num_classes
        self._head = head
        self._weights = weights or nullcontext

    @property
    def main(self) -> str | None:
        """Return the title of the main set; None if nothing is evaluated."""
        return next(iter(self.sets), None)

    @property
    def metric(self) -> str:
        """Return the key of `row` that decides which checkpoint is the best."""
        return self.sets[self.main].result.metric

    @property
    def row(self) -> dict[str, Any] | None:
        """Return the main set's last row, on every rank; None before the first evaluation."""
        return self.rows.get(self.main)

    def state_dict(self) -> dict[str, Any]:
        """Return the threshold, of the last evaluation of the main set."""
        if self.row is not None:
            self._threshold = Threshold(cosine=self.row.get("threshold"), flip=self._flip)
        return self._threshold.model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the threshold, unless it is of other embeddings."""
        saved = Threshold.model_validate(state)
        if saved.flip == self._flip:
            self._threshold = saved

    def evaluate(self, step: int = 0, epoch: int | None = None, metrics: Metrics | None = None) -> None:
        """Evaluate on every set, all ranks together, the main one last.

        Logs the results and writes them to `metrics`, rank 0's. UserError, on every rank, if the numbers
        cannot be computed.
        """
        with self._weights():
            for tensor in self._backbone.state_dict().values():
                if tensor.stop_gradient:
                    # BatchNorm's running statistics: each rank has seen its own batches only; rank 0's are
                    # the model's.
                    distributed.broadcast(tensor)
            for title in reversed(self.sets):
                data = self.sets[title]
                embeddings = embed(
                    self._backbone,
                    data.images,
                    data.count,
                    data.preprocessing,
                    self._batch_size,
                    self._flip,
                )
                if data.labels is None:
                    score = partial(data.score, embeddings)
                else:
                    batches = np.array_split(
                        embeddings, range(self._batch_size, data.count, self._batch_size)
                    )
                    classes = [self._head.classify(paddle.to_tensor(batch)).numpy() for batch in batches]
                    score = partial(data.score_predictions, np.concatenate(classes), self.num_classes)
                self.rows[title] = distributed.run_on_rank_0(partial(self._compute, title, score))
                if metrics:
                    metrics.write({"eval": title, "step": step, "epoch": epoch, **self.rows[title]})
        self.step = step

    def _compute(self, title: str, score: Callable[[], Result]) -> dict[str, Any]:
        """Compute, log and keep the result of one set; return its row. Rank 0 calls it."""
        try:
            result = score()
        except UserError as error:
            raise UserError(f"{title}: {error}") from error
        self.results[title] = result
        get_logger().info(f"{result.kind}: {result.headline} on {title}")
        return result.row()
