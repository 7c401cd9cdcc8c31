"""Train a network. `Trainer.train` is the loop, and calls `Trainer.train_step` for each batch.

A step runs these operations in this order:

    backbone -> head (computes the loss) -> backward -> summary (shows whether to skip the step) -> update

A resumed run takes from a checkpoint: the number of finished steps, the states in `Trainer.stateful`, the
class rows (centres, biases, their optimizer's arrays), and the last evaluation's threshold. The learning rate
depends only on the step, the data order on seed and epoch, dropout on seed, step, layer and sample.

plsc/training/build.py makes a Trainer from a config. A Part (part.py) adds a user's code to the training.

Try it: `build_trainer(load("configs/")).train(metrics=None)`, after `distributed.init`.
"""

import contextlib
import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.profiler import RecordEvent

from plsc import distributed
from plsc.checkpoint.manifest import file_of
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.data.loader import Batch, Loader
from plsc.distributed.device import to_host
from plsc.errors import UserError
from plsc.heads.softmax import HeadOutput, SoftmaxHead, gather_labels
from plsc.training.agreement import describe_images
from plsc.training.amp import nonfinite
from plsc.training.checkpoints import Checkpoints
from plsc.training.evaluator import Evaluator
from plsc.training.load_weights import changed_settings, load_rows, refuse_other_run
from plsc.training.metrics import Metrics
from plsc.training.not_finite import AS_THEY_WERE, refuse_not_finite
from plsc.training.optim import BackboneOptimizer
from plsc.training.parallel_backbone import ParallelBackbone, Statistics
from plsc.training.part import Part, loss_of, numbers_of, state_of
from plsc.training.progress import Progress
from plsc.training.step_row import StepRow, StepSummary, unpack
from plsc.training.watchdog import Watchdog
from plsc.utils.logging import get_logger, warn_on_rank_0


