"""On W ranks: every collective of plsc.distributed against numpy, forward and backward, even and uneven."""

import contextlib
import os
import socket
import time

import numpy as np
import paddle
import pytest

from plsc.distributed import collectives as d
from plsc.distributed.gradients import data_parallel
from plsc.errors import MissingFileError
from plsc.utils.sharding import split
from tests.helpers.bounds import EPS, assert_within
from tests.helpers.refusals import refusal

d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()


def rows_of(rank, count):
    return np.random.default_rng(rank).standard_normal((count, 3)).astype(np.float32)


assert d.gather_objects({"rank": r}) == [{"rank": k} for k in range(W)]
assert d.all_reduce(paddle.to_tensor([float(r)])).item() == sum(range(W))
assert d.all_reduce(paddle.to_tensor([float(r)]), "max").item() == W - 1
assert d.broadcast(paddle.to_tensor([r + 5])).item() == 5

calls = []


def fail():
    calls.append(r)
    raise MissingFileError("no such file")


assert d.run_on_rank_0(lambda: {"rank": r}) == {"rank": 0}
assert refusal(d.run_on_rank_0, fail, kind=MissingFileError) == "no such file", "on every rank"
assert calls == [0] * (r == 0), "no other rank calls it"

for counts in ([2] * W, [1 + 2 * k for k in range(W)], [3 * (k == 0) + 1 for k in range(W)]):
    assert d.gather_counts(counts[r]) == counts
    stop = np.cumsum(counts)
    start = stop - counts
    everything = np.concatenate([rows_of(k, n) for k, n in enumerate(counts)])

    for piece in (d.PIECE_BYTES, 24, 1):  # whole, two rows at a time, one at a time
        d.PIECE_BYTES, kept = piece, d.PIECE_BYTES
        assert d.gather_array(rows_of(r, counts[r])).tobytes() == everything.tobytes()
        d.PIECE_BYTES = kept

    x = paddle.to_tensor(rows_of(r, counts[r]), stop_gradient=False)
    gathered = d._c_allgather(x)
    assert gathered.numpy().tobytes() == everything.tobytes()
    # each rank weighs the gathered rows by (rank + 1): the slice's gradient is the sum over ranks
    (gathered * (r + 1.0)).sum().backward()
    assert (x.grad.numpy() == sum(range(1, W + 1))).all()

    y = paddle.to_tensor(everything * (r + 1), stop_gradient=False)
    scattered = d._c_reducescatter(y, counts)
    mine = everything[start[r] : stop[r]].astype(np.float64) * sum(range(1, W + 1))
    assert_within(scattered.numpy(), mine, W * EPS * np.abs(mine))  # W products, and their sums
    assert np.array_equal(y.numpy(), everything * (r + 1)), "the argument must stay as it was"
    (scattered * (r + 1.0)).sum().backward()
    assert np.array_equal(y.grad.numpy(), np.repeat(np.arange(1, W + 1), counts)[:, None] * np.ones(3))

one = d.gather_array(rows_of(r, 1 if r == 0 else 0))  # of ranks that have nothing to give
assert one.shape == (1, 3) and one.tobytes() == rows_of(0, 1).tobytes()

C = 4 * W
labels = np.arange(C)
start, stop = split(C, W)[r]
ours = d.shard_index(labels, start, stop)
theirs = paddle.shard_index(paddle.to_tensor(labels).unsqueeze(1), C, W, r, -1).flatten()
assert np.array_equal(ours, theirs.numpy()) and labels.tolist() == list(range(C))

layer, average_gradients = data_parallel(paddle.nn.Linear(2, 1))
layer(paddle.ones([1, 2]) * (r + 1.0)).sum().backward()
average_gradients()
grad = layer.parameters()[0].grad.numpy()
average = np.full(grad.shape, (W + 1) / 2)
assert_within(grad, average, EPS * average)  # 1 / W may be rounded before and after it multiplies
weights = d.gather_objects(layer.parameters()[0].numpy().tobytes())
assert len(set(weights)) == 1, "rank 0's parameters must be everyone's"

if r == W - 1:
    time.sleep(1.0)
came = time.monotonic()  # one clock for all processes of a machine
d.barrier()
left = time.monotonic()
d.barrier()
assert left >= max(d.gather_objects(came)), "a barrier lets nobody go before all have come"
if W > 1:
    timed_out = d.Flag()
    if r == 0:
        with pytest.raises(TimeoutError, match=f"only 1 of {W} ranks reached barrier"):
            d.barrier(timeout=0.2)
        timed_out.set()
    while not timed_out:  # a rank that has ended would be reported
        time.sleep(0.05)

    port = int(os.environ["PADDLE_MASTER"].rpartition(":")[2])
    of_the_store = []
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if connection.getpeername()[1:2] == (port,):
                of_the_store.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    assert of_the_store and all(of_the_store), "each question to the store would take 44 ms"
    # Rank 0 serves the store. This collective keeps it alive until every rank has read the flag. A barrier is
    # not possible here, because only rank 0 has called the one that timed out.
    d.gather_counts(1)
print(f"rank {r} of {W}: collectives ok")
