"""Communicate between ranks. Other modules do not call Paddle's collective functions themselves, but call
this module. To average the backbone's gradients, they call gradients.py.

A rank is a process of the run. W is the number of ranks. B is the number of samples or rows on this rank, and
N is the number on all ranks together. If W is 1, no function communicates. Paddle's collectives use the
library Gloo on CPUs, and the vendor's library, such as NCCL, on other devices.

Loss convention: the loss is the mean over all N samples. A rank computes the backbone's gradient from its own
samples' part in the loss, which is the sum of their losses divided by N, and not by B. The gradient of the
loss is therefore the sum of the ranks' gradients. `data_parallel` in gradients.py does not compute this sum,
but averages the backbone's gradients over the ranks. Therefore code that passes a gradient to the backbone
first multiplies the gradient by W. The average of the multiplied gradients equals the sum of the original
ones.

Try it: `python -m paddle.distributed.launch --nproc_per_node 4 tests/distributed/run_collectives.py`.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.profiler import RecordEvent

from plsc.distributed import device as devices
from plsc.distributed import network_interface, paddle_internals, peers
from plsc.distributed.environment import CPU
from plsc.distributed.environment import rank_from_env as rank
from plsc.distributed.environment import world_size_from_env as world_size
from plsc.distributed.key_value_store import get_store
from plsc.errors import UserError, in_one_line

_Value = TypeVar("_Value")

_barriers = itertools.count()
_flags = itertools.count()
PIECE_BYTES = 64 << 20  # largest number of bytes that a rank sends in one all_gather of `gather_array`


def init(
    device: str = "auto",
    threads: int | None = None,
    hang_seconds: float = peers.HANG_SECONDS,
    problem: UserError | None = None,
) -> None:
    """Choose the same device kind on all ranks. If there are several ranks, start Paddle's collectives.

    Every rank calls this function once.

    Args:
        device: "auto", "cpu", another device kind that Paddle supports, such as "gpu", or one card, such as
            "gpu:1". With "auto", the ranks use the first kind that Paddle supports if each rank has a card.
            They use "cpu" if no rank has a card.
        threads: CPU threads for this rank's matrix products. If it is None, Paddle chooses the number.
        hang_seconds: seconds within which all ranks must connect, see `plsc.distributed.peers.meet`. 0 means
            no limit.
        problem: an error that this rank found before the call, or None. If there are several ranks, every
            rank raises UserError with the error's message.

    Raises UserError in these cases:
        - There are several ranks, and one has a `problem`.
        - `device` names a kind or a card that a rank cannot use.
        - `device` is "auto", and some ranks have a card, but not all.
        - The environment variables from the launcher are missing or contradict each other.
        - Two ranks have the same number, or the ranks belong to different launches.
        - Rank 0 cannot listen on the port of the key-value store.
        - A rank has no network interface through which the other machines can reach it, or
          GLOO_SOCKET_IFNAME names an interface that does not exist.

    Raises LostRankError if a rank does not connect in time, or ends before all ranks have connected.
    """
    if not paddle.in_dynamic_mode():
        # If another thread imported Paddle, this thread is in static mode, and would compute nothing.
        paddle.disable_static()
    if rank() >= world_size() or (world_size() > 1 and "PADDLE_TRAINER_ENDPOINTS" not in os.environ):
        raise UserError(
            f"by PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM, this process is rank {rank()} of {world_size()}, "
            "but no launcher has set these variables; unset both"
        )
    starts_group = world_size() > 1 and not dist.is_initialized()
    if starts_group:
        try:
            interface = network_interface.for_gloo()
        except UserError as error:
            interface, problem = None, problem or error
        peers.meet(hang_seconds, problem)
    kind = _agree_on_kind(device)
    devices.use(kind, device, world_size())
    if starts_group:
        get_store()  # connects to the key-value store, in which the ranks then exchange their addresses
        if interface:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        # Without these variables, Paddle would use the collectives for the first device kind that it
        # supports, such as NCCL, even if the ranks compute on CPUs.
        os.environ.update(devices.backend_variables(kind))
        with paddle_internals.one_group_of_all_ranks():
            fleet.init(is_collective=True, log_level="ERROR")
    if threads is not None:
        paddle_internals.set_threads(threads)


def _agree_on_kind(device: str) -> str:
    """Return the device kind on which all ranks compute."""
    if device == CPU:
        return CPU
    lacks = [devices.why_none(device, world_size())]
    if world_size() > 1:  # the collectives are not started yet, so the ranks use the key-value store
        store = get_store()
        store.set(f"plsc/device/{rank()}", lacks[0])
        lacks = [store.get(f"plsc/device/{r}").decode() for r in range(world_size())]
    try:
        return devices.decide(device, lacks)
    except UserError:
        barrier()  # rank 0 serves the store, so it must not end before the other ranks have read
        raise


def all_reduce(x: paddle.Tensor, op: str = "sum") -> paddle.Tensor:
    """Reduce `x` over the ranks in place, and return it. op: "sum" or "max".

    With Gloo, "max" keeps a NaN from rank 0, and ignores a NaN from any other rank. To find out whether any
    rank has a NaN, use "sum".
    """
    assert x.is_contiguous(), "Paddle 2.6 ignores strides and would reduce the wrong elements"
    if world_size() > 1:
        with RecordEvent("gather"):
            dist.all_reduce(x, op=dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
    return x


def broadcast(x: paddle.Tensor) -> paddle.Tensor:
    """Copy rank 0's `x` into `x` on the other ranks, and return `x`."""
    if world_size() > 1:
        dist.broadcast(x, src=0)
    return x


