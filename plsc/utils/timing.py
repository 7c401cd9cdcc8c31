"""Measure where the time of a training step goes, with one timer a process.

`timer` is a global, as a logger is: what it times lies deep in the loader, the head and the collectives, which serve without a trainer,
too. Trainer.train alone switches it on (with Global.profile) and off, and alone takes the numbers; the others only name what they do.

Code says what it is doing, `with timer.part("head"):`. Parts nest, and the inner one's time is not the outer one's, so that they add
up; what no part claims is "rest". Off, a part costs a tenth of a microsecond. Knows no paddle. Try it:

    plsc-train -c configs/ -o Global.profile=true Global.epochs=1    # then open output/report.html
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

PARTS = {  # in the order of a step
    "data": "waiting for a batch",
    "forward": "the backbone forward",
    "head": "forward, backward and update of the class centres",
    "gather": "the head's collectives, and those by which ranks agree: waiting for a slower rank counts here",
    "backward": "the backbone backward, with the sum of its gradients over the ranks, which Paddle does meanwhile",
    "check": "whether all is finite",
    "optimizer": "update of the backbone",
    "rest": "log lines, Python",
}


class Timer:
    """Seconds by part since `start` or the last `take`; times that `pause` encloses are no step's.

    Attributes: `on`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.on, self._clock = False, clock
        self._finish: Callable[[], object] = lambda: None

    def start(self, step: int, finish: Callable[[], object] = lambda: None) -> None:
        """Count from here on; `step` are done. `finish` waits for the device: a GPU works on while Python goes ahead."""
        self.on, self._finish, self._inside = True, finish, ["rest"]
        self._step, self._seconds = step, dict.fromkeys(PARTS, 0.0)
        self._since = self._now()

    def stop(self) -> None:
        self.on = False

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Count what happens inside as `name`, one of PARTS."""
        return self._enter(name) if self.on else _NOTHING

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Leave what happens inside, an evaluation or a checkpoint, out of the steps."""
        return self._off() if self.on else _NOTHING

    def take(self, step: int) -> dict[str, float]:
        """Return the mean seconds of each part in a step, over the steps from the last call to `step`; counts anew."""
        self._count()
        means = {name: seconds / max(step - self._step, 1) for name, seconds in self._seconds.items()}
        self._step, self._seconds = step, dict.fromkeys(PARTS, 0.0)
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
    def _off(self) -> Iterator[None]:
        self._count()
        self.on = False
        try:
            yield
        finally:
            self.on, self._since = True, self._now()


_NOTHING = contextlib.nullcontext()
timer = Timer()
