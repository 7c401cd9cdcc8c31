"""Show how much of a long piece of work is done.

with Bar("reading faces", 1000, "images") as bar:
    bar.update(10)
"""

from __future__ import annotations

import time

from tqdm import tqdm

from plsc.utils.logging import get_logger
from plsc.utils.text import duration

LOG_EVERY = 10.0  # seconds


class Bar:
    """A bar on a terminal; elsewhere a line in the log from time to time: `reading faces: 10 of 1,000 images,
    eta 0:01:39`."""

    def __init__(self, what: str, total: int, unit: str):
        self._what = what
        self._unit = unit
        self._begin = self._logged = time.monotonic()
        self._bar = tqdm(desc=what, total=total, unit=f" {unit}", unit_scale=True, disable=None, leave=False)
        self._done = 0

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, done: int = 1) -> None:
        """Report that `done` more are done."""
        self._done += done
        self._bar.update(done)
        now = time.monotonic()
        if not self._bar.disable or now - self._logged < LOG_EVERY:
            return
        self._logged = now
        total = self._bar.total
        left = (now - self._begin) / self._done * (total - self._done)
        get_logger().info(f"{self._what}: {self._done:,} of {total:,} {self._unit}, eta {duration(left)}")