def gather_objects(value: object) -> list:
    """Return every rank's `value` in rank order, on every rank. The value must be small, and pickle must be
    able to write it.

    Reading a pickle can run code. Here it is safe, because only this run's ranks send pickles. The ranks
    first wait in `barrier`, so they may call this function minutes apart.
    """
    if world_size() == 1:
        return [value]
    barrier()
    values: list = []
    dist.all_gather_object(values, value)
    return values


def run_on_rank_0(function: Callable[[], _Value]) -> _Value:
    """Call `function` on rank 0 only. Every rank returns the function's value, or raises its UserError.

    Every rank calls `run_on_rank_0`. The value must be small, and pickle must be able to write it. `function`
    may take minutes, because the other ranks wait in `barrier`. Any exception except UserError is raised on
    rank 0 only.
    """
    value = None
    problem = None
    if rank() == 0:
        try:
            value = function()
        except UserError as error:
            problem = error
    value, problem = gather_objects((value, problem))[0]
    if problem is not None:
        raise problem
    return value


def run_on_all_ranks(function: Callable[[], _Value]) -> _Value:
    """Call `function` on every rank, and return this rank's value.

    If `function` raises an exception on some ranks, every rank raises UserError with the message from the
    first of these ranks. `function` must not call a collective, because a rank that fails would not take
    part. `function` may take minutes, because the ranks wait for each other in `barrier`.
    """
    value, problem, cause = None, None, None
    try:
        value = function()
    except UserError as error:
        problem = cause = error
    except Exception as error:  # noqa: BLE001 (a user's class, or Paddle, may raise any)
        problem, cause = UserError(in_one_line(error)), error
    for first_problem in filter(None, gather_objects(problem)):
        raise first_problem from cause
    return value


class Flag:
    """A flag that any rank can raise. Every rank can read it without a collective, because it is in the job's
    key-value store.

    Every rank must make the same flags in the same order. Ranks that read a flag at different times may read
    different values. If all ranks must read the same value, they must call `barrier` after the last `set`,
    and read the flag afterwards.
    """

    def __init__(self) -> None:
        self._key = f"plsc/flag/{next(_flags)}"
        self._raised = False

    def set(self) -> None:
        """Raise the flag."""
        if world_size() > 1:
            get_store().add(self._key, 1)
        self._raised = True

    def __bool__(self) -> bool:
        self._raised = self._raised or (world_size() > 1 and get_store().add(self._key, 0) > 0)
        return self._raised


