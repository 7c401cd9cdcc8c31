"""Show the progress of a training run: a log line at regular steps, and a bar on a terminal."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsFloat

from tqdm import tqdm

from plsc.utils.logging import get_logger
from plsc.utils.text import duration, number

WAIT_SHOWN = 0.1  # share of the time spent waiting for data above which it is shown


class Progress:
    """Logs a line each `every` steps and, on a terminal, shows a bar below the lines.

    Steps and epochs count from 1; `start_step` steps were done before this run. A line:

        epoch 1/8 step 150/2000 loss 7.000 acc 0.1200 lr 0.1 1512 img/s eta 0:10:22

    and at the end of an epoch `epoch 1, time 20.4 sec`: the time of its steps in this run without pauses, and
    the number of corrupt images that were replaced, if any.

    img/s: over the steps since the line before, without pauses. `data wait 34 %` comes before it if more than
    a tenth of that time was spent waiting for batches; then, from the second line on, `advice` is logged
    once. eta: from the mean time of a step in this run, with pauses (evaluations, checkpoints), because they
    will come again.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        epochs: int,
        every: int,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        data: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        extra: Callable[[], Mapping[str, float]] = dict,
        advice: str = "",
    ) -> None:
        """Take the numbers of the run.

        Args:
            data: returns the seconds spent waiting for batches since its start, and the images of this epoch
                that were replaced. It is called when a line is due, which is at the same steps on every rank.
            extra: returns further numbers of the steps since the last line; it is called likewise.
        """
        self._total = total_steps
        self._per_epoch = steps_per_epoch
        self._epochs = epochs
        self._every = every
        self._start_step = start_step
        self._clock = clock
        self._data = data
        self._extra = extra
        self._waited = data()[0]
        self._advice = advice
        self._start = self._line_start = self._epoch_start = clock()
        self._paused = 0.0
        self._images = 0
        self._epoch = 0
        quiet = not get_logger().isEnabledFor(logging.INFO)
        self._bar = tqdm(
            desc="training",
            total=steps_per_epoch,
            disable=quiet or None,  # None: only on a terminal
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
        )

    def update(
        self,
        step: int,
        epoch: int,
        loss: SupportsFloat,
        lr: float,
        images: int,
        **extra: SupportsFloat,
    ) -> dict[str, Any] | None:
        """Report that `step` is done, on `images` images of all ranks.

        Logs each `every` steps and after the last one, and then returns the metrics row, else None. `loss`
        and `extra` (accuracy=...) are converted to floats only then: no other step waits for a number of a
        GPU.
        """
        self._images += images
        self._draw(step, epoch)
        row = None
        due = step % self._every == 0 or step == self._total
        ends = step % self._per_epoch == 0
        waited, replaced = self._data() if due or ends else (0.0, 0)
        if due:
            row = self._log_line(step, epoch, loss, lr, extra, waited)
            row.update({"replaced": replaced} if replaced else {})
        if ends:
            now = self._clock()
            corrupt = f", corrupt images replaced: {replaced}" if replaced else ""
            get_logger().info(f"epoch {epoch}, time {now - self._epoch_start:.1f} sec{corrupt}")
            self._epoch_start = now
        return row

    def _log_line(
        self,
        step: int,
        epoch: int,
        loss: SupportsFloat,
        lr: float,
        extra: Mapping[str, SupportsFloat],
        waited: float,
    ) -> dict[str, Any]:
        now = self._clock()
        seconds = max(now - self._line_start - self._paused, 1e-9)
        rate = self._images / seconds
        data_wait = min((waited - self._waited) / seconds, 1.0)
        left = (now - self._start) / max(step - self._start_step, 1) * (self._total - step)
        first = self._line_start == self._start  # its time includes the start of the workers
        self._line_start = now
        self._waited = waited
        self._paused = 0.0
        self._images = 0
        numbers = {
            "loss": float(loss),
            **{name: float(value) for name, value in extra.items()},
            **self._extra(),
        }
        values = " ".join(
            f"{name.replace('accuracy', 'acc', 1)} {number(value)}" for name, value in numbers.items()
        )
        waiting = f" data wait {100 * data_wait:.0f} %" if data_wait > WAIT_SHOWN else ""
        get_logger().info(
            f"epoch {epoch}/{self._epochs} step {step}/{self._total} {values} lr {lr:.4g}{waiting}"
            f" {number(rate)} img/s eta {duration(left)}"
        )
        if waiting and self._advice and not first:
            get_logger().warning(f"{waiting.strip()}: {self._advice}")
            self._advice = ""
        loss_value = numbers.pop("loss")
        return {
            "step": step,
            "epoch": epoch,
            "loss": loss_value,
            "lr": lr,
            "images_per_second": rate,
            "data_wait": data_wait,
            **numbers,
        }

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of the block (an evaluation, a checkpoint) out of images/s and epoch times."""
        start = self._clock()
        try:
            yield
        finally:
            paused = self._clock() - start
            self._paused += paused
            self._epoch_start += paused

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _draw(self, step: int, epoch: int) -> None:
        if self._bar.disable:
            return
        done = (step - 1) % self._per_epoch + 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._bar.set_description_str(f"epoch {epoch}/{self._epochs}", refresh=False)
            self._bar.reset(total=min(self._per_epoch, self._total - step + done))
            self._bar.n = self._bar.initial = done - 1  # not 0 where a run resumes within an epoch
        self._bar.update(done - self._bar.n)
