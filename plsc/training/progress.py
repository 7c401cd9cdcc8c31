"""Log a training's progress: one line at regular steps, and one after each epoch.

Try it: `plsc train -c configs/ -o Global.log_every=1`.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, SupportsFloat

from plsc.utils.logging import get_logger
from plsc.utils.text import duration, number

WAIT_SHOWN = 0.1  # share of time spent waiting for data above which it is shown


class Progress:
    """Logs a line every `every` steps, such as

        epoch 1/8 step 150/2000 loss 7.000 acc 0.1200 lr 0.1 1512 img/s eta 0:10:22

    and a line after an epoch, such as `epoch 1, time 20.4 sec`. That time is what the epoch's steps
    took in this process, without pauses.

    The loss, the accuracy and the parts' losses are means over the samples since the previous line. So
    an epoch's last, smaller batch has its samples' weight. Skipped steps are not in the means. The mean of a
    part's loss does not include steps in which the part gives none.

    img/s is measured over the steps since the previous line, without pauses. `data wait 34 %` precedes it if
    over a tenth of that time was spent waiting for batches. eta is based on a step's mean time in
    this process. It includes pauses (evaluations, checkpoints), because more of them will follow.

    Args:
        total_steps: the run's steps. Steps and epochs count from 1.
        steps_per_epoch: steps per epoch.
        every: steps between lines.
        start_step: steps that were finished before this process.
    """

    def __init__(self, total_steps: int, steps_per_epoch: int, every: int, start_step: int = 0) -> None:
        self._total = total_steps
        self._per_epoch = steps_per_epoch
        self._every = every
        self._start_step = start_step
        self._waited = 0.0
        self._images = 0
        self._sums: dict[str, tuple[Any, int]] = {}  # sums over samples with the sample counts, by name
        self._no_numbers: set[str] = set()  # names of which a warning was given
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
        """Record a finished step. Logs a line every `every` steps and after the last step.

        Numbers are converted to floats only for a line, so the other steps do not wait for the GPU.

        Args:
            step: step number, from 1.
            loss: the step's loss.
            lr: the step's learning rate.
            images: how many images are in the step, over all ranks.
            waited: time spent waiting for batches so far, in seconds.
            means: further numbers to average like the loss: floats, or float64 tensors.
            taken: whether the weights were updated. False for a skipped step.
            numbers: further numbers that are logged without averaging, as they are in the line's step.

        Returns the row for metrics.jsonl if a line was logged, otherwise None.
        """
        self._images += images
        means = {"loss": loss, **means}
        if taken:
            for name, value in means.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value * images, count + images
        now = time.monotonic()
        epoch = -(-step // self._per_epoch)
        row = None
        if step % self._every == 0 or step == self._total:
            if self._sums:
                means = {name: float(total) / count for name, (total, count) in self._sums.items()}
            read = {name: float(value) for name, value in means.items()}
            read.update(self._as_floats(numbers))
            seconds = max(now - self._line_start, 1e-9)
            rate = self._images / seconds
            data_wait = min((waited - self._waited) / seconds, 1.0)
            left = (now - self._start) / (step - self._start_step) * (self._total - step)
            self._line_start = now
            self._waited = waited
            self._images = 0
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

    def _as_floats(self, numbers: Mapping[str, Any]) -> dict[str, float]:
        """Convert the parts' numbers. Skip whatever is not a number, with a warning for each name."""
        floats = {}
        for name, value in numbers.items():
            try:
                floats[name] = float(value)
            except (TypeError, ValueError):
                if name not in self._no_numbers:
                    self._no_numbers.add(name)
                    get_logger().warning(
                        f"Parts: '{name}' is not a number but {value!r:.80}; it is not logged"
                    )
        return floats

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the block (an evaluation, a checkpoint) from img/s and from epoch times."""
        start = time.monotonic()
        yield
        paused = time.monotonic() - start
        self._line_start += paused
        self._epoch_start += paused
