"""Show how long work progresses.

with Bar("reading faces", 1000, "images") as bar:
    bar.update(10)
"""

import time

from tqdm import tqdm

from plsc.utils.logging import get_logger
from plsc.utils.text import duration

LOG_EVERY = 10.0  # seconds


class Bar(tqdm):
    """A progress bar on a terminal. Elsewhere it logs a line every ten seconds, such as `reading faces: 10 of
    1,000 images, eta 0:01:39`."""

    def __init__(self, what: str, total: int, unit: str):
        super().__init__(desc=what, total=total, unit=f" {unit}", unit_scale=True, disable=None, leave=False)
        self._line = f"{what}: {{:,}} of {total:,} {unit}, eta {{}}"
        self._begin = self._logged = time.monotonic()

    def update(self, n: int = 1) -> None:
        """Report that `n` more items are done."""
        if not self.disable:
            super().update(n)
            return
        self.n += n
        now = time.monotonic()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            left = (now - self._begin) / self.n * (self.total - self.n)
            get_logger().info(self._line.format(self.n, duration(left)))
