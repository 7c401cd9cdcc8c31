"""The queue of the service: batches grow under load, order is kept, and what nobody waits for is not
computed."""

import asyncio
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.serving.service.batcher import Batcher
from plsc.apps.serving.service.refusal import Refusal


class Held:
    """Doubles numbers, a batch at a time, each when it is let go."""

    def __init__(self):
        self.batches = []
        self.go_on = threading.Semaphore(0)

    def __call__(self, items):
        self.batches.append(items)
        assert self.go_on.acquire(timeout=60)
        return [2 * item for item in items]


def submit_all(requests, largest=4, deadline=60.0, let_go=100):
    """Submit each request's items while the first batch is held; the results or errors, and the batches."""
    held = Held()

    async def main():
        batcher = Batcher(held, largest, deadline)
        tasks = []
        for items in requests:
            tasks.append(asyncio.create_task(batcher.submit(items)))
            while not held.batches:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        held.go_on.release(let_go)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        return results

    return asyncio.run(main()), held.batches


def test_what_comes_while_a_batch_is_computed_makes_the_next_ones():
    results, batches = submit_all([[1], [2, 3], [4], [5, 6]])
    assert results == [[2], [4, 6], [8], [10, 12]]
    assert batches == [[1], [2, 3, 4, 5], [6]]


def test_a_request_of_more_than_a_batch_is_computed_in_several():
    results, batches = submit_all([[1], list(range(10))])
    assert results[1] == [2 * number for number in range(10)]
    assert [len(batch) for batch in batches] == [1, 4, 4, 2]


def test_a_defect_reaches_the_requests_of_its_batch_alone():
    async def main():
        batcher = Batcher(lambda items: [1 / item for item in items], 4, 20.0)
        with pytest.raises(ZeroDivisionError):
            await batcher.submit([0])
        assert await batcher.submit([4]) == [0.25]
        batcher.close()

    asyncio.run(main())


def test_after_the_deadline_a_request_is_refused_and_not_computed_any_more():
    held = Held()

    async def main():
        batcher = Batcher(held, 1, 1.0)
        first = asyncio.create_task(batcher.submit([1]))
        while not held.batches:
            await asyncio.sleep(0.001)
        with pytest.raises(Refusal, match="no answer within 1 s"):
            await batcher.submit([2])
        with pytest.raises(Refusal):
            await first
        held.go_on.release(9)
        await batcher.submit([3])
        batcher.close()

    asyncio.run(main())
    assert held.batches == [[1], [3]]