class Trainer:
    """Trains one network. Every rank makes a Trainer, after `distributed.init`.

    Args:
        cfg: the run's config. `plsc.training.build.build_trainer` builds the other arguments from it.
        loader: yields this rank's batches.
        network: runs the backbone forward and backward.
        head: stores the class centres and computes the loss.
        optimizer: updates the backbone.
        evaluator: evaluates the network between steps.
        checkpoints: writes checkpoints between steps.
        parts: the run's `Part`s. Their methods are called in the order of this list.
        watchdog: records a signal that asks the run to stop, and ends this rank if the rank hangs.

    Attributes:
        dataset: the loader's data set.
        step: how many steps are finished. Skipped steps are included.
        total_steps: how many steps the run has.
        skipped: how many steps were skipped because a loss or a gradient was not finite. If a float16
            overflow halved the loss scale, the step is not counted here.
        failures: one line each time that an evaluation set failed in this process. `plsc.training.run.train`
            adds a line if the report fails.
        lr_before: learning rate in the last step before the resume, or None in a new run.
        stopped: name of the signal that stopped the run, or None.
        metrics: the argument of `train`, or None before `train` is called.
        seconds: how long `train` took. It is 0 until `train` has finished.
    """

    def __init__(
        self,
        cfg: Config,
        loader: Loader,
        network: ParallelBackbone,
        head: SoftmaxHead,
        optimizer: BackboneOptimizer,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        parts: list[Part],
        watchdog: Watchdog,
    ):
        self.cfg = cfg
        self.dataset = loader.dataset
        self.loader = loader
        self.network = network
        self.head = head
        self.optimizer = optimizer
        self.evaluator = evaluator
        self.checkpoints = checkpoints
        self.parts = parts
        self.watchdog = watchdog
        self.steps_per_epoch = loader.steps_per_epoch
        self.total_steps = cfg.Global.total_steps(self.steps_per_epoch)
        self.step = 0
        self.skipped = 0
        self.lr_before: float | None = None
        self.stopped: str | None = None
        self.metrics: Metrics | None = None
        self.seconds = 0.0
        self.failures: list[str] = []
        self._skipped_in_a_row = 0
        self._said_alike = False
        self._following: Batch | None = None  # the next step's batch. None at an epoch's end
        self._label_N_of: dict[int, np.ndarray] = {}  # the next step's number -> all ranks' labels
        self._progress: Progress | None = None

    @property
    def backbone(self) -> paddle.nn.Layer:
        """The network's layer, without its data parallel wrapper."""
        return self.network.backbone

    @property
    def epoch(self) -> int:
        """The epoch that contains the last finished step, counted from 1."""
        return -(-self.step // self.steps_per_epoch)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last finished step ended its epoch."""
        return self.step % self.steps_per_epoch == 0

    def schedule(self, step: int) -> float:
        """Return the learning rate for a step. The first step is 0."""
        return self.cfg.LRScheduler.rate(step, self.steps_per_epoch, self.total_steps)

    # -- the loop

    def train(self, metrics: Metrics | None) -> None:
        """Train until the run's end, or until a signal asks the run to stop. Every rank calls it. After a
        signal, the ranks save the last finished step, unless its checkpoint exists already.

        metrics: writes metrics.jsonl on rank 0. It is None on the other ranks.

        Raises UserError if every step was skipped, and in the cases that `train_step` lists. Raises SaveError
        if the run's last checkpoint cannot be written.
        """
        self.metrics = metrics
        self.loader.probe()
        distributed.barrier()  # `probe` may be slow on one rank, and a barrier waits longer than a collective
        self.network.start()
        self._progress = Progress(
            self.total_steps, self.steps_per_epoch, self.cfg.Global.log_every, self.step
        )
        for part in self.parts:
            part.start(self)
            state_of(part)  # raises UserError for a bad state now, and not at the first checkpoint
        self.watchdog.step_started(self.step)
        began = time.monotonic()
        if self.step and self._evaluates and not distributed.run_on_rank_0(self._evaluated):
            if metrics:
                metrics.drop_evaluation(self.step)
            with self._pause():  # the process that saved this checkpoint ended before it had evaluated it
                self.evaluate(metrics)
        while self.step < self.total_steps and not self.stopped:
            self._train_epoch()
        with self._pause():
            if self.stopped and self.checkpoints.newest != self.step:
                self._refuse_weights(f"after step {self.step}", self.network.copy_statistics())
                self.checkpoints.save(self)
        self.seconds = time.monotonic() - began
        overflows = self.network.loss_scale.overflows if self.network.loss_scale else 0
        if not self.stopped and 0 < self.step <= self.skipped + overflows:
            raise UserError(f"all {self.step:,} steps were skipped, so nothing was trained; {AS_THEY_WERE}")

    def _train_epoch(self) -> None:
        """Train the epoch's remaining steps. Stop before the epoch's end if the run ends or is stopped."""
        with contextlib.closing(self.loader.from_step(self.step)) as batches:
            batch = next(batches)
            for self._following in itertools.chain(batches, [None]):
                summary, losses = self.train_step(batch)
                self._log(batch, summary, losses)
                self._save_and_evaluate(summary.signal)
                self.watchdog.step_started(self.step)
                if self.step == self.total_steps or self.stopped:
                    return
                batch = self._following

    def train_step(self, batch: Batch) -> tuple[StepSummary, dict[str, paddle.Tensor]]:
        """Take one training step on this rank's batch. Every rank calls it.

        If the head's loss or a gradient is not finite on any rank, all ranks skip the step. Weights, centres,
        and the statistics of the backbone and the margin then keep the values from before the step. No part's
        `before_update` or `update` is called. `step` increases, so the batch is not repeated.

        Returns the step's summary, which is the same on every rank, and the parts' losses by name.

        Raises UserError in these cases:
            - A label is not the number of a class, or too many images in this epoch cannot be decoded.
            - The backbone or a part does not return what it must return.
            - A weight or a running statistic was not finite before the step.
            - `StepSummary.bad_loss` is set, and a selected class centre is not finite.
            - Global.max_skipped steps in a row were skipped, see `_report_skipped`.
        """
        before, undo_head = self.network.copy_statistics(), self.head.prepare_undo()
        label_N = self._label_N_of.pop(batch.step, None)  # from the previous step's summary
        if label_N is None:  # the first step of an epoch or of a resumed run
            label_N = gather_labels(batch.labels, batch.counts)
        self.head.check_labels(label_N)
        emb_BD = self.network.forward(batch.images, self.step)
        out = self.head(emb_BD, label_N, self.step, counts=batch.counts)
        losses = {part.name: loss_of(part, batch, emb_BD) for part in self.parts}
        losses = {name: loss for name, loss in losses.items() if loss is not None}
        sum(losses.values(), start=out.loss).backward()  # down to embeddings and centres
        self.network.backward(emb_BD.grad)
        if self._following and self.step + 1 < self.total_steps:
            self.network.send_ahead(self._following.images, self.step + 1)
        rate = self.schedule(self.step)
        with RecordEvent("check"):
            summary = self._summarise_step(emb_BD, out, before)
        if summary.replaced > self.loader.corrupt.limit:
            of_ranks = distributed.gather_objects(self.loader.corrupt.replaced)
            self.loader.corrupt.refuse([index for of_rank in of_ranks for index in of_rank])
        self._label_N_of = {batch.step + 1: summary.label_N} if self._following else {}
        if summary.finite:
            self._skipped_in_a_row = 0
            for part in self.parts:
                part.before_update(self)
            with RecordEvent("optimizer"):
                self.optimizer.step(rate)
                self.head.update(rate * self.cfg.Optimizer.head_lr_scale, self.step)
            for part in self.parts:
                part.update(self)
        else:
            if summary.bad_before_step:
                self._refuse_weights(f"step {self.step + 1}", before, found=True)
            if summary.bad_loss:  # no later step can repair a centre that is not finite
                refuse_not_finite(f"step {self.step + 1}", out.selection.first_not_finite())
            before.restore()
            undo_head()
            self._report_skipped(rate, summary)
        finite = not (summary.bad_backbone or summary.bad_loss)
        if finite and summary.alike and not self._said_alike:
            self._said_alike = True
            warn_on_rank_0(
                f"step {self.step + 1}: all samples have the same embedding, so the network learns "
                "nothing; one of its layers may be dead; start a new run with a lower "
                "LRScheduler.learning_rate or a longer warm-up, or find out why the embeddings are the same"
            )
        self.optimizer.clear_grad()
        self.step += 1
        return summary, {name: loss.detach() for name, loss in losses.items()}

    @paddle.no_grad()
    def _summarise_step(self, emb_BD: paddle.Tensor, out: HeadOutput, before: Statistics) -> StepSummary:
        """Gather what each rank knows about a step after the backward pass, and copy the result to the host.
        Every rank calls it.

        `train_step` waits for the device only here, with two exceptions. In the first step of an epoch or of
        a resumed run, it also waits for the labels. If the class centres are not stored on the device, it
        also waits for the centres that the step uses. After `train_step`, `_log` waits for the parts' losses
        and numbers when a line is due.

        Collectives: one all_gather. Each rank sends nine numbers and its labels for the next step.

        Args:
            emb_BD: this rank's embeddings, float32, with their gradient.
            out: the head's output for this step.
            before: copy of the backbone's running statistics before the step. A number in it that is not
                finite ends the run. The statistics after the step are not checked.
        """
        # The loss is copied, because `nonfinite` may overwrite numbers that are not finite.
        of_head = [out.loss.detach().clone().reshape([1])]
        if emb_BD.grad is not None:
            of_head.append(emb_BD.grad)
        of_head += out.selection.gradients().values()
        bad = [
            nonfinite(self.network.weights(before)),
            nonfinite(self.network.gradients()),
            nonfinite(of_head),
        ]
        following = self._following
        row = StepRow(
            *bad,
            loss=out.loss,
            accuracy=out.accuracy,
            alike=self._alike(emb_BD),
            waited=self.loader.wait_seconds,
            signal=self.watchdog.signal,
            replaced=len(self.loader.corrupt.replaced),
            label_B=following.labels if following else np.empty(0, np.int64),
        )
        counts = following.counts if following else []
        row_1F = row.pack(most=max(counts, default=0))
        return unpack(to_host(distributed._c_allgather(row_1F, [1] * distributed.world_size())), counts)

    def _alike(self, emb_BD: paddle.Tensor) -> paddle.Tensor:
        """Return whether this rank's embeddings are all equal, except for rounding: bool [1], on the device.

        The result is False without a check if the step's number is not a multiple of Global.log_every, if the
        warning about equal embeddings was already given, or if this rank has one sample.
        """
        if (self.step + 1) % self.cfg.Global.log_every or self._said_alike or len(emb_BD) < 2:
            return paddle.zeros([1], "bool")
        spread = (emb_BD - emb_BD[:1]).abs().max()
        return (spread <= 1e-6 * emb_BD.abs().max()).reshape([1])

    def _refuse_weights(self, when: str, before: Statistics, found: bool = False) -> None:
        """Raise the same UserError on every rank if a weight or a running statistic on any rank is not
        finite. Every rank calls it.

        No later step can repair such a number.

        Args:
            when: beginning of the error message, such as "after step 7".
            before: copy of the running statistics to check.
            found: whether `_summarise_step` has found such a number. Its call of `nonfinite` may have made it
                finite. If no rank finds it again, the error says "a weight" instead of its name.
        """
        name = self.network.not_finite(before)
        if found and not any(distributed.gather_counts(bool(name))):
            name = "a weight"
        refuse_not_finite(when, f"{name} of the backbone" if name else "")

    def _report_skipped(self, rate: float, summary: StepSummary) -> None:
        """Log why a step was skipped. If float16 gradients overflowed, and the loss scale can be halved,
        halve it. Otherwise count the step. Raises UserError if max_skipped steps in a row were counted."""
        number = self.step + 1
        scale = self.network.loss_scale
        if scale and not summary.bad_loss and scale.halve():
            get_logger().info(
                f"step {number}: the backbone's gradients overflowed in float16; step skipped, loss scale "
                f"{scale.scale:g} from here on"
            )
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        most = self.cfg.Global.max_skipped
        what = (
            "the head's loss, or a gradient with respect to the embeddings or the class centres,"
            if summary.bad_loss
            else "a gradient of the backbone"
        )
        line = f"step {number}: {what} is not finite (learning rate {rate:.4g})"
        if self._skipped_in_a_row == most:
            raise UserError(f"{line}, and {most} steps in a row had to be skipped; {AS_THEY_WERE}")
        if distributed.rank() == 0:
            get_logger().warning(f"{line}; step skipped ({self._skipped_in_a_row} of {most} in a row)")

    # -- between steps

    def _log(self, batch: Batch, summary: StepSummary, losses: dict[str, paddle.Tensor]) -> None:
        """Log a line, and write a row with the same numbers to metrics.jsonl. Both are due every
        Global.log_every steps and after the run's last step."""
        means = {"accuracy": summary.accuracy}
        means.update({f"loss/{name}": loss.astype("float64") for name, loss in losses.items()})
        numbers = numbers_of(self.parts)
        if self.skipped:
            numbers["skipped"] = self.skipped
        rate, images = self.schedule(self.step - 1), sum(batch.counts)
        row = self._progress.update(
            self.step, summary.loss, rate, images, summary.waited, means, summary.finite, **numbers
        )
        if row and self.metrics:
            self.metrics.write(row)

    @property
    def _evaluates(self) -> bool:
        """Whether an evaluation is due after the step that has just finished.

        One is due at the run's end, every Global.eval_every epochs, and every Global.eval_every_steps steps.
        If there is no evaluation set, none is due.
        """
        section = self.cfg.Global
        due = self.step == self.total_steps
        if section.eval_every_steps:
            due |= self.step % section.eval_every_steps == 0
        if section.eval_every:
            due |= self.ends_epoch and self.epoch % section.eval_every == 0
        return due and bool(self.evaluator.sets)

    def _save_and_evaluate(self, number: int) -> None:
        """After a step, write a checkpoint if one is due, and evaluate if an evaluation is due.

        A checkpoint is due after an epoch, at the run's end, every Checkpoint.every_steps steps, and before
        each evaluation. Therefore no step is lost if an evaluation fails.

        A signal also stops the run if it arrives during the save or during the evaluation.

        Args:
            number: number of a signal that a rank has received before the save, or 0 if there was none.
        """
        every = self.cfg.Checkpoint.every_steps
        evaluates = self._evaluates
        saves = evaluates or self.step == self.total_steps or self.ends_epoch
        if saves or (every and self.step % every == 0):
            with self._pause():
                self._refuse_weights(f"after step {self.step}", self.network.copy_statistics())
                self.checkpoints.save(self)
                number = number or max(distributed.gather_counts(self.watchdog.signal))
        if number and (evaluates or self.step < self.total_steps):
            self.stopped = signal.Signals(number).name
        elif evaluates:
            with self._pause():
                self.evaluate(self.metrics)

    def evaluate(self, metrics: Metrics | None) -> None:
        """Evaluate, write rows with `metrics`, and write the result into the checkpoint's folder. Every rank
        calls it. If a set fails, add a line to `failures`. If a signal arrives, set `stopped`."""
        ended = self.evaluator.evaluate(self.step, self.epoch, metrics)
        for line in self.evaluator.failures:
            self.failures.append(f"evaluation at step {self.step:,}: {line}")
            if distributed.rank() == 0:
                get_logger().error(self.failures[-1])
        if not ended:
            self.stopped = signal.Signals(max(distributed.gather_counts(self.watchdog.signal))).name
        elif (made := self.evaluator.evaluation) and distributed.rank() == 0:
            self.checkpoints.add_evaluation(self.step, made)

    def _evaluated(self) -> bool:
        return self.checkpoints.evaluated(self.step)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Let the block in the `with` statement take longer than a step. The log's images per second and
        epoch times do not include the block's time."""
        self.watchdog.allow_pause()
        with self._progress.pause():
            yield

    # -- checkpoints

    @property
    def stateful(self) -> dict[str, Any]:
        """The objects whose states are written to a checkpoint, by name.

        The class centres are not in the head's state. They are written separately.
        """
        return {
            "run": self,
            "backbone": self.network,
            "optimizer": self.optimizer,
            "head": self.head,
            **({"margin": self.head.margin} if self.head.margin else {}),
            "evaluation": self.evaluator,
            **{part.name: part for part in self.parts},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return `skipped`, the last step's learning rate, and the settings `refuse_other_run` compares."""
        return {
            "seed": self.cfg.Global.seed,
            "global_batch": self.loader.global_batch,
            "steps_per_epoch": self.steps_per_epoch,
            "images": describe_images(self.dataset),
            "optimizer": self.optimizer.name,
            "head": self.cfg.Head.kind,
            "head_optimizer": type(self.head.bank.rule).__name__,
            "freeze": [pattern.pattern for pattern in self.cfg.Optimizer.freeze],
            "freeze_norms": self.cfg.Optimizer.freeze_norms,
            "skipped": self.skipped,
            "lr": self.schedule(self.step - 1),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set `skipped` and `lr_before`. `refuse_other_run` has compared the settings."""
        self.skipped = state["skipped"]
        self.lr_before = state["lr"]

    def resume(self, path: str | Path) -> None:
        """Load the step, all states and the class centres from a checkpoint. Any number of ranks may have
        written it.

        Raises UserError if the checkpoint cannot be read, or if it does not belong to this run.
        """
        saved = Checkpoint.open(path, verify=False)  # store.find has verified it
        warnings = refuse_other_run(saved, self.state_dict(), self.dataset)
        saved.check_matches(
            self.head.shard.num_classes, self.head.bank.width, backbone=self.backbone.state_dict()
        )
        warnings += changed_settings(saved, self.cfg.plain())
        load_rows(self.head, saved)
        for name, owner in self.stateful.items():
            with saved.loading(name):
                owner.load_state_dict(saved.state_dict(name))
        warnings += [
            f"the state of '{name}' in {saved.path.name} is dropped, since this run has no part of that name"
            for name, state in saved.manifest.state.items()
            if name not in self.stateful and (state or file_of(name) in saved.manifest.files)
        ]
        self.evaluator.load_state_dict(saved.last_threshold.model_dump())
        self.checkpoints.newest = saved.step
        self.step = saved.step
        if self.step >= self.total_steps:
            warnings.append(
                f"the run is complete: it ends at step {self.total_steps}; raise Global.epochs or "
                "Global.max_steps"
            )
        for line in warnings:
            warn_on_rank_0(line)
        get_logger().info(f"resuming at step {saved.step} from {saved.path}")
