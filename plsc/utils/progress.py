"""Show the progress of a training run: a line each so many steps, and a bar on a terminal."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsFloat

from tqdm import tqdm

from plsc.utils.logging import get_logger
from plsc.utils.text import duration, number

WAIT_SHOWN = 0.1  # share of the time spent waiting for data above which it is said


class Progress:
    """The training run as one line each `every` steps and, on a terminal, a bar below the lines.

    Steps and epochs count from 1; `start_step` steps were done before this run. A line:

        epoch 1/8 step 150/2000 loss 7.000 acc 0.1200 lr 0.1 1512 img/s eta 0:10:22

    and at the end of an epoch `epoch 1, time 20.4 sec`: of its steps in this run, pauses left out.

    img/s: over the steps since the line before, pauses left out. `data wait 34 %` comes before it where more than a tenth
    of that time was spent waiting for batches, and from the second line on, once, `advice` what to do; images replaced
    because they are corrupt are counted in the line at the end of the epoch. eta: from the mean time of a step in this
    run, pauses (evaluations, checkpoints) counted, because they will come again.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        epochs: int,
        global_batch: int,
        every: int,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        data: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        advice: str = "",
    ) -> None:
        """`data`: how many seconds were spent waiting for batches, since its start, and how many images of this epoch were
        replaced. It is called when a line is due, which is at the same steps on every rank."""
        self._total, self._per_epoch, self._epochs = total_steps, steps_per_epoch, epochs
        self._global_batch, self._every, self._start_step, self._clock = (
            global_batch,
            every,
            start_step,
            clock,
        )
        self._data, self._waited, self._advice = data, data()[0], advice
        self._start = self._window = self._epoch_start = clock()
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
        images: int | None = None,
        **extra: SupportsFloat,
    ) -> dict[str, Any] | None:
        """Report that `step` is done, on `images` images if not a whole global batch.

        Logs each `every` steps and after the last one, and then returns the metrics row, else None. `loss`
        and `extra` (accuracy=...) are made floats only then: no step waits for a number on a GPU.
        """
        self._images += self._global_batch if images is None else images
        self._draw(step, epoch)
        row = None
        said, ends = step % self._every == 0 or step == self._total, step % self._per_epoch == 0
        waited, replaced = self._data() if said or ends else (0.0, 0)
        if said:
            row = self._say(step, epoch, loss, lr, extra, waited)
            row.update({"replaced": replaced} if replaced else {})
        if ends:
            now = self._clock()
            corrupt = f", corrupt images replaced: {replaced}" if replaced else ""
            get_logger().info(f"epoch {epoch}, time {now - self._epoch_start:.1f} sec{corrupt}")
            self._epoch_start = now
        return row

    def _say(
        self,
        step: int,
        epoch: int,
        loss: SupportsFloat,
        lr: float,
        extra: Mapping[str, SupportsFloat],
        waited: float,
    ) -> dict[str, Any]:
        now = self._clock()
        seconds = max(now - self._window - self._paused, 1e-9)
        rate, data_wait = self._images / seconds, min((waited - self._waited) / seconds, 1.0)
        left = (now - self._start) / max(step - self._start_step, 1) * (self._total - step)
        first = self._window == self._start  # the workers start then
        self._window, self._waited, self._paused, self._images = now, waited, 0.0, 0
        numbers = {"loss": float(loss), **{name: float(value) for name, value in extra.items()}}
        said = " ".join(
            f"{'acc' if name == 'accuracy' else name} {number(value)}" for name, value in numbers.items()
        )
        waiting = f" data wait {100 * data_wait:.0f} %" if data_wait > WAIT_SHOWN else ""
        get_logger().info(
            f"epoch {epoch}/{self._epochs} step {step}/{self._total} {said} lr {lr:.4g}{waiting}"
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
        """What happens inside (an evaluation, a checkpoint) does not count as training time in images/s and epochs."""
        start = self._clock()
        try:
            yield
        finally:
            paused = self._clock() - start
            self._paused += paused
            self._epoch_start += paused

    def close(self) -> None:
        """Take the bar away."""
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
