"""Training: `Trainer` wires a config's parts together, `train` loops, and `train_step` is the order of operations.

    data.loader -> backbone (data parallel) -> head (classes spread over the ranks) -> backward -> optimizer and bank

Evaluation, checkpoints and log lines happen between steps, in `_after_step`. The learning rate is a function of the step, the
order of the data of (seed, epoch), and Paddle's own random numbers (dropout) of (seed, step, rank), so step and parameters are
all that a resumed run has to be given.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import paddle

from plsc import checkpoint, distributed, log, optim
from plsc.config import Config
from plsc.data.dataset import IdentificationSet, check_arrays, class_names
from plsc.data.folder import nested_hint
from plsc.data.loader import Loader
from plsc.divergence import DivergedError, Divergence, finite_arrays
from plsc.embed import check_output, to_input
from plsc.errors import UserError
from plsc.guard import Guard
from plsc.heads import build_head
from plsc.heads.softmax import HeadOutput
from plsc.restore import build_backbone, changed_keys, load_backbone, load_head, refuse_other_run
from plsc.rollback import FACTOR, roll_back
from plsc.sharding import split
from plsc.space import check_room, saves_ahead
from plsc.tensors import tensor_of
from plsc.tester import Tester
from plsc.timing import timer

LAST_SAVE_PAUSES = (10, 60, 300)  # seconds before the save of the last step is tried again
MOST_FAILED_SAVES = 3  # in a row: what is trained on without a checkpoint is lost when the run ends


class Trainer(Tester):
    """One run. Every rank makes one, after `distributed.init`.

    Args:
        cfg: the config.
        backbone: a Layer to train instead of Model.name's.
        make_optimizer: backbone -> Paddle optimizer, instead of the Optimizer section's.
    """

    def __init__(
        self,
        cfg: Config,
        backbone: paddle.nn.Layer | None = None,
        make_optimizer: Callable[[paddle.nn.Layer], paddle.optimizer.Optimizer] | None = None,
    ):
        train = cfg.DataLoader.Train
        self.rank, self.world_size = distributed.rank(), distributed.world_size()
        self.dataset = cfg.build_dataset("DataLoader.Train.dataset")
        check_arrays(self.dataset)
        if train.num_classes not in (None, self.dataset.num_classes):
            raise UserError(
                f"DataLoader.Train.num_classes: the data has {self.dataset.num_classes} classes (got {train.num_classes}); "
                "leave the key out to take what the data has"
            )
        if self.dataset.num_classes < 2:
            hint = nested_hint(self.dataset)
            raise UserError(
                "DataLoader.Train.dataset: has 1 class, and nothing to tell it from; it needs at least 2"
                + f"; {hint}" * bool(hint)
            )
        super().__init__(
            cfg,
            backbone or build_backbone(cfg, self.dataset.image_shape),
            self.dataset.contract,
            self.dataset.num_classes,
            getattr(self.dataset, "identities", None),
            class_names(self.dataset),
        )
        self.loader = Loader(
            self.dataset,
            train.batch_size,
            self.rank,
            self.world_size,
            cfg.Global.seed,
            train.num_workers,
            train.max_corrupt,
        )
        sizes = self.dataset.num_classes, cfg.Model.embedding_size
        self.head = build_head(cfg.Head, cfg.Optimizer, *sizes, cfg.Global.seed, cfg.Global.output_dir)
        make = make_optimizer or partial(optim.build_optimizer, cfg.Optimizer)
        self.optimizer = make(self.backbone)
        if make_optimizer:
            optim.check_optimizer(self.optimizer, cfg.LRScheduler.learning_rate)
        self.steps_per_epoch = self.loader.steps_per_epoch
        self.total_steps = cfg.Global.max_steps or cfg.Global.epochs * self.steps_per_epoch
        self.schedule = optim.build_schedule(cfg.LRScheduler, self.steps_per_epoch, self.total_steps)
        self.divergence = Divergence(
            self.backbone,
            self.head,
            f"{cfg.Global.output_dir}/diverged",
            cfg.Global.max_skipped,
            self.dataset.name,
        )
        self.step = 0
        self._replaced = 0  # corrupt images of this rank in the epoch that is resumed
        self._saved, self._failed_saves = 0, 0  # step of the newest checkpoint; saves that failed since
        self.threshold: float | None = None  # of the last main evaluation
        self.best: dict | None = None  # {"step", "set", "metric", "value"} of the best main evaluation so far
        self.seconds = 0.0  # of training and evaluation, this process
        self.guard = Guard()  # knows of signals; whoever has a real one sets it

    @property
    def epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    @property
    def global_batch(self) -> int:
        return self.cfg.DataLoader.Train.batch_size * self.world_size

    # -- the loop -----------------------------------------------------------------------------------------------------------

    def train(self, metrics: log.Metrics | None) -> None:
        """Train from `self.step` to the end, or until a signal stops the run (`self.guard.stopped` says so) and all ranks
        have saved that step; `metrics` is rank 0's, None on the others."""
        self.metrics = metrics
        self.loader.probe()
        if self.step < self.total_steps:
            self._check_room()
        self.head.bank.write_initial_rows()
        distributed.barrier()  # disks are not equally fast, and a collective would not wait so long
        self.model = distributed.data_parallel(self.backbone)
        self.progress = log.Progress(
            self.total_steps,
            self.steps_per_epoch,
            self.epochs,
            self.global_batch,
            self.cfg.Global.log_every,
            self.step,
            data=self._data_so_far,
            advice=self.loader.advice,
        )
        began = time.monotonic()
        if self.cfg.Global.profile:
            timer.start(self.step, distributed.finish)
        self.guard.beat(self.step)
        try:
            while self.step < self.total_steps and not self.guard.stopped:
                try:
                    self._train_epoch()
                except DivergedError as error:
                    with self.progress.pause():
                        self.guard.rest()
                        roll_back(self, error)
                    self.guard.beat(self.step)
        finally:
            self.guard.rest()
            self.progress.close()
            timer.stop()
            self.loader.close()
            self.seconds = time.monotonic() - began

    def _check_room(self) -> None:
        """UserError if the disk has no room for a checkpoint, a warning if it has for too few. Every rank calls it."""
        distributed.barrier()  # all banks have their space now
        bank, numbers = self.head.bank, sum(tensor.size for tensor in self.backbone.state_dict().values())
        if isinstance(self.optimizer, paddle.optimizer.Momentum):
            numbers += sum(p.size for p in self.backbone.parameters() if not p.stop_gradient)
        need = 4 * numbers + 2 * bank.itemsize * self.head.shard.num_classes * (bank.width + bank.bias)
        keep, periods = self.cfg.Checkpoint.keep, (self.steps_per_epoch, self.cfg.Checkpoint.every_steps)
        saves = saves_ahead(self.step, self.total_steps, *periods, most=keep + 1)
        what = "a checkpoint beside the class centres" if self.cfg.Head.bank == "disk" else "a checkpoint"
        warning = check_room(Path(self.checkpoints), need, saves, keep, what)
        if warning and self.rank == 0:
            log.get_logger().warning(warning)

    def _train_epoch(self) -> None:
        """What is left of the epoch, up to the run's end."""
        epoch, done = divmod(self.step, self.steps_per_epoch)
        replaced, self._replaced = self._replaced, 0
        with contextlib.closing(self.loader.epoch(epoch, done, replaced)) as batches:
            for batch in batches:
                learning_rate = self.schedule(self.step) * FACTOR**self.divergence.rollbacks
                out = self.train_step(*batch, learning_rate)
                self._after_step(out, learning_rate)
                if self.step == self.total_steps or self._stops(epoch + 1):
                    break

    def _stops(self, epoch: int) -> bool:
        """Whether some rank was asked to stop; if so, all of them have saved this step. UserError if they could not."""
        self.guard.beat(self.step)
        if distributed.every(not self.guard.signal):
            return False
        name = signal.Signals(max(distributed.gather_counts(self.guard.signal))).name
        if self._saved != self.step:
            with self._pause():
                self.save(epoch)
        if self._saved != self.step:
            raise UserError(
                f"stopped on {name} at step {self.step}, which could not be saved (see above); make room, and resume from the "
                "checkpoint before it"
            )
        self.guard.stopped = name
        return True

    def train_step(
        self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray, learning_rate: float
    ) -> HeadOutput:
        """One optimizer step on this rank's uint8 images [B, C, H, W], int64 labels and indices [B]. Every rank calls it.

        Loss or gradients that are not finite make it a step that changes nothing; DivergedError after too many in a row.
        """
        with timer.part("check"):
            self.divergence.remember()
        emb_BD = self._forward(self.model, images)
        out = self.head(emb_BD, tensor_of(labels), self.step)
        if self.divergence.backward(out, emb_BD):
            self.optimizer.set_lr(learning_rate)
            with timer.part("optimizer"):
                self.optimizer.step()
            self.head.step(learning_rate, self.step)
        else:
            again = partial(self._forward, self.backbone, images)
            self.divergence.skip(self.step + 1, learning_rate, images, labels, indices, again)
        self.optimizer.clear_grad()
        self.step += 1
        return out

    def _forward(self, model: paddle.nn.Layer, images: np.ndarray) -> paddle.Tensor:
        paddle.seed(hash((self.cfg.Global.seed, self.step, self.rank)) & 0x7FFFFFFF)
        model.train()
        with timer.part("forward"):
            out = model(to_input(images, self.dataset.contract))
        check_output(out, len(images), self.cfg.Model.embedding_size)
        return out

    def _replaced_so_far(self) -> list[int]:
        """Corrupt images replaced in this epoch, of each rank; all ranks call it together. At its end: none of the next."""
        at_end = self.step % self.steps_per_epoch == 0
        return distributed.gather_counts(0 if at_end else self.loader.replaced)

    def _data_so_far(self) -> tuple[float, int]:
        """Of all ranks, which call it together: the longest wait for batches until now, seconds; corrupt images replaced in
        this epoch."""
        milliseconds = distributed.gather_counts(int(1e3 * self.loader.wait_seconds))
        return max(milliseconds) / 1e3, sum(distributed.gather_counts(self.loader.replaced))

    def _after_step(self, out: HeadOutput, learning_rate: float) -> None:
        cfg, step = self.cfg, self.step
        epoch, end = -(-step // self.steps_per_epoch), step == self.total_steps
        end_of_epoch = step % self.steps_per_epoch == 0
        row = self.progress.update(step, epoch, out.loss, learning_rate, accuracy=out.accuracy)
        if row and timer.on:
            row["profile"] = timer.take(step)
        if row and self.metrics:
            self.metrics.write(
                {**row, "skipped": self.divergence.skipped} if self.divergence.skipped else row
            )
        of_epoch = end_of_epoch and cfg.Global.eval_every and epoch % cfg.Global.eval_every == 0
        every = cfg.Global.eval_every_steps
        due = of_epoch or (every and step % every == 0)
        best = self.best
        if self.sets and (due or end):
            with self._pause():
                self.evaluate(epoch)
                self.threshold = self.row.get("threshold")
                best = self._best(best)
        every = cfg.Checkpoint.every_steps
        if end or end_of_epoch or best is not self.best or (every and step % every == 0):
            with self._pause():
                self.save(epoch, best)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Around what is no step, and may take longer than one."""
        with self.progress.pause(), timer.pause():
            self.guard.rest()
            yield

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> str:
        return f"{self.cfg.Global.output_dir}/checkpoints"

    def _best(self, before: dict | None) -> dict | None:
        """The better of `before` and the main set's evaluation at this step; of equal ones the first."""
        metric = "rank1" if isinstance(self.sets[self.main], IdentificationSet) else "accuracy"
        here = {"step": self.step, "set": self.main, "metric": metric, "value": self.row[metric]}
        if here["value"] is None:
            return before
        # A run that was resumed with another main set starts anew: the two cannot be compared.
        comparable = before and (before.get("set"), before.get("metric")) == (self.main, metric)
        return before if comparable and here["value"] <= before.get("value", -1) else here

    def save(self, epoch: int, best: dict | None = None) -> None:
        """Write a checkpoint, all ranks together, and drop the oldest but the best. One that cannot be written does not end
        the run. `best` is what `self.best` becomes with it, None: what it is."""
        best = best or self.best
        backbone, head = _arrays(self.backbone.state_dict()), self.head.bank.state()
        weights = [*backbone.values(), *(head[name] for name in head if "momentum" not in name)]
        if not distributed.every(finite_arrays(weights)):
            log.get_logger().error(f"checkpoint of step {self.step} not written: its weights are not finite")
            return
        last = self.step == self.total_steps
        try:
            write = partial(
                checkpoint.save,
                self.checkpoints,
                self.step,
                epoch=epoch,
                rank=self.rank,
                world_size=self.world_size,
                backbone=backbone,
                optimizer=optim.optimizer_arrays(self.optimizer, self.backbone),
                head=head,
                shard=(self.head.shard.start, self.head.shard.stop),
                num_classes=self.head.shard.num_classes,
                state={
                    "seed": self.cfg.Global.seed,
                    "global_batch": self.global_batch,
                    "steps_per_epoch": self.steps_per_epoch,
                    "image_shape": list(self.dataset.image_shape),
                    "margin": self.head.margin.state() if self.head.margin else {},
                    "threshold": self.threshold,
                    **self._kinds(),
                    "replaced": self._replaced_so_far(),
                    "flip": self.cfg.DataLoader.Eval.flip,
                    "best": best,
                    **self.divergence.state(),
                },
                config_yaml=self.cfg.to_yaml(),
                contract=self.dataset.contract,
                classes=class_names(self.dataset) if self.rank == 0 else None,
                gather=distributed.gather_objects,
            )
            path = checkpoint.save_patiently(write, LAST_SAVE_PAUSES if last else ())
        except checkpoint.SaveError as error:
            self._failed_saves += 1
            line = f"{error}; last good: {f'step {self._saved}' if self._saved else 'none'}"
            if last:
                raise checkpoint.SaveError(f"{line}; it was the last step: make room, and resume") from error
            if self._failed_saves == MOST_FAILED_SAVES:
                raise checkpoint.SaveError(f"{line}; the third in a row: make room, and resume") from error
            log.get_logger().error(f"{line}; training goes on")
            return
        self._failed_saves, self._saved, self.best = 0, self.step, best
        if self.rank == 0:
            checkpoint.prune(self.checkpoints, self.cfg.Checkpoint.keep, [best["step"]] if best else [])
        distributed.barrier()  # the next collective of the others must not wait for rank 0's disk
        log.get_logger().info(f"checkpoint {path}")

    def resume(self, path) -> None:
        """Take over a checkpoint of any world size: weights, momentum, step. UserError if it is of another problem."""
        saved = checkpoint.Checkpoint.open(path, verify=False)  # whoever found it has verified it
        saved.require("state", "seed", "steps_per_epoch", "global_batch")
        saved.check_matches(
            self.head.shard.num_classes,
            self.head.bank.width,
            backbone=self.backbone.state_dict(),
            head=self.head.bank.state(),
        )
        kinds = {**self._kinds(), "preparation of pictures": self.dataset.contract}
        order = {"seed": self.cfg.Global.seed, "steps_per_epoch": self.steps_per_epoch}
        refuse_other_run(saved, kinds, order, self.global_batch, self.world_size, self.dataset)
        load_backbone(self.backbone, saved)
        optim.load_optimizer(self.optimizer, self.backbone, saved.optimizer())
        load_head(self.head, saved)
        self.step, self.best, self._saved = saved.step, saved.state.get("best"), saved.step
        self.divergence.load_state(saved.state)
        self.threshold = saved.state.get("threshold")
        self._replaced = self._of_this_rank(saved.state.get("replaced", [0]))
        log.get_logger().info(f"resuming at step {self.step} from {saved.path}")
        if changed := changed_keys(self.cfg, saved):
            log.warn(f"this run has other keys than the checkpoint's: {', '.join(changed)}")
        if self.step >= self.total_steps:
            log.warn(
                f"nothing is left to train: this run ends at step {self.total_steps}; raise Global.epochs or Global.max_steps"
            )

    def _kinds(self) -> dict[str, str]:
        """What has no shape by which a checkpoint of another could be told. A head is the same spread over the ranks or not."""
        return {
            "optimizer": type(self.optimizer).__name__,
            "head": self.cfg.Head.kind,
        }

    def _of_this_rank(self, counts: list[int]) -> int:
        """A count of each rank of the run before; with another number of ranks, their sum as evenly as it goes."""
        if len(counts) != self.world_size:
            counts = [stop - start for start, stop in split(sum(counts), self.world_size)]
        return counts[self.rank]


def _arrays(tensors: dict) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
