"""Run a training: `train` is the loop, `train_step` shows the order of operations.

    data.loader -> backbone (data parallel) -> head (classes spread over the ranks) -> backward -> verdict -> update

All else that a run does is a part of it (plsc/training/parts): it adds a loss, learns of a step, or works
between steps. The learning rates are functions of the step, the order of the data of (seed, epoch), dropout
of (seed, step, layer, sample), so a resumed run needs nothing but step and states. plsc/training/build.py
makes a Trainer from a config.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.profiler import RecordEvent
from pydantic import NonNegativeInt

from plsc import distributed
from plsc.checkpoint import store
from plsc.config import Config
from plsc.data.dataset import Dataset
from plsc.data.loader import Batch, Loader
from plsc.distributed.device import to_device
from plsc.heads.softmax import SoftmaxHead
from plsc.training.finetune import refuse_last_step
from plsc.training.network import Network
from plsc.training.optim import BackboneOptimizer, sizes_of
from plsc.training.parts.part import Part, State
from plsc.training.resume import (
    load_rows,
    refuse_other_classes,
    refuse_other_frozen,
    refuse_other_run,
    warn_of_changed_keys,
)
from plsc.training.step import LeftOut, StepResult, TakenStep, Verdict
from plsc.training.verdict import agree
from plsc.utils.logging import get_logger, warn
from plsc.utils.metrics import Metrics


class Rates(NamedTuple):
    """The learning rates of a step."""

    backbone: float
    head: float


class Counted(State):
    """What a run goes on to count."""

    since_good: NonNegativeInt


class Trainer:
    """Runs one training. Every rank makes one, after `distributed.init`; plsc.training.build.build_trainer
    does from a config.

    Args:
        cfg: of the run, from which the following are built unless the caller replaces them.
        dataset: to train on. loader: its batches.
        network: the backbone. head: class centres and loss. optimizer: of the backbone.
        rates: step -> the learning rates. parts: the features of the run, in the order in which they are called.

    Attributes: `step`, how many are done; `total_steps`, that the run ends at; `since_good`, those since the last one that counted; `first_step`, of the run, not of a
    process that resumes it; `resumed`, whether a checkpoint was taken over; `stopped`, the name of the signal
    that the run was asked to stop by; `metrics`, rank 0's, while training; `seconds`, of training and
    evaluation in this process.
    """

    def __init__(
        self,
        cfg: Config,
        dataset: Dataset,
        loader: Loader,
        network: Network,
        head: SoftmaxHead,
        optimizer: BackboneOptimizer,
        rates: Callable[[int], Rates],
        parts: Iterable[Part],
    ):
        self.cfg = cfg
        self.dataset = dataset
        self.loader = loader
        self.network = network
        self.head = head
        self.optimizer = optimizer
        self.rates = rates
        self.parts = list(parts)
        self.steps_per_epoch = loader.steps_per_epoch
        self.total_steps = cfg.Global.total_steps(self.steps_per_epoch)
        self.step = 0
        self.since_good = 0
        self.first_step = 0
        self.resumed = False
        self.stopped: str | None = None
        self.metrics: Metrics | None = None
        self.seconds = 0.0

    def part(self, name: str) -> Any:
        """Find a part by its name."""
        return next(part for part in self.parts if part.name == name)

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

    # -- the loop
    # -----------------------------------------------------------------------------------------------------------

    def train(self, metrics: Metrics | None) -> None:
        """Train to the end of the run, or to a signal after which all ranks save. metrics: rank 0's, None
        on the others."""
        self.metrics = metrics
        self.loader.probe()
        self.head.bank.write_initial_rows()
        distributed.barrier()  # disks are not equally fast, and a collective would not wait so long
        self.network.start()
        try:
            for part in self.parts:
                part.start(self)
            began = time.monotonic()
            while self.step < self.total_steps and not self.stopped:
                self._train_epoch()
            for part in self.parts:
                part.end(self)
            self.seconds = time.monotonic() - began
        finally:
            for part in self.parts:
                part.close()

    def _train_epoch(self) -> None:
        """Train the remaining steps of the epoch, up to the run's end; fewer where a part goes back to an
        older step."""
        with contextlib.closing(self.loader.from_step(self.step)) as batches:
            for batch in batches:
                number = self.step + 1
                # The result has no name here: the next step needs the memory of this one.
                self._between(self.train_step(batch))
                if self.step != number or self.step == self.total_steps or self.stopped:
                    return

    def _between(self, result: StepResult) -> None:
        """Let the parts do what is due after a step, until one goes back to an older step."""
        for part in self.parts:
            part.between(self, result)
            if self.step != result.number:
                return

    def train_step(self, batch: Batch) -> StepResult:
        """Take one optimizer step on this rank's samples. Every rank calls it.

        Loss or gradients that are not finite make it a step that changes nothing. UserError for a label that
        is no class.
        """
        with RecordEvent("check"):
            undo = self.network.remember(), self.head.remember()
        emb_BD = self.network.forward(batch.images, self.step)
        label_B, index_B = to_device(np.stack([batch.labels, batch.indices]))
        out = self.head(emb_BD, label_B, self.step, counts=batch.counts, check=False)
        losses = {part.name: part.loss(batch, emb_BD) for part in self.parts}
        losses = {name: loss for name, loss in losses.items() if loss is not None}
        sum(losses.values(), start=out.loss).backward()  # up to the embeddings, and the centres
        self.network.backward(emb_BD.grad)
        rates = self.rates(self.step)
        taken = TakenStep(batch, index_B, rates.backbone, emb_BD, out, losses)
        verdict = self.agree(taken)
        left_out = None
        if verdict.counts:
            self.since_good = 0
            with RecordEvent("optimizer"):
                self.optimizer.step(rates.backbone)
                self.head.step(rates.head, self.step)
                for part in self.parts:
                    part.update(self, taken)
        else:
            self.since_good += 1
            for restore in undo:
                restore()
            left_out = self._explain(taken, verdict)
        self.optimizer.clear_grad()
        self.step += 1
        return StepResult(taken, verdict, left_out)

    def agree(self, taken: TakenStep) -> Verdict:
        """Let all ranks learn of a step what each of them must know. Every rank calls it, after the backward
        pass.

        Collectives: one all_gather of a few numbers.
        """
        with RecordEvent("check"):
            flags = {name: number for part in self.parts for name, number in part.flags().items()}
            return agree(self.backbone, self.head, taken, flags)

    def _explain(self, taken: TakenStep, verdict: Verdict) -> LeftOut:
        """Say why a step does not count. UserError for a label that is no class."""
        if verdict.stray:
            self.head.refuse_labels(to_device(taken.batch.labels))
        for part in self.parts:
            if left_out := part.explain(self, taken, verdict):
                return left_out
        return LeftOut()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Let all parts know that the work inside is no step."""
        with contextlib.ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.pause())
            yield

    def stop(self, signal: str) -> None:
        """End the training after this step, because of the signal of this name."""
        self.stopped = signal

    # -- checkpoints
    # --------------------------------------------------------------------------------------------------------

    @property
    def stateful(self) -> dict[str, Any]:
        """All that has a state in a checkpoint, by name; the rows of the class centres are written apart."""
        core = {"run": self, "backbone": self.network, "optimizer": self.optimizer, "head": self.head}
        margin = {"margin": self.head.margin} if self.head.margin else {}
        return {**core, **margin, **{part.name: part for part in self.parts if part.name}}

    def state_dict(self) -> dict[str, Any]:
        """Return what a run must have in common with the one that it goes on with, and the steps since the
        last good one."""
        return {
            "seed": self.cfg.Global.seed,
            "global_batch": self.loader.global_batch,
            "steps_per_epoch": self.steps_per_epoch,
            "optimizer": self.optimizer.name,
            "head": self.cfg.Head.kind,
            "head_optimizer": type(self.head.bank.rule).__name__,
            "since_good": self.since_good,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the count of steps; `refuse_other_run` has compared the rest."""
        self.since_good = Counted.model_validate(state).since_good

    def resume(self, path: str | Path) -> None:
        """Take over a checkpoint of any world size: all states, and its step. UserError if it is of another
        problem."""
        saved = store.Checkpoint.open(path, verify=False)  # verified when it was searched for
        saved.require("run", "seed", "steps_per_epoch", "global_batch")
        owners = self.stateful
        sizes = self.head.shard.num_classes, self.head.bank.width
        saved.check_matches(*sizes, backbone=self.backbone.state_dict())
        refuse_other_run(saved, self.state_dict(), owners.keys(), self.dataset, distributed.world_size())
        refuse_other_frozen(self.cfg, saved, self.backbone)
        load_rows(self.head, saved)
        for name, owner in owners.items():
            with saved.loading(name):
                owner.load_state_dict(saved.state_dict(name))
        refuse_other_classes(saved, self.dataset)
        self.resumed = True
        get_logger().info(f"resuming at step {saved.step} from {saved.path}")
        warn_of_changed_keys(self.cfg, saved)
        self.step = saved.step
        if self.metrics:
            self.metrics.rewind(self.step)
        if self.step >= self.total_steps:
            rule = f"this run ends at step {self.total_steps}"
            warn(f"nothing is left to train: {rule}; raise Global.epochs or Global.max_steps")

    def begin_at(self, step: int, states: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> None:
        """Begin at this step of the schedule and of the data's order, with these states of parts. UserError
        if no step is left."""
        refuse_last_step(step, self.total_steps)
        self.step = step
        self.first_step = step
        for name, state in states.items():
            self.stateful[name].load_state_dict(state)

    def checkpoint_bytes(self) -> int:
        """Compute the bytes of a checkpoint."""
        bank = self.head.bank
        trained, frozen = sizes_of(self.optimizer, self.backbone)
        copies = 2 if self.cfg.Global.ema else 1
        network = 4 * (copies * (trained + frozen) + self.optimizer.state_size)
        return network + bank.itemsize * bank.numbers * self.head.shard.num_classes
