"""Log the progress of a training run: a line at regular steps, and one at the end of each epoch."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, SupportsFloat

from plsc.utils.logging import get_logger
from plsc.utils.text import duration, number

WAIT_SHOWN = 0.1  # share of the time spent waiting for data above which it is shown


class Progress:
    """Logs a line each `every` steps. Steps and epochs count from 1; `start_step` steps were done before this
    run. A line:

        epoch 1/8 step 150/2000 loss 7.000 acc 0.1200 lr 0.1 1512 img/s eta 0:10:22

    and at the end of an epoch `epoch 1, time 20.4 sec`: the time of its steps in this run without pauses.

    The loss, the accuracy and the parts' losses are means over the samples since the line before, so that the
    last, smaller batch of an epoch counts for what it is. Steps that were skipped do not count.

    img/s: over the steps since the line before, without pauses. `data wait 34 %` comes before it if more than
    a tenth of that time was spent waiting for batches. eta: from the mean time of a step in this run, with
    pauses (evaluations, checkpoints), because they will come again.
    """

    def __init__(self, total_steps: int, steps_per_epoch: int, every: int, start_step: int = 0) -> None:
        self._total = total_steps
        self._per_epoch = steps_per_epoch
        self._every = every
        self._start_step = start_step
        self._waited = 0.0
        self._images = 0
        self._counted = 0  # samples in the means
        self._sums: dict[str, Any] = {}
        self._start = self._line_start = self._epoch_start = time.monotonic()

    def update(
        self,
        step: int,
        loss: float,
        lr: float,
        images: int,
        waited: float = 0.0,
        means: Mapping[str, Any] = MappingProxyType({}),
        taken: bool = True,
        **numbers: SupportsFloat,
    ) -> dict[str, Any] | None:
        """Report that `step` is done, on `images` images of all ranks.

        Logs each `every` steps and after the last one, and then returns the metrics row, else None. Numbers
        are converted to floats only then: no other step waits for a number of a GPU.

        Args:
            waited: seconds spent waiting for batches so far.
            means: further numbers that are averaged as the loss is: floats, or tensors of float64.
            taken: False for a step that was skipped.
            numbers: shown as they are in the step of the line.
        """
        self._images += images
        means = {"loss": loss, **means}
        if taken:
            self._counted += images
            for name, value in means.items():
                self._sums[name] = self._sums.get(name, 0.0) + value * images
        now = time.monotonic()
        epoch = -(-step // self._per_epoch)
        row = None
        if step % self._every == 0 or step == self._total:
            if self._counted:
                means = {name: float(total) / self._counted for name, total in self._sums.items()}
            read = {name: float(value) for name, value in {**means, **numbers}.items()}
            seconds = max(now - self._line_start, 1e-9)
            rate = self._images / seconds
            data_wait = min((waited - self._waited) / seconds, 1.0)
            left = (now - self._start) / (step - self._start_step) * (self._total - step)
            self._line_start = now
            self._waited = waited
            self._images = self._counted = 0
            self._sums = {}
            values = " ".join(
                f"{name.replace('accuracy', 'acc', 1)} {number(value)}" for name, value in read.items()
            )
            waiting = f" data wait {100 * data_wait:.0f} %" if data_wait > WAIT_SHOWN else ""
            get_logger().info(
                f"epoch {epoch}/{-(-self._total // self._per_epoch)} step {step}/{self._total} {values} "
                f"lr {lr:.4g}{waiting} {number(rate)} img/s eta {duration(left)}"
            )
            speed = {"lr": lr, "images_per_second": rate, "data_wait": data_wait}
            row = {"step": step, "epoch": epoch, "loss": read["loss"], **speed, **read}
        if step % self._per_epoch == 0:
            get_logger().info(f"epoch {epoch}, time {now - self._epoch_start:.1f} sec")
            self._epoch_start = now
        return row

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of the block (an evaluation, a checkpoint) out of images/s and epoch times."""
        start = time.monotonic()
        yield
        paused = time.monotonic() - start
        self._line_start += paused
        self._epoch_start += paused
