"""Make tensors that never change, once on each device, to save launches. Nothing may write to them."""

import functools

import paddle


def count_up(count: int) -> paddle.Tensor:
    """Return 0 to count - 1, int64."""
    return _count_up(count, paddle.get_device())


def filled(shape: list[int], number: float) -> paddle.Tensor:
    """Return a float32 tensor with one number. Its shape [] makes it a scalar."""
    return _filled(tuple(shape), number, paddle.get_device())


def whole(number: int) -> paddle.Tensor:
    """Return an int64 tensor [1], to compute with int64 tensors: Paddle 2.6 rounds a Python int to float32
    there, which is exact up to 2**24 only."""
    return paddle.full([1], number, "int64")


@functools.lru_cache(maxsize=16)
def _count_up(count: int, device: str) -> paddle.Tensor:
    return paddle.arange(count)


@functools.lru_cache(maxsize=64)
def _filled(shape: tuple[int, ...], number: float, device: str) -> paddle.Tensor:
    return paddle.full(list(shape), number, "float32")
