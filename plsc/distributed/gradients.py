"""Replicate a network on all ranks, and average its gradients over them.

    model, average = data_parallel(layer)
    model(images).sum().backward()
    average()

On CPUs, `average` replaces `paddle.DataParallel`, which averages during the backward pass. If another rank is
killed, a collective fails. During the backward pass, this would end the process, because Paddle does not
convert Gloo's exceptions there. After the backward pass, Python gets the exception. The averages have the
same bits as DataParallel's, because they are computed over the same buckets.
"""

from collections.abc import Callable, Sequence

import paddle
from paddle.distributed import fleet

from plsc.distributed import paddle_internals
from plsc.distributed.collectives import all_reduce, broadcast, world_size
from plsc.distributed.device import on_device

# Sizes in bytes, as in DataParallel. The parameters whose gradients come last share the smaller bucket.
_LAST_BUCKET = 1 << 20
_BUCKET = 25 << 20


def data_parallel(
    layer: paddle.nn.Layer, recomputed: bool = False
) -> tuple[paddle.nn.Layer, Callable[[], object]]:
    """Copy rank 0's parameters and buffers to every rank. Every rank calls it.

    Args:
        layer: the network.
        recomputed: whether the backward pass runs layers again. DataParallel's hooks would then fail.

    Returns two callables. The first, `model`, runs the forward pass. The second, `average`, averages the
    gradients over the ranks after the backward pass. Every rank calls both. On devices, DataParallel averages
    during the backward pass, and `average` does nothing, unless layers are recomputed.
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
    """Average one bucket's gradients with one all_reduce. A missing gradient counts as zeros."""
    grads = [p.grad if p.grad is not None else paddle.zeros(p.shape, p.dtype) for p in parameters]
    bucket = paddle.concat([grad.reshape([-1]) for grad in grads])
    all_reduce(bucket.scale_(1 / world_size()))
    parts = bucket.split([grad.size for grad in grads])
    for parameter, grad, part in zip(parameters, grads, parts):
        if parameter.grad is not None or part.any():
            paddle.assign(part.reshape(parameter.shape), output=grad)
            parameter.grad = grad
