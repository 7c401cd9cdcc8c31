"""Run a training: `train` is the loop, `train_step` shows the order of operations.

    data.loader -> backbone (data parallel) -> head (classes spread over the ranks) -> backward -> optimizer and bank

Evaluation, checkpoints and log lines happen between steps, in `_after_step`. The learning rate is a function
of the step, the order of the data of (seed, epoch), dropout of (seed, step,
layer, sample), so a resumed run needs nothing but step and parameters. plsc/training/build.py makes a Trainer from a
config.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from plsc import distributed
from plsc.checkpoint import store
from plsc.checkpoint.train_state import Best, TrainState
from plsc.config import Config
from plsc.data.dataset import Dataset, class_names
from plsc.data.loader import Batch, Loader
from plsc.distributed.guard import Guard
from plsc.errors import UserError
from plsc.heads.softmax import HeadOutput, SoftmaxHead
from plsc.training import optim
from plsc.training.evaluator import Evaluator
from plsc.training.finetune import refuse_last_step
from plsc.training.flags import Flags
from plsc.training.network import Network
from plsc.training.parts.divergence import DivergedError, NonFiniteGuard, Outcome, finite_arrays, remedy
from plsc.training.parts.dump import DumpWriter, find_cause
from plsc.training.parts.ema import load_ema
from plsc.training.parts.loss_scale import LossScaler
from plsc.training.parts.part import Part, TakenStep
from plsc.training.parts.rollback import FACTOR, go_back
from plsc.training.resume import (
    changed_keys,
    load_backbone,
    load_head,
    refuse_other_frozen,
    refuse_other_run,
)
from plsc.utils.calibration import Calibration
from plsc.utils.device import to_device
from plsc.utils.disk import check_space, saves_ahead
from plsc.utils.logging import get_logger, warn
from plsc.utils.metrics import Metrics
from plsc.utils.progress import Progress
from plsc.utils.sharding import split
from plsc.utils.timing import timer

LAST_SAVE_PAUSES = (10, 60, 300)  # seconds before the save of the last step is tried again
MOST_FAILED_SAVES = 3  # in a row; all steps since the last checkpoint are lost when the run ends


class Trainer:
    """Runs one training. Every rank makes one, after `distributed.init`; plsc.training.build.build_trainer
    makes its parts from a config.

    Args:
        cfg: the config of the run, from which the following are built unless the caller replaces them.
        dataset: to train on. loader: its batches.
        backbone: the bare layer. network: runs it in a step. head: class centres and loss.
        optimizer: of the backbone.
        evaluator: of the backbone, between steps.
        nonfinite: checks whether a step counts. dump: writes the batches of steps that do not.
        scaler: of the backbone's gradients in float16, the one that network and nonfinite have; None: there is
            none.
        signals: notes signals that ask the run to stop; None: there are none.
        parts: the other features of the run, in their order.

    Attributes: `step`, how many are done; `best`, the best main evaluation so far, None without one;
    `threshold`, of the last one; `rollbacks`, how often the run went back to an older checkpoint; `seconds`,
    of training and evaluation in this process.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        dataset: Dataset,
        loader: Loader,
        backbone: paddle.nn.Layer,
        network: Network,
        head: SoftmaxHead,
        optimizer: optim.BackboneOptimizer,
        evaluator: Evaluator,
        nonfinite: NonFiniteGuard,
        dump: DumpWriter,
        scaler: LossScaler | None = None,
        signals: Guard | None = None,
        parts: Sequence[Part] = (),
    ):
        self.cfg = cfg
        self.rank = distributed.rank()
        self.world_size = distributed.world_size()
        self.dataset = dataset
        self.loader = loader
        self.backbone = backbone
        self.network = network
        self.head = head
        self.optimizer = optimizer
        self.evaluator = evaluator
        self.nonfinite = nonfinite
        self.dump = dump
        self.scaler = scaler
        self.signals = signals or Guard()
        self.parts = list(parts)
        self.steps_per_epoch = loader.steps_per_epoch
        self.total_steps = cfg.Global.total_steps(self.steps_per_epoch)
        self.head_lr_scale = 0.0 if cfg.Teacher.freezes_centres else cfg.Optimizer.of_head.lr_scale
        self.schedule = optim.build_schedule(cfg.LRScheduler, self.steps_per_epoch, self.total_steps)
        self.step = 0
        self._first_step = 0  # of the run, not of a process that resumes it
        self.best: Best | None = None
        self.threshold: float | None = None
        self.calibration: Calibration | None = None
        self.rollbacks = 0
        self.seconds = 0.0
        self.progress: Progress | None = None  # while training
        self._metrics: Metrics | None = None  # rank 0's, while training
        self._signal = 0  # the largest number of a signal that any rank was asked by to stop
        self._data = (0.0, 0)  # longest wait of a rank for batches in seconds, images replaced in this epoch
        self._replaced = 0  # corrupt images of this rank in the epoch that is resumed
        self.resumed = False
        self._saved = 0  # step of the newest checkpoint
        self._failed_saves = 0  # since that

    @property
    def epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    # -- the loop -----------------------------------------------------------------------------------------------------------

    def train(self, metrics: Metrics | None) -> None:
        """Train from `self.step` to the end, or until a signal stops the run (`signals.stopped` says so) and
        all ranks have saved that step; `metrics` is rank 0's, None on the others."""
        self._metrics = metrics
        self.loader.probe()
        if self.step < self.total_steps:
            self._check_space()
        self.head.bank.write_initial_rows()
        distributed.barrier()  # disks are not equally fast, and a collective would not wait so long
        self.network.start()
        for part in self.parts:
            part.start(self)
        self.progress = Progress(
            self.total_steps,
            self.steps_per_epoch,
            self.epochs,
            self.loader.global_batch,
            self.cfg.Global.log_every,
            self.step,
            data=lambda: self._data,
            extra=self._row,
            advice=self.loader.advice,
        )
        began = time.monotonic()
        if self.cfg.Global.profile:
            timer.start(self.step, distributed.finish)
        self.signals.step_started(self.step)
        try:
            while self.step < self.total_steps and not self.signals.stopped:
                try:
                    self._train_epoch()
                except DivergedError as error:
                    with self.progress.pause():
                        self.signals.allow_pause()
                        self._roll_back(error)
                    self.signals.step_started(self.step)
        finally:
            self.signals.allow_pause()
            self.progress.close()
            timer.stop()
            self.loader.close()
            self.seconds = time.monotonic() - began

    def _check_space(self) -> None:
        """Refuse by UserError a disk without space for a checkpoint, and warn if there is space for too few.
        Every rank calls it."""
        distributed.barrier()  # all banks have their space now
        bank, numbers = self.head.bank, sum(tensor.size for tensor in self.backbone.state_dict().values())
        numbers *= 2 if self._part("ema") else 1
        numbers += self.optimizer.state_size
        need = 4 * numbers + bank.itemsize * bank.numbers * self.head.shard.num_classes
        keep, periods = self.cfg.Checkpoint.keep, (self.steps_per_epoch, self.cfg.Checkpoint.every_steps)
        saves = saves_ahead(self.step, self.total_steps, *periods, most=keep + 1)
        what = "a checkpoint beside the class centres" if self.cfg.Head.bank == "disk" else "a checkpoint"
        check = partial(check_space, Path(self.checkpoints), need, saves, keep, what)
        warning = distributed.run_on_rank_0(check)
        if warning and self.rank == 0:
            get_logger().warning(warning)

    def _train_epoch(self) -> None:
        """Train the remaining steps of the epoch, up to the run's end."""
        epoch = self.step // self.steps_per_epoch
        replaced = self._replaced
        self._replaced = 0
        with contextlib.closing(self.loader.from_step(self.step, replaced)) as batches:
            for batch in batches:
                self.train_step(batch)
                self._after_step()
                if self.step == self.total_steps or self._stops(epoch + 1):
                    break

    def _stops(self, epoch: int) -> bool:
        """Say whether some rank was asked to stop, and save this step on all ranks if so. UserError if they
        cannot."""
        self.signals.step_started(self.step)
        if not self._signal:
            return False
        name = signal.Signals(self._signal).name
        if self._saved != self.step:
            with self._pause():
                self.save(epoch)
        if self._saved != self.step:
            raise UserError(
                f"stopped on {name} at step {self.step}, which could not be saved (see above); make space, and resume from the "
                "checkpoint before it"
            )
        self.signals.stop(name)
        return True

    def train_step(self, batch: Batch) -> HeadOutput:
        """Take one optimizer step on this rank's samples. Every rank calls it.

        Loss or gradients that are not finite make it a step that changes nothing; DivergedError after too
        many in a row. Likewise gradients that overflow only by their scale, which is then halved.
        """
        with timer.part("check"):
            undo = self.network.remember(), self.head.remember()
        emb_BD = self.network.forward(batch.images, self.step)
        out = self.head(emb_BD, to_device(batch.labels), self.step, counts=batch.counts, check=False)
        losses = {part.name: part.loss(batch, emb_BD) for part in self.parts}
        losses = {name: loss for name, loss in losses.items() if loss is not None}
        sum(losses.values(), start=out.loss).backward()  # up to the embeddings
        self.network.backward(emb_BD.grad)
        learning_rate = self.schedule(self.step) * FACTOR**self.rollbacks
        taken = TakenStep(batch, learning_rate, emb_BD, out, losses)
        flags = self.agree(taken)
        outcome = self.nonfinite.count(flags)
        if outcome is Outcome.GOOD:
            self._update(taken)
        else:
            for restore in undo:
                restore()
            self._report(outcome, taken)
        self.optimizer.clear_grad()
        self.step += 1
        self._log(taken, flags)
        return out

    def agree(self, taken: TakenStep) -> Flags:
        """Let all ranks learn of a step what each of them must know to count it. Every rank calls it, after the backward pass:
        the one place in a step where the host waits for the device. Collectives: one all_gather of a few numbers."""
        data = self.loader.wait_seconds, self.loader.replaced
        with timer.part("check"):
            flags = self.nonfinite.examine(taken.out, taken.emb_BD, self.signals.signal, data)
        self._signal = max(self._signal, flags.signal)
        return flags

    def _update(self, taken: TakenStep) -> None:
        """Update all that a step changes."""
        self.optimizer.set_lr(taken.learning_rate)
        with timer.part("optimizer"):
            self.optimizer.step()
        self.head.step(taken.learning_rate * self.head_lr_scale, self.step)
        for part in self.parts:
            part.update(self, taken)
        if self.scaler:
            self.scaler.grow()

    def _report(self, outcome: Outcome, taken: TakenStep) -> None:
        """Say why a step, whose forward pass is undone, does not count. Every rank calls it."""
        if outcome is Outcome.STRAY:
            self.head.refuse_labels(to_device(taken.batch.labels))
        elif outcome is Outcome.OVERFLOWED:
            self.scaler.shrink()
            get_logger().info(
                f"step {taken.number}: the backbone's gradients overflowed in float16; step left out, loss scale "
                f"{self.scaler.scale:g} from here on"
            )
        else:
            self._skip(taken)

    def _skip(self, step: TakenStep) -> None:
        """Log why a step diverged, and dump its batch. Every rank calls it.

        Raises: DivergedError, on every rank, at the step Global.max_skipped in a row.
        """
        own_backward = partial(
            self.network.own_backward, step.batch.images, step.batch.step, step.emb_BD.grad
        )
        cause = find_cause(step, self.backbone, self.head, self.dataset.name, own_backward)
        in_a_row = self.nonfinite.in_a_row
        most = self.cfg.Global.max_skipped
        rate = f"learning rate {step.learning_rate:.4g}"
        if self.rank == 0:
            get_logger().warning(
                f"step {step.number}: {cause.text} ({rate}); step skipped ({in_a_row} of {most} in a row)"
            )
        if cause.here:
            self.dump.write(step, cause.here)
        if in_a_row >= most:
            raise DivergedError(
                f"{cause.text} at step {step.number} ({rate}), step {in_a_row} in a row that had to be skipped; the checkpoints are "
                f"as they were, the batches in {self.dump.folder}: {remedy(step.number, self.nonfinite.since_good, step.learning_rate, self.optimizer.name)}",
                cause.text,
                step.number,
            )

    def _log(self, taken: TakenStep, flags: Flags) -> None:
        """Log a step, if a line is due."""
        if self.progress is None:
            return
        step, epoch = taken.number, -(-taken.number // self.steps_per_epoch)
        self._data = flags.waited, flags.replaced
        extra = {f"loss/{title}": loss for title, loss in taken.losses.items()}
        row = self.progress.update(
            step, epoch, flags.loss, taken.learning_rate, accuracy=flags.accuracy, **extra
        )
        if row and timer.on:
            row["profile"] = timer.take(step)
        if row and self._metrics:
            if self.nonfinite.skipped:
                row["skipped"] = self.nonfinite.skipped
            if self.scaler:
                row["loss_scale"] = self.scaler.scale
                row["overflows"] = self.scaler.overflows
            self._metrics.write(row)

    def _replaced_so_far(self) -> list[int]:
        """Count the corrupt images that each rank has replaced in this epoch; 0 at its end. All ranks call
        it."""
        at_end = self.step % self.steps_per_epoch == 0
        return distributed.gather_counts(0 if at_end else self.loader.replaced)

    def _after_step(self) -> None:
        """Evaluate, and write a checkpoint, if they are due."""
        cfg, step = self.cfg, self.step
        epoch, end = -(-step // self.steps_per_epoch), step == self.total_steps
        end_of_epoch = step % self.steps_per_epoch == 0
        of_epoch = end_of_epoch and cfg.Global.eval_every and epoch % cfg.Global.eval_every == 0
        every = cfg.Global.eval_every_steps
        evaluates = self.evaluator.sets and (of_epoch or end or (every and step % every == 0))
        every = cfg.Checkpoint.every_steps
        saves = end or end_of_epoch or (every and step % every == 0)
        if end:
            self._refuse_nothing_learned()
        best = self.best
        if evaluates:
            with self._pause():
                self.evaluator.evaluate(step, epoch, self._metrics)
                self.threshold = self.evaluator.row.get("threshold")
                self.calibration = self.evaluator.calibration
                best = self._best(best)
        saves = saves or best is not self.best
        if saves:
            with self._pause():
                self.save(epoch, best)
        if evaluates or saves:  # which may take long, so a signal does not wait for another step
            self._signal = max(self._signal, *distributed.gather_counts(self.signals.signal))

    def _refuse_nothing_learned(self) -> None:
        """Raise DivergedError, at the last step, if none of the run's steps counted."""
        steps = self.step - self._first_step
        if self.nonfinite.since_good < steps:
            return
        rate = self.schedule(self.step - 1) * FACTOR**self.rollbacks
        advice = remedy(self.step, self.nonfinite.since_good, rate, self.optimizer.name)
        if not self.nonfinite.in_a_row:
            advice = "float16's loss scale is found in the first steps: train more of them"
        what = "not one step was finite"
        raise DivergedError(
            f"all steps of the run, {steps:,}, had to be skipped, so it has learned nothing: {advice}",
            what,
            self.step,
        )

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Leave the work inside, which is no step, out of the measured times, and allow it to take longer."""
        with self.progress.pause(), timer.pause():
            self.signals.allow_pause()
            yield

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> str:
        return f"{self.cfg.Global.output_dir}/checkpoints"

    def _best(self, before: Best | None) -> Best | None:
        """Return the better of `before` and the main set's evaluation at this step; of equal ones the
        first."""
        title = self.evaluator.main
        metric = self.evaluator.metric
        value = self.evaluator.row[metric]
        if value is None:
            return before
        # A run that was resumed with another main set starts anew: the two cannot be compared.
        comparable = before and (before.set, before.metric) == (title, metric)
        if comparable and value <= before.value:
            return before
        return Best(step=self.step, set=title, metric=metric, value=value)

    def save(self, epoch: int, best: Best | None = None) -> None:
        """Write a checkpoint, all ranks together, and delete the oldest, but not the best. One that cannot be
        written does not end the run. best: the new `self.best`, if it is written; None: unchanged."""
        best = best or self.best
        backbone, head = _arrays(self.backbone.state_dict()), self.head.bank.state()
        averaged = self._part("ema")
        ema = averaged.arrays() if averaged else None
        of_head = [head[name] for name in self.head.bank.names]
        weights = [*backbone.values(), *(ema or {}).values(), *of_head]
        if not distributed.every(finite_arrays(weights)):
            line = f"checkpoint of step {self.step} not written: its weights are not finite"
            if self.step == self.total_steps:
                raise UserError(
                    f"{line}; it was the last step: lower LRScheduler.learning_rate or Optimizer.weight_decay"
                )
            get_logger().error(line)
            return
        content = store.Content(
            step=self.step,
            epoch=epoch,
            backbone=backbone,
            optimizer=optim.optimizer_arrays(self.optimizer, self.backbone),
            head=head,
            shard=self.head.shard,
            state=self._state(self._replaced_so_far(), best),
            config_yaml=self.cfg.to_yaml(),
            preprocessing=self.dataset.preprocessing.to_json(),
            classes=class_names(self.dataset) if self.rank == 0 else None,
            ema=ema,
        )
        ranks = store.Ranks(self.rank, self.world_size, distributed.gather_objects)
        last = self.step == self.total_steps
        try:
            write = partial(store.save, self.checkpoints, content, ranks)
            path = store.save_patiently(write, LAST_SAVE_PAUSES if last else ())
        except store.SaveError as error:
            self._failed_saves += 1
            line = f"{error}; last good: {f'step {self._saved}' if self._saved else 'none'}"
            if last:
                raise store.SaveError(f"{line}; it was the last step: make space, and resume") from error
            if self._failed_saves == MOST_FAILED_SAVES:
                raise store.SaveError(f"{line}; the third in a row: make space, and resume") from error
            get_logger().error(f"{line}; training goes on")
            return
        self._failed_saves = 0
        self._saved = self.step
        self.best = best
        if self.rank == 0:
            # A rollback takes the newest checkpoint before the last step that was not skipped.
            last_good = self.step - self.nonfinite.since_good
            way_back = last_good if self.cfg.Global.rollbacks > self.rollbacks else None
            protect = [best.step] if best else []
            store.prune(self.checkpoints, self.cfg.Checkpoint.keep, protect, way_back)
        distributed.barrier()  # so that no collective waits for a disk and times out
        get_logger().info(f"checkpoint {path}")

    def begin_at(self, step: int, rollbacks: int = 0) -> None:
        """Begin at this step of the schedule and of the data's order, after so many rollbacks, which lower the rate. Called before
        `train`. UserError if no step is left."""
        refuse_last_step(step, self.total_steps)
        self.step = step
        self._first_step = step
        self.rollbacks = rollbacks

    def resume(self, path) -> None:
        """Take over a checkpoint of any world size: weights, optimizers, step. UserError if it is of another
        problem."""
        saved = store.Checkpoint.open(path, verify=False)  # verified when it was searched for
        saved.require("state", "seed", "steps_per_epoch", "global_batch")
        saved.check_matches(
            self.head.shard.num_classes,
            self.head.bank.width,
            backbone=self.backbone.state_dict(),
        )
        refuse_other_run(saved, self._state([0], None), self.dataset, self.world_size)
        refuse_other_frozen(self.cfg, saved, self.backbone)
        load_head(self.head, saved)
        load_backbone(self.backbone, saved, averaged=False)
        load_ema(self._part("ema"), saved)
        optim.load_optimizer(self.optimizer, self.backbone, saved.optimizer())
        state = saved.state
        self.resumed = True
        self._saved = saved.step
        self.best = state.best
        self.threshold = state.threshold
        self.calibration = state.calibration
        self.rollbacks = state.rollbacks
        if per_set := self._part("per_set"):
            per_set.resume(state.sets)
        self.nonfinite.resume(state.skipped, state.in_a_row, state.since_good)
        if self.scaler:
            self.scaler.load(state)
        self._replaced = self._of_this_rank(state.replaced)
        get_logger().info(f"resuming at step {saved.step} from {saved.path}")
        if changed := changed_keys(self.cfg, saved):
            warn(f"this run has other keys than the checkpoint's: {', '.join(changed)}")
        self.step = saved.step
        if self.step >= self.total_steps:
            warn(
                f"nothing is left to train: this run ends at step {self.total_steps}; raise Global.epochs or Global.max_steps"
            )

    def _roll_back(self, error: DivergedError) -> None:
        """Go back to an older checkpoint after `error`, and on with a lower learning rate; the metrics go
        back, too. Every rank calls it.

        Raises: `error` where the run may not go back (again), or has no checkpoint for it; the checkpoints
        stay as they are.
        """
        count = self.rollbacks + 1
        if count > self.cfg.Global.rollbacks:
            raise error
        diverged = error.step
        last_good = diverged - self.nonfinite.since_good
        path = go_back(Path(self.checkpoints), last_good)
        if path is None:
            raise error
        self.optimizer.clear_grad()
        self.resume(path)
        self.rollbacks = count
        if self._metrics:
            self._metrics.rewind(self.step)
        if self.rank == 0:
            get_logger().warning(
                f"rolled back from step {diverged} to step {self.step}, learning rate times {FACTOR**count:g} from here on "
                f"(rollback {count} of {self.cfg.Global.rollbacks}): {error.what}"
            )

    def _state(self, replaced: list[int], best: Best | None) -> TrainState:
        """Return the state of the run for a checkpoint of this step. Every rank calls it."""
        others = {part.name: part.network for part in self.parts if hasattr(part, "network")}
        averaged, per_set = self._part("ema"), self._part("per_set")
        return TrainState(
            seed=self.cfg.Global.seed,
            global_batch=self.loader.global_batch,
            steps_per_epoch=self.steps_per_epoch,
            margin=self.head.margin.state() if self.head.margin else {},
            threshold=self.threshold,
            optimizer=self.optimizer.name,
            head_optimizer=type(self.head.bank.rule).__name__,
            updates=self.head.bank.updates,
            head=self.cfg.Head.kind,
            replaced=replaced,
            flip=self.cfg.DataLoader.Eval.flip,
            best=best,
            skipped=self.nonfinite.skipped,
            in_a_row=self.nonfinite.in_a_row,
            since_good=self.nonfinite.since_good,
            rollbacks=self.rollbacks,
            sets=per_set.state() if per_set else [],
            **({"calibration": self.calibration} if self.calibration else {}),
            **(self.scaler.state() if self.scaler else {}),
            **({"ema_steps": averaged.steps} if averaged else {}),
            **({"other_networks": others} if others else {}),
        )

    def _part(self, name: str) -> Any:
        """Find a part by its name; None if the run has none of it."""
        return next((part for part in self.parts if part.name == name), None)

    def _row(self) -> dict[str, float]:
        return {key: value for part in self.parts for key, value in part.row().items()}

    def _of_this_rank(self, counts: list[int]) -> int:
        """Pick this rank's count of those of the earlier run; after a change of the number of ranks, split
        their sum evenly."""
        if len(counts) != self.world_size:
            counts = [stop - start for start, stop in split(sum(counts), self.world_size)]
        return counts[self.rank]


def _arrays(tensors: dict) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
