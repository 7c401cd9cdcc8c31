"""Measure where the time of a training step goes, with one timer a process.

`timer` is a global, like a logger: the loader, the head and the collectives name their parts, `with
timer.part("head"):`, and work without a trainer, too. Only Trainer.train switches it on (with Global.profile)
and off, and takes the numbers.

Parts nest. The time of an inner part is not counted in the outer one, so that the parts add up to the step;
time outside of all parts is "rest". A part costs a tenth of a microsecond while the timer is off. Imports no
Paddle. Try it:

    plsc train -c configs/ -o Global.profile=true Global.epochs=1    # then open output/report.html
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

PARTS = {  # in the order of a step
    "data": "waiting for a batch",
    "forward": "the backbone forward",
    "head": "forward, backward and update of the class centres; losses beside theirs",
    "gather": "the head's collectives, and those by which ranks agree: waiting for a slower rank counts here",
    "backward": "the backbone backward, with the sum of its gradients over the ranks, which Paddle does meanwhile, and what is computed again",
    "check": "whether all is finite",
    "optimizer": "update of the backbone",
    "rest": "log lines, Python",
}


class Timer:
    """Counts the seconds of each part since `start` or the last `take`, except those inside `pause`.

    Attributes: `on`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.on = False
        self._clock = clock
        self._finish: Callable[[], object] = lambda: None
        self._entered: Callable[[str, bool], object] | None = None

    def start(self, step: int, finish: Callable[[], object] = lambda: None) -> None:
        """Start to count after `step` steps.

        `finish` waits for the device: a GPU works on while Python goes ahead.
        """
        self.on = True
        self._finish = finish
        self._inside = ["rest"]
        self._step = step
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._since = self._now()

    def stop(self) -> None:
        self.on = False

    @contextlib.contextmanager
    def watch(self, entered: Callable[[str, bool], object]) -> Iterator[None]:
        """Call `entered` in the block with each part that begins, or that goes on after an inner one, and
        whether it goes on. Nothing is timed."""
        self._entered = entered
        self._inside = ["rest"]
        try:
            yield
        finally:
            self._entered = None

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Count the time of the block as `name`, one of PARTS."""
        if self.on:
            return self._enter(name)
        return self._watched(name) if self._entered else _NOTHING

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Leave the time of the block, an evaluation or a checkpoint, out of all parts."""
        return self._off() if self.on else _NOTHING

    def take(self, step: int) -> dict[str, float]:
        """Return the mean seconds of each part per step, over the steps since the last call; start anew."""
        self._count()
        means = {name: seconds / max(step - self._step, 1) for name, seconds in self._seconds.items()}
        self._step = step
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return means

    def _now(self) -> float:
        self._finish()
        return self._clock()

    def _count(self) -> None:
        now = self._now()
        self._seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def _enter(self, name: str) -> Iterator[None]:
        self._count()
        self._inside.append(name)
        try:
            yield
        finally:
            self._count()
            self._inside.pop()

    @contextlib.contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        self._inside.append(name)
        self._entered(name, False)
        try:
            yield
        finally:
            self._inside.pop()
            self._entered(self._inside[-1], True)

    @contextlib.contextmanager
    def _off(self) -> Iterator[None]:
        self._count()
        self.on = False
        try:
            yield
        finally:
            self.on, self._since = True, self._now()


_NOTHING = contextlib.nullcontext()
timer = Timer()
