"""Run a training: `train` is the loop, `train_step` shows the order of operations in a step.

    data.loader -> backbone (data parallel) -> head (classes spread over the ranks) -> backward -> agree ->
    update

The learning rate is a function of the step, the order of the data of (seed, epoch), dropout of (seed, step,
layer, sample), so a resumed run needs nothing but step and states. plsc/training/build.py makes a Trainer
from a config; what a user adds is a Part (part.py).
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
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.data.loader import Batch, Loader
from plsc.distributed.device import to_host
from plsc.errors import UserError
from plsc.heads.softmax import HeadOutput, SoftmaxHead, gather_labels
from plsc.training.amp import nonfinite
from plsc.training.checkpoints import Checkpoints
from plsc.training.evaluator import Evaluator
from plsc.training.load_weights import load_rows, refuse_other_run
from plsc.training.metrics import Metrics
from plsc.training.optim import BackboneOptimizer
from plsc.training.parallel_backbone import ParallelBackbone, Statistics
from plsc.training.part import Part, loss_of, state_of
from plsc.training.progress import Progress
from plsc.training.step_row import StepRow, StepSummary, unpack
from plsc.training.watchdog import Watchdog
from plsc.utils.logging import get_logger, warn_on_rank_0

_AS_THEY_WERE = (
    "the checkpoints are as they were: lower LRScheduler.learning_rate, lengthen its warm-up, set "
    "Optimizer.clip_norm, or look in the network for a division by 0; if it comes back at once, set "
    "Global.overwrite=true"
)


class Trainer:
    """Runs one training. Every rank makes one, after `distributed.init`; plsc.training.build.build_trainer
    does from a config.

    Args:
        cfg: of the run, from which the following are built unless the caller replaces them.
        loader: the batches to train on.
        network: the backbone. head: class centres and loss. optimizer: of the backbone.
        evaluator, checkpoints: for what is done between steps.
        parts: called in this order. watchdog: notes signals and hangs.

    Attributes: `dataset`, the loader's; `step`, how many are done, and `total_steps`, that the run ends at;
    `skipped`, steps that were left out because they were not finite, but for overflows of float16;
    `failures`, a line for each evaluation set that failed in this process;
    `lr_before`, the rate of the last step of the run that is resumed; `stopped`, the name of the signal that
    the run was asked to stop by; `metrics`, rank 0's, while training; `seconds`, of training and evaluation
    in this process.
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
        self._following: Batch | None = None  # the batch of the next step of this epoch
        self._label_N_of: dict[int, np.ndarray] = {}  # the next step of this epoch -> its labels of all ranks
        self._progress: Progress | None = None

    @property
    def backbone(self) -> paddle.nn.Layer:
        """The bare layer of the network."""
        return self.network.backbone

    @property
    def epoch(self) -> int:
        """The epoch of the last step, from 1."""
        return -(-self.step // self.steps_per_epoch)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step was the last of its epoch."""
        return self.step % self.steps_per_epoch == 0

    def schedule(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        return self.cfg.LRScheduler.rate(step, self.steps_per_epoch, self.total_steps)

    # -- the loop

    def train(self, metrics: Metrics | None) -> None:
        """Train to the end of the run, or to a signal after which all ranks save. metrics: rank 0's, None on
        the others."""
        self.metrics = metrics
        self.loader.probe()
        distributed.barrier()  # disks are not equally fast, and a collective would not wait so long
        self.network.start()
        self._progress = Progress(
            self.total_steps, self.steps_per_epoch, self.cfg.Global.log_every, self.step
        )
        for part in self.parts:
            part.start(self)
            state_of(part)  # refused now, not at the first checkpoint
        self.watchdog.step_started(self.step)
        began = time.monotonic()
        if self.step and self._evaluates and not distributed.run_on_rank_0(self._evaluated):
            with self._pause():  # the run was ended in between
                self._evaluate()
        while self.step < self.total_steps and not self.stopped:
            self._train_epoch()
        with self._pause():
            if self.stopped and self.checkpoints.newest != self.step:
                self._refuse_weights(f"after step {self.step}", self.network.remember())
                self.checkpoints.save(self)
        self.seconds = time.monotonic() - began
        overflows = self.network.loss_scale.overflows if self.network.loss_scale else 0
        if not self.stopped and 0 < self.step <= self.skipped + overflows:
            raise UserError(f"all {self.step:,} steps were left out, so nothing was trained; {_AS_THEY_WERE}")

    def _train_epoch(self) -> None:
        """Train the remaining steps of the epoch, up to the run's end."""
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
        """Take one optimizer step on this rank's samples -> what all ranks know of it, and the parts' losses.

        Loss or gradients that are not finite make it a step that changes nothing. UserError for a label that
        is no class, and for the last step of too many in a row that are left out. Every rank calls it.
        """
        before, undo_head = self.network.remember(), self.head.remember()
        label_N = self._label_N_of.pop(batch.step, None)  # since the ranks agreed on the step before
        if label_N is None:  # the first step of an epoch
            label_N = gather_labels(batch.labels, batch.counts)
        self.head.check_labels(label_N)
        emb_BD = self.network.forward(batch.images, self.step)
        out = self.head(emb_BD, label_N, self.step, counts=batch.counts)
        losses = {part.name: loss_of(part, batch, emb_BD) for part in self.parts}
        losses = {name: loss for name, loss in losses.items() if loss is not None}
        sum(losses.values(), start=out.loss).backward()  # up to the embeddings, and the centres
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
            if summary.bad_weights:
                self._refuse_weights(f"step {self.step + 1}", before, found=True)
            before.restore()
            undo_head()
            self._report_skipped(rate, summary)
        if summary.alike and not self._said_alike:
            self._said_alike = True
            warn_on_rank_0(
                f"step {self.step + 1}: the embeddings of all samples are the same, so the network tells "
                "nothing apart and learns nothing: a layer of it may be dead; begin anew with a lower "
                "LRScheduler.learning_rate or a longer warm-up, or look for what makes them the same"
            )
        self.optimizer.clear_grad()
        self.step += 1
        return summary, {name: loss.detach() for name, loss in losses.items()}

    @paddle.no_grad()
    def _summarise_step(self, emb_BD: paddle.Tensor, out: HeadOutput, before: Statistics) -> StepSummary:
        """Gather what each rank knows of a step after its backward pass, and read it: the one place of a step
        where the host waits for the device, but for an epoch's first labels and for a bank in its memory.
        Every rank calls it.

        before: the backbone's statistics before the step, since a bad batch may spoil those after it.

        Collectives: one all_gather of [1, 9 + samples] numbers; the labels of the next step are among them.
        """
        of_head = [out.loss.detach().clone().reshape([1])]  # a copy: what is not finite may be overwritten
        if emb_BD.grad is not None:
            of_head.append(emb_BD.grad)
        of_head += out.selection.gradients().values()
        bad = [
            nonfinite(self.network.weights(before)),
            nonfinite([p.grad for p in self.backbone.parameters() if p.grad is not None]),
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
        """Return whether all embeddings of this rank are the same to rounding, bool [1] on the device; False
        where no line is due, or there is one sample alone."""
        if (self.step + 1) % self.cfg.Global.log_every or self._said_alike or len(emb_BD) < 2:
            return paddle.zeros([1], "bool")
        spread = (emb_BD - emb_BD[:1]).abs().max()
        return (spread <= 1e-6 * emb_BD.abs().max()).reshape([1])

    def _refuse_weights(self, when: str, before: Statistics, found: bool = False) -> None:
        """Raise UserError, the same on every rank, if weights or statistics of a rank are not finite: no
        later step mends them. Every rank calls it.

        found: some are, though what found them may have overwritten them.
        """
        names = distributed.gather_objects(self.network.not_finite(before))
        if found and not any(names):
            names[0] = "a weight"
        for rank, name in enumerate(names):
            if name:
                raise UserError(
                    f"{when}: {name} of the backbone, on rank {rank}, is not finite; {_AS_THEY_WERE}"
                )

    def _report_skipped(self, rate: float, summary: StepSummary) -> None:
        """Say why a step changes nothing. UserError for too many in a row."""
        number = self.step + 1
        scale = self.network.loss_scale
        if scale and not summary.bad_head and scale.halve():
            get_logger().info(
                f"step {number}: the backbone's gradients overflowed in float16; step left out, loss scale "
                f"{scale.scale:g} from here on"
            )
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        most = self.cfg.Global.max_skipped
        what = (
            "the head's loss, or a gradient by embeddings or centres,"
            if summary.bad_head
            else "a gradient of the backbone"
        )
        line = f"step {number}: {what} is not finite (learning rate {rate:.4g})"
        if self._skipped_in_a_row == most:
            raise UserError(f"{line}, and {most} steps in a row had to be left out; {_AS_THEY_WERE}")
        if distributed.rank() == 0:
            get_logger().warning(f"{line}; step left out ({self._skipped_in_a_row} of {most} in a row)")

    # -- between steps

    def _log(self, batch: Batch, summary: StepSummary, losses: dict[str, paddle.Tensor]) -> None:
        """Log a line and write a row of metrics.jsonl at regular steps, with the numbers of the parts."""
        means = {"accuracy": summary.accuracy}
        means.update({f"loss/{name}": loss.astype("float64") for name, loss in losses.items()})
        numbers: dict[str, Any] = {}
        for part in self.parts:
            numbers.update(part.numbers)
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
        """Whether the last step is one to evaluate after: the run's last, and each after so many epochs and
        steps."""
        section = self.cfg.Global
        due = self.step == self.total_steps
        if section.eval_every_steps:
            due |= self.step % section.eval_every_steps == 0
        if section.eval_every:
            due |= self.ends_epoch and self.epoch % section.eval_every == 0
        return due and bool(self.evaluator.sets)

    def _save_and_evaluate(self, number: int) -> None:
        """Save where an epoch or the run ends, after every so many steps, and before each evaluation, so that
        nothing that fails in it costs a step; then evaluate.

        number: of the signal that asked a rank to stop in the last step, 0 for none. One that comes while a
        checkpoint is written, or in an evaluation, stops the run, too.
        """
        every = self.cfg.Checkpoint.every_steps
        evaluates = self._evaluates
        saves = evaluates or self.step == self.total_steps or self.ends_epoch
        if saves or (every and self.step % every == 0):
            with self._pause():
                self._refuse_weights(f"after step {self.step}", self.network.remember())
                self.checkpoints.save(self)
                number = number or max(distributed.gather_counts(self.watchdog.signal))
        if number and (evaluates or self.step < self.total_steps):
            self.stopped = signal.Signals(number).name
        elif evaluates:
            with self._pause():
                self._evaluate()

    def _evaluate(self) -> None:
        """Evaluate, and write the result beside the checkpoint; a signal stops the run."""
        ended = self.evaluator.evaluate(self.step, self.epoch, self.metrics)
        for line in self.evaluator.failures:
            self.failures.append(f"evaluation at step {self.step:,}: {line}")
            if distributed.rank() == 0:
                get_logger().error(self.failures[-1])
        if not ended:
            self.stopped = signal.Signals(max(distributed.gather_counts(self.watchdog.signal))).name
        elif (made := self.evaluator.evaluation) and distributed.rank() == 0:
            self.checkpoints.note(self.step, made)

    def _evaluated(self) -> bool:
        return self.checkpoints.evaluated(self.step)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Leave the time of the block out of the measured times, and let it take long."""
        self.watchdog.allow_pause()
        with self._progress.pause():
            yield

    # -- checkpoints

    @property
    def stateful(self) -> dict[str, Any]:
        """All that has a state in a checkpoint, by name; the rows of the class centres are written apart."""
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
        """Return what a run must have in common with the one that it goes on with, and its count."""
        return {
            "seed": self.cfg.Global.seed,
            "global_batch": self.loader.global_batch,
            "steps_per_epoch": self.steps_per_epoch,
            "optimizer": self.optimizer.name,
            "head": self.cfg.Head.kind,
            "head_optimizer": type(self.head.bank.rule).__name__,
            "freeze": [pattern.pattern for pattern in self.cfg.Optimizer.freeze],
            "freeze_norms": self.cfg.Optimizer.freeze_norms,
            "skipped": self.skipped,
            "lr": self.schedule(self.step - 1),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the count and the rate; `refuse_other_run` has compared the rest."""
        self.skipped = state["skipped"]
        self.lr_before = state["lr"]

    def resume(self, path: str | Path) -> None:
        """Take over a checkpoint of any world size: all states, and its step. UserError if it is of another
        problem."""
        saved = Checkpoint.open(path, verify=False)  # verified when it was searched for
        saved.check_matches(
            self.head.shard.num_classes, self.head.bank.width, backbone=self.backbone.state_dict()
        )
        warnings = refuse_other_run(saved, self.state_dict(), self.dataset)
        load_rows(self.head, saved)
        for name, owner in self.stateful.items():
            with saved.loading(name):
                owner.load_state_dict(saved.state_dict(name))
        self.evaluator.load_state_dict(saved.last_threshold.model_dump())
        self.checkpoints.newest = saved.step
        self.step = saved.step
        if self.step >= self.total_steps:
            warnings.append(
                f"nothing is left to train: this run ends at step {self.total_steps}; raise Global.epochs or "
                "Global.max_steps"
            )
        for line in warnings:
            warn_on_rank_0(line)
        get_logger().info(f"resuming at step {saved.step} from {saved.path}")