def gather_counts(count: int) -> list[int]:
    """Return every rank's `count` in rank order, on every rank.

    Collectives: one all_gather if there are several ranks.
    """
    if world_size() == 1:
        return [count]
    counts: list = []
    with RecordEvent("gather"):
        dist.all_gather(counts, paddle.full([1], count, "int64"))
    return [c.item() for c in counts]


def gather_array(x: np.ndarray) -> np.ndarray:
    """Concatenate the ranks' NumPy arrays [B, ...] to one array [N, ...] in rank order, on every rank.

    All axes except the first must agree. B may be 0.

    Use this function for large arrays. It sends them in pieces with at most PIECE_BYTES. Therefore no single
    collective takes long, and no device holds a whole array. The ranks first wait in `barrier`, so they may
    call this function minutes apart.
    """
    if world_size() == 1:
        return x
    barrier()
    counts = gather_counts(len(x))
    starts = [sum(counts[:r]) for r in range(world_size())]
    out = np.empty((sum(counts), *x.shape[1:]), x.dtype)
    rows = max(1, PIECE_BYTES // max(1, out[:1].nbytes))
    for first in range(0, max(counts), rows):
        piece = np.zeros((min(rows, max(counts) - first), *x.shape[1:]), x.dtype)
        own = x[first : first + rows]
        piece[: len(own)] = own
        parts: list = []
        dist.all_gather(parts, paddle.to_tensor(piece))
        for start, count, part in zip(starts, counts, parts):
            used = max(0, min(len(piece), count - first))
            out[start + first : start + first + used] = part.numpy()[:used]
    return out


def _c_allgather(x: paddle.Tensor, counts: Sequence[int] | None = None) -> paddle.Tensor:
    """Concatenate the ranks' rows in rank order, [B, ...] -> [N, ...], with the same bits on every rank.
    Gradients flow back through this function.

    The name comes from PaddlePaddle's earlier program PLSC. In the backward pass, each rank gets the gradient
    with respect to its own rows, summed over the ranks. Every rank must run the forward pass and the backward
    pass.

    Collectives if there are several ranks: one all_gather in the forward pass (two without `counts`), and one
    reduce-scatter in the backward pass.

    Args:
        x: this rank's rows.
        counts: how many rows each rank has. If the counts differ, rows with zeros are added for the transfer.
    """
    if world_size() == 1:
        return x
    return _AllGather.apply(x, gather_counts(x.shape[0]) if counts is None else counts)


def _c_reducescatter(x: paddle.Tensor, counts: Sequence[int]) -> paddle.Tensor:
    """Sum `x` over the ranks, and return this rank's rows of the sum, [N, ...] -> [B, ...]. Gradients flow
    back through this function.

    The name comes from PaddlePaddle's earlier program PLSC. The backward pass concatenates the ranks'
    gradients. Every rank must run the forward pass and the backward pass.

    Collectives if there are several ranks: one reduce-scatter in the forward pass, and one all_gather in the
    backward pass. Gloo has no reduce-scatter, so CPUs use an all_reduce and a slice instead.

    Args:
        x: N rows on each rank.
        counts: how many rows each rank gets. The counts add up to N.
    """
    return x if world_size() == 1 else _ReduceScatter.apply(x, counts)


class _AllGather(PyLayer):
    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        return _gather(x, counts)

    @staticmethod
    def backward(ctx, grad):
        return _reduce_scatter(grad, ctx.counts)


class _ReduceScatter(PyLayer):
    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        return _reduce_scatter(x, counts)

    @staticmethod
    def backward(ctx, grad):
        return _gather(grad, ctx.counts)


def _gather(x: paddle.Tensor, counts: Sequence[int]) -> paddle.Tensor:
    parts: list = []
    with RecordEvent("gather"):
        dist.all_gather(parts, _padded(x, max(counts)).contiguous())
    return paddle.concat([part[:count] for part, count in zip(parts, counts)])


def _reduce_scatter(x: paddle.Tensor, counts: Sequence[int]) -> paddle.Tensor:
    start = sum(counts[: rank()])
    if not devices.on_device():
        return all_reduce(x.clone())[start : start + counts[rank()]].clone()
    most = max(counts)
    if min(counts) < most:
        x = paddle.concat([_padded(part, most) for part in x.split(list(counts))])
    own = paddle.empty([most, *x.shape[1:]], x.dtype)
    with RecordEvent("gather"):
        dist.stream.reduce_scatter(own, x.contiguous())
    return own[: counts[rank()]]


def _padded(x: paddle.Tensor, rows: int) -> paddle.Tensor:
    """Append rows with zeros to `x`, so that it has `rows` rows."""
    missing = rows - x.shape[0]
    return paddle.concat([x, paddle.zeros([missing, *x.shape[1:]], dtype=x.dtype)]) if missing else x


def shard_index(label: np.ndarray, start: int, stop: int, ignore: int = -1) -> np.ndarray:
    """Convert labels to row numbers in the shard with the classes [start, stop).

    Returns label - start if the class is in the shard, otherwise `ignore`. The labels and the result are
    int64. This function calls no collective.

    Paddle's own shard_index assumes that each rank's shard has ceil(C / W) classes, for C classes in all.
    In plsc, some shards have one class fewer if W does not divide C. Paddle's function may then return other
    row numbers.
    """
    return np.where((label >= start) & (label < stop), label - start, ignore)


def barrier(timeout: float = 3600.0) -> None:
    """Wait until every rank has called this function. All ranks must call it equally often.

    A rank may take minutes to save, to evaluate or to build an index. A Gloo collective would give up after
    30 s. Therefore this function polls the job's key-value store instead. A call takes some milliseconds,
    which is too slow for every step.

    Args:
        timeout: longest time to wait, in seconds.

    Raises TimeoutError if a rank does not arrive in this time, and LostRankError if a rank is gone.
    """
    if world_size() == 1:
        return
    store = get_store()
    key = f"plsc/barrier/{next(_barriers)}"
    give_up = time.monotonic() + timeout
    pauses = _pauses()
    arrived = store.add(key, 1)
    while arrived < world_size():
        if time.monotonic() > give_up:
            raise TimeoutError(
                f"only {arrived} of {world_size()} ranks reached barrier {key} within {timeout:.0f} s"
            )
        # `gone` is read before `arrived` is read again. A rank that arrives and then exits therefore does not
        # count as lost.
        gone = peers.gone()
        time.sleep(next(pauses))
        arrived = store.add(key, 0)
        if gone and arrived < world_size():
            raise peers.LostRankError(gone)
    # The store ends with rank 0. Other ranks may still read from the store, so rank 0 leaves last.
    if rank() != 0:
        store.add(key, 1)
        return
    pauses = _pauses()
    while store.add(key, 0) < 2 * world_size() - 1 and time.monotonic() < give_up and not peers.lost():
        time.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Yield the pauses between polls, in seconds: 0.001, 0.002, 0.004, 0.008, 0.016, and from then on 0.032.
    The pauses become longer, so that many ranks do not overload rank 0."""
    return itertools.chain((0.001 * 2**n for n in range(5)), itertools.repeat(0.032))


def global_mean(loss_B: paddle.Tensor, counts: Sequence[int]) -> paddle.Tensor:
    """Compute the mean over all ranks' losses. The result is the same on every rank.

    The backward pass multiplies the gradient by W, as the loss convention in the module's docstring requires.

    Args:
        loss_B: this rank's losses, float [B].
        counts: each rank's sample count.

    Collectives: one all_reduce SUM of one number if there are several ranks.
    """
    return _GlobalMean.apply(loss_B, sum(counts))


class _GlobalMean(PyLayer):
    @staticmethod
    def forward(ctx, loss_B, total):
        ctx.shape = loss_B.shape
        ctx.total = total
        return all_reduce(loss_B.sum() / total)

    @staticmethod
    def backward(ctx, grad):
        return (grad * (world_size() / ctx.total)).expand(ctx.shape)
