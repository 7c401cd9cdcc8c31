"""Show how much of a long piece of work is done.

with Bar("reading faces", 1000, "images") as bar:
    bar.update(10)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tqdm import tqdm

from plsc.utils.logging import get_logger
from plsc.utils.text import duration

LOG_EVERY = 10.0  # seconds


class Bar:
    """A bar on a terminal; elsewhere a line in the log from time to time: `reading faces: 10 of 1,000 images,
    eta 0:01:39`."""

    def __init__(self, what: str, total: int, unit: str, clock: Callable[[], float] = time.monotonic):
        self._what, self._total, self._unit = what, total, unit
        self._clock = clock
        self._begin = self._logged = clock()
        self._done = 0
        self._bar = tqdm(desc=what, total=total, unit=f" {unit}", unit_scale=True, disable=None, leave=False)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, done: int = 1) -> None:
        """Report that `done` more are done."""
        self._done += done
        self._bar.update(done)
        now = self._clock()
        if not self._bar.disable or now - self._logged < LOG_EVERY:
            return
        self._logged = now
        left = (now - self._begin) / max(self._done, 1) * (self._total - self._done)
        get_logger().info(
            f"{self._what}: {self._done:,} of {self._total:,} {self._unit}, eta {duration(left)}"
        )
