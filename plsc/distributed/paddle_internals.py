"""Collect the uses of Paddle's private API, each with its reason and the public call that would do, if any.

Private names change without notice: look here first when a new version of Paddle fails. All of them work with
Paddle 2.6 and 3.3.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence

import paddle
import paddle.distributed as dist
from paddle.distributed import collective


def job_store():
    """Return the TCPStore of this job, which rank 0 serves.

    Paddle's groups use this very store, on a port that the launcher has reserved. Public: `dist.TCPStore`
    does not exist; `paddle.distributed.gloo_barrier` needs a second server of its own.
    Holds the GIL until all ranks have connected.
    """
    return paddle.base.core.create_or_get_global_tcp_store()


def set_threads(count: int) -> None:
    """Set the threads of this process's matrix products.

    Public: only the variable OMP_NUM_THREADS, which importing Paddle sets to 1.
    """
    paddle.base.core.set_num_threads(count)


def gradient_buckets(parameters: Sequence[paddle.Tensor], last: int, most: int) -> list[list[int]]:
    """Group parameters as `paddle.DataParallel` does -> indices of each group.

    last: bytes of the first group, whose gradients come last. most: bytes of the others.

    The sums over three or more ranks depend on where in a buffer a number lies. Public: DataParallel alone,
    which cannot be used on Gloo (see plsc.distributed.gradients).
    """
    return paddle.base.core.eager_assign_group_by_size(parameters, [False] * len(parameters), [last, most])


@contextlib.contextmanager
def one_group_of_all_ranks() -> Iterator[None]:
    """Inside the block, return the default group for a new group of all ranks.

    fleet.init asks for several such groups. With three or more Gloo ranks each further one fails every other
    time ("connect ... Connection refused") or hangs, on Paddle 2.6 and 3.3: a rank connects before its peer
    listens. Public: none; `dist.new_group` always makes a new one.
    """
    original = dist.new_group

    def new_group(ranks=None, *args, **kwargs):
        world = collective._get_default_group()
        if ranks is None or sorted(ranks) == sorted(world.ranks):
            return world
        return original(ranks, *args, **kwargs)

    dist.new_group = new_group
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):  # a banner with the flags that Paddle has changed itself
            dist.init_parallel_env()
        yield
    finally:
        dist.new_group = original
        for line in output.getvalue().splitlines():
            if not line.startswith(("=====", "FLAGS(")):
                print(line, file=sys.stderr)


def current_place() -> object:
    """Return the place that Paddle computes on. Public: `paddle.get_device()` gives its name alone, which no
    constructor of places takes for plug-ins."""
    return paddle.framework._current_expected_place()


def copy_to(tensor: paddle.Tensor, place: object, wait: bool) -> paddle.Tensor:
    """Copy a tensor to a place, queued unless `wait`.

    Public: `Tensor.to(place, blocking=...)`, which takes no place of a plug-in in Paddle 2.6, and
    `Tensor.cpu()`, which is not used for reading since it keeps the graph.
    """
    return tensor._copy_to(place, wait)


def count_cards(kind: str) -> int:
    """Count the cards of an XPU or of a plug-in's kind.

    Public: none in Paddle 2.6; `paddle.device.device_count()` of Paddle 3 counts those of the current device.
    """
    if kind == "xpu":
        return paddle.base.core.get_xpu_device_count()
    return paddle.base.core.get_custom_device_count(kind)
