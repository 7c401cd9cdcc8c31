"""Replicate a network on all ranks, and average its gradients over them.

    model, average = data_parallel(layer)
    model(images).sum().backward()
    average()

On CPUs `average` replaces `paddle.DataParallel`. If another rank is killed, a collective fails. Inside the
backward pass that ends the process by `std::terminate`, since Paddle's engine does not turn Gloo's exceptions
into Python's. After it, Python gets the exception. The sums have the same bits as DataParallel's, because
they are made over the same buckets.
"""

from collections.abc import Callable, Sequence

import paddle
from paddle.distributed import fleet

from plsc.distributed import paddle_internals
from plsc.distributed.collectives import all_reduce, broadcast, world_size
from plsc.distributed.device import on_device

# Bytes, as in DataParallel: the smaller bucket is that of the parameters whose gradients come last.
_LAST_BUCKET = 1 << 20
_BUCKET = 25 << 20


def data_parallel(
    layer: paddle.nn.Layer, recomputed: bool = False
) -> tuple[paddle.nn.Layer, Callable[[], object]]:
    """Copy rank 0's parameters and buffers to every rank -> model, average.

    model: call it in a forward pass. average: call it after the backward pass, to average the gradients over
    the ranks. On devices `paddle.DataParallel` averages them during the backward pass, and `average` does
    nothing. Every rank calls both.

    recomputed: whether layers are recomputed in the backward pass, where DataParallel's hooks fail.
    """
    if world_size() == 1:
        return layer, lambda: None
    if on_device() and not recomputed:
        return fleet.distributed_model(layer), lambda: None
    for tensor in (*layer.parameters(), *layer.buffers()):
        broadcast(tensor.detach())
    trained = [parameter for parameter in layer.parameters() if parameter.trainable]
    groups = paddle_internals.gradient_buckets(trained, _LAST_BUCKET, _BUCKET)
    buckets = [[trained[index] for index in group] for group in reversed(groups)]

    @paddle.no_grad()
    def average() -> None:
        for bucket in buckets:
            _average(bucket)

    return layer, average


def _average(parameters: Sequence[paddle.Tensor]) -> None:
    """Average one bucket's gradients by one all_reduce. A missing gradient counts as zeros."""
    grads = [p.grad if p.grad is not None else paddle.zeros(p.shape, p.dtype) for p in parameters]
    bucket = paddle.concat([grad.reshape([-1]) for grad in grads])
    all_reduce(bucket.scale_(1 / world_size()))
    parts = bucket.split([grad.size for grad in grads])
    for parameter, grad, part in zip(parameters, grads, parts):
        if parameter.grad is not None or part.any():
            paddle.assign(part.reshape(parameter.shape), output=grad)
            parameter.grad = grad
