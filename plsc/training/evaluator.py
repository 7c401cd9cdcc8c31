"""Evaluate a network on the config's evaluation sets, with all ranks.

The main set is DataLoader.Eval.dataset. Its result decides which checkpoint is the best. Each rank computes
the embeddings for its share of a set's images. Rank 0 alone computes the results from all embeddings, which
may take a minute. Meanwhile the other ranks wait in a barrier. Rank 0 then sends them the row for
metrics.jsonl.

Training and `plsc eval` share this module. Try it: `plsc eval -c output/faces`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint.evaluation import Evaluation, VerificationThreshold
from plsc.data.config import DataLoaderCfg
from plsc.errors import UserError, in_one_line
from plsc.evaluation.search import all_alike, refuse_not_finite
from plsc.evaluation.sets import EvalSet, Result
from plsc.heads.softmax import SoftmaxHead
from plsc.training.embed import embed
from plsc.training.metrics import Metrics
from plsc.training.watchdog import Watchdog
from plsc.utils.logging import get_logger, warn_on_rank_0


class Evaluator:
    """Evaluates a network on image sets. Every rank makes one.

    Args:
        loader: the config's section DataLoader. It determines the batch size, and whether the embedding of
            the mirror image is added to each image's embedding.
        sets: the sets by title, the main set first.
        backbone: the layer, without a data parallel wrapper.
        num_classes: the training set's class count.
        head: predicts the classes of labelled images. None if no set has labelled images.
        weights: makes a context manager. In its block, the backbone has the weights to evaluate. None if the
            backbone has them already.
        watchdog: records signals that ask the run to stop. None if signals need not be watched.

    Attributes:
        step: step of the last evaluation, or None before the first one, on every rank.
        rows: the last evaluation's rows for metrics.jsonl by title, on every rank. A set that failed has no
            row.
        failures: one line with the reason for each set that failed in the last evaluation, on every rank.
        results: the last evaluation's results by title, on rank 0 only.
    """

    def __init__(
        self,
        loader: DataLoaderCfg,
        sets: dict[str, EvalSet],
        backbone: paddle.nn.Layer,
        num_classes: int,
        head: SoftmaxHead | None = None,
        weights: Callable[[], AbstractContextManager[None]] | None = None,
        watchdog: Watchdog | None = None,
    ):
        self.sets = sets
        self.rows: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Result] = {}
        self.step: int | None = None
        self._batch_size = loader.Train.batch_size
        self._flip = loader.Eval.flip
        self._threshold = VerificationThreshold(flip=self._flip)
        self._backbone = backbone
        self.num_classes = num_classes
        self._head = head
        self._weights = weights or nullcontext
        self._watchdog = watchdog or Watchdog()
        self.failures: list[str] = []
        self._are_alike = False  # whether the warning about equal embeddings was given
        self._dark: set[str] = set()  # sets for which the warning about dark images was given

    @property
    def main(self) -> str | None:
        """The main set's title, or None if there is no set."""
        return next(iter(self.sets), None)

    @property
    def metric(self) -> str:
        """The key in `row` whose value decides which checkpoint is the best."""
        return self.sets[self.main].result.metric

    @property
    def row(self) -> dict[str, Any] | None:
        """The main set's row from the last evaluation, on every rank. None if there was no evaluation, or if
        the main set failed."""
        return self.rows.get(self.main)

    @property
    def evaluation(self) -> Evaluation | None:
        """The last evaluation's result to write into a checkpoint, or None if the main set has no row."""
        if self.row is None:
            return None
        return Evaluation(
            set=f"{self.main}, {self.sets[self.main].count:,} images",
            metric=self.metric,
            value=self.row[self.metric],
            threshold=VerificationThreshold(cosine=self.row.get("threshold"), flip=self._flip),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the verification threshold from the main set's last evaluation that did not fail."""
        if self.row is not None:
            self._threshold = VerificationThreshold(cosine=self.row.get("threshold"), flip=self._flip)
        return self._threshold.model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the verification threshold, unless its evaluation used another setting for mirror images."""
        saved = VerificationThreshold.model_validate(state)
        if saved.flip == self._flip:
            self._threshold = saved

    def evaluate(self, step: int = 0, epoch: int | None = None, metrics: Metrics | None = None) -> bool:
        """Evaluate on every set, the main set last, and log the results. Every rank calls it.

        If a set cannot be evaluated, `failures` gets a line, and the other sets are still evaluated. If a
        signal asks any rank to stop, the evaluation ends at the next batch.

        Args:
            step: step after which the network is evaluated.
            epoch: epoch of this step, for the rows in metrics.jsonl.
            metrics: writes the rows to metrics.jsonl on rank 0. If it is None, no rows are written.

        Returns True if the evaluation finished, and False if a signal ended it.
        """
        self.step, self.rows, self.results, self.failures = step, {}, {}, []
        stop = distributed.Flag()
        with self._weights():
            for tensor in self._backbone.state_dict().values():
                if tensor.stop_gradient:
                    # BatchNorm's running statistics differ between the ranks, because each rank has seen only
                    # its own batches. All ranks evaluate with rank 0's statistics.
                    distributed.broadcast(tensor)
            for title in reversed(self.sets):
                try:
                    self.rows[title] = self._evaluate(title, stop)
                except UserError as error:
                    if stop:
                        return False
                    self.failures.append(f"{title}: {error}")
                    continue
                if metrics:
                    metrics.write({"eval": title, "step": step, "epoch": epoch, **self.rows[title]})
        return True

    def _evaluate(self, title: str, stop: distributed.Flag) -> dict[str, Any]:
        """Evaluate on one set, and return its row for metrics.jsonl.

        Raises UserError on every rank if the set cannot be evaluated, or if a signal asked any rank to stop.
        Only in the second case, `stop` is set.
        """
        data = self.sets[title]

        def images(first: int, last: int) -> np.ndarray:
            self._watchdog.allow_pause()  # each batch has a time limit, but the evaluation has none
            if self._watchdog.signal:
                stop.set()
            if stop:
                raise UserError("stopped")
            return data.images(first, last)

        embeddings = embed(
            self._backbone, images, data.count, data.preprocessing, self._batch_size, self._flip
        )
        if title not in self._dark and (dark := _dark(embeddings, data)):
            self._dark.add(title)
            warn_on_rank_0(
                f"{title}: the embeddings of {dark:,} of {data.count:,} images are zero, since they have no "
                f"pixel above {data.preprocessing.darkest:g}; if the data set contains no pictures, give it "
                "mean 0 and scale 1"
            )
        elif not self._are_alike and all_alike(embeddings):
            self._are_alike = True
            warn_on_rank_0(
                f"{title}: the embeddings of all {data.count:,} images are alike, so the network "
                "distinguishes nothing; lower the learning rate, or start a new run"
            )
        if data.labels is None:
            score = partial(data.score, embeddings)
        else:
            refuse_not_finite(embeddings, "classification")
            classes = []
            for batch in np.array_split(embeddings, range(self._batch_size, data.count, self._batch_size)):
                if any(distributed.gather_counts(self._watchdog.signal)):
                    stop.set()
                    distributed.barrier()
                    raise UserError("stopped")
                classes.append(self._head.classify(paddle.to_tensor(batch))[0][:, 0].numpy())
            score = partial(data.score_predictions, np.concatenate(classes))
        return distributed.run_on_rank_0(partial(self._compute, title, score))

    def _compute(self, title: str, score: Callable[[], Result]) -> dict[str, Any]:
        """Compute, log and store a set's result, and return its row for metrics.jsonl. Rank 0 calls it."""
        try:
            result = score()
        except Exception as error:  # also errors in a user's class
            raise UserError(in_one_line(error)) from error
        self.results[title] = result
        get_logger().info(f"{result.kind}: {result.headline} on {title}")
        return result.row()


def _dark(embeddings: np.ndarray, data: Any) -> int:
    """Return how many embeddings are zero, or 0 if the first one's image is not too dark to count."""
    zero = ~embeddings.any(axis=1)
    first, darkest = int(np.argmax(zero)), data.preprocessing.darkest
    if not zero[first] or darkest is None:
        return 0
    with suppress(UserError, OSError):  # reading it once more is for a warning only
        return int(zero.sum()) if data.images(first, first + 1).max() <= darkest else 0
    return 0
