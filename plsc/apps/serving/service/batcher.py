"""Compute what many requests ask for in batches: all that arrives while a batch is computed makes the next
one.

Nobody waits for a batch to fill up. A lone request is computed at once; under load batches grow by
themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from plsc.apps.serving.service.refusal import Refusal


class Batcher:
    """Calls `compute` in a thread of its own, one batch after the other; belongs to one event loop.

    Args:
        compute: items -> a result each, in their order.
        largest: items of a batch.
        deadline: seconds that an item may wait for its result.
    """

    def __init__(self, compute: Callable[[list], Sequence], largest: int, deadline: float):
        self._compute = compute
        self._largest = largest
        self._deadline = deadline
        self._waiting: deque[tuple[Any, asyncio.Future]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plsc-batch")
        self._work: asyncio.Task | None = None

    @property
    def waiting(self) -> int:
        """Items that no batch has taken yet."""
        return len(self._waiting)

    async def submit(self, items: Sequence) -> list:
        """Return the results of the items. Raises Refusal 503 after the deadline."""
        loop = asyncio.get_running_loop()
        results = [loop.create_future() for _ in items]
        self._waiting.extend(zip(items, results))
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._compute_all())
        try:
            return await asyncio.wait_for(asyncio.gather(*results), self._deadline)
        except asyncio.TimeoutError:  # wait_for has cancelled the results: no batch takes these items
            raise Refusal(503, f"no answer within {self._deadline:g} s; try again later") from None

    def close(self) -> None:
        """Wait for the batch that is being computed, and end the thread."""
        self._thread.shutdown()

    async def _compute_all(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            items, results = zip(*batch)
            try:
                answers = await loop.run_in_executor(self._thread, self._compute, list(items))
            except Exception as error:  # noqa: BLE001 (it belongs to the requests, not to this task)
                for result in results:
                    if not result.done():
                        result.set_exception(error)
                continue
            for result, answer in zip(results, answers):
                if not result.done():
                    result.set_result(answer)

    def _next_batch(self) -> list[tuple[Any, asyncio.Future]]:
        batch: list[tuple[Any, asyncio.Future]] = []
        while self._waiting and len(batch) < self._largest:
            item, result = self._waiting.popleft()
            if not result.done():
                batch.append((item, result))
        return batch
