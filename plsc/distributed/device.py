"""Choose the device that this rank computes on, and copy arrays to it.

A device can be of any kind that Paddle supports. No other module names a kind's place or library. This module
calls no collective. A device executes a queue of operations while the host continues. If the host reads a
value, or copies from pageable memory to the device, it waits until the queue is empty. A CPU has no queue.

    kinds()                              # ("gpu",), ("npu",), or () where Paddle has a CPU alone
    decide("auto", [why_none("gpu")])    # "cpu" or "gpu"
    to_device(np.arange(3))              # a tensor there
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import paddle

from plsc.distributed import paddle_internals
from plsc.distributed.environment import AUTO, CPU, GPU, rank_from_env
from plsc.errors import UserError
from plsc.native import turned_off

XPU = "xpu"


def kinds() -> tuple[str, ...]:
    """Return the device kinds, except the CPU, that this Paddle can compute on. Plug-ins come first, as in
    Paddle's launcher."""
    built = [GPU] if paddle.is_compiled_with_cuda() else []
    built += [XPU] if paddle.is_compiled_with_xpu() else []
    return (*paddle.device.get_all_custom_device_type(), *built)


def count(kind: str) -> int:
    """Return how many cards with this kind the process sees."""
    if kind not in kinds():
        return 0
    if kind == GPU:
        return paddle.device.cuda.device_count()
    return paddle_internals.count_cards(kind)


def _kind_for(device: str) -> str:
    return next(iter(kinds()), CPU) if device == AUTO else device.partition(":")[0]


def _selected(kind: str) -> int:
    """Return this rank's card number. Paddle's launcher sets it. Without that, it is the rank's number.

    A rank that our launcher started sees only its own GPU.
    """
    own = 0 if kind == GPU else rank_from_env()
    return int(os.environ.get(f"FLAGS_selected_{kind}s", str(own)).split(",")[0])


def why_none(device: str, ranks: int = 1) -> str:
    """Explain why this rank cannot compute on a device. Return "" if it can.

    Args:
        device: a kind, a card such as "gpu:1", or "auto".
        ranks: world size.
    """
    kind = _kind_for(device)
    if kind == CPU:
        return "" if device == CPU else "this Paddle computes on CPUs only"
    has = kinds()
    if kind not in has:
        found = f"has {' and '.join(has)}" if has else "computes on CPUs only"
        wheel = "paddlepaddle-gpu" if kind == GPU else f"Paddle's wheel or plug-in for {kind}"
        return f"this Paddle {found} (install {wheel})"
    if ranks > 1 and kind != has[0]:
        return f"a launch with several ranks uses {has[0]}, the first kind that this Paddle has"
    _, named, card = device.partition(":")
    if named and ranks > 1:
        return f"that is one card, and the run has {ranks} ranks (Global.device={kind} gives each its own)"
    number, cards = int(card) if named else _selected(kind), count(kind)
    lacks = f"Paddle has {kind} and sees {cards} cards, but this rank needs number {number}"
    return "" if number < cards else lacks


def decide(device: str, lacks: Sequence[str]) -> str:
    """Choose the device kind for all ranks.

    Args:
        device: value of Global.device. "auto" chooses the first kind that Paddle supports, if there are
            cards.
        lacks: for each rank, why it cannot use the device, or "" if it can.

    Raises the same UserError on all ranks if `device` is "auto" and only some ranks can use the kind, or if a
    rank cannot use the kind that `device` names.
    """
    without = [rank for rank, why in enumerate(lacks) if why]
    if device == CPU or (device == AUTO and len(without) == len(lacks)):
        return CPU
    if not without:
        return _kind_for(device)
    whose = "" if len(lacks) == 1 else f"rank {without[0]}: "
    raise UserError(
        f"{device}, but {whose}{lacks[without[0]]}; give each rank a card, or set Global.device=cpu",
        key="Global.device",
    )


def use(kind: str, device: str = AUTO, ranks: int = 1) -> None:
    """Compute on a device kind from now on. If several ranks compute on cards, Paddle chooses each rank's
    card."""
    if kind not in (CPU, GPU):
        # Operators that would return strided views return copies: a plug-in has no kernel `contiguous`.
        paddle.set_flags({"FLAGS_use_stride_kernel": False})
    if kind == CPU:
        paddle.set_device(CPU)
    elif ranks == 1:
        paddle.set_device(device if ":" in device else f"{kind}:{_selected(kind)}")


def backend_variables(kind: str) -> dict[str, str]:
    """Return the environment variables that make Paddle use a kind's collectives. Without them, Paddle would
    use those for the first kind that it supports."""
    if kind == CPU:
        return {"PADDLE_DISTRI_BACKEND": "gloo"}
    card = {f"FLAGS_selected_{kind}s": str(_selected(kind))}
    if kind in (GPU, XPU):
        return card
    return {"PADDLE_DISTRI_BACKEND": "xccl", "PADDLE_XCCL_BACKEND": kind, **card}


def _kind_in_use() -> str:
    return paddle.get_device().partition(":")[0]


def on_device() -> bool:
    """Return whether Paddle computes on a device other than the CPU."""
    return _kind_in_use() != CPU


def takes_device_path() -> bool:
    """Return whether the code for devices runs. It runs on every device except CPUs, and on CPUs with
    PLSC_KERNELS=0.

    This code avoids reads for which the host would wait. Tests run it on CPUs without the kernels.
    """
    return turned_off() or on_device()


@contextlib.contextmanager
def explained(remedy: str) -> Iterator[None]:
    """Raise UserError with the remedy if the device's memory is used up inside the block."""
    try:
        yield
    except MemoryError as error:
        if not on_device():
            raise
        raise UserError(f"{_kind_in_use()}: its memory is used up; {remedy}") from error


def tensor_of(array: np.ndarray, place: object = None) -> paddle.Tensor:
    """Copy an array to a tensor with the same shape and dtype, without gradient.

    `paddle.to_tensor` is faster for more than a megabyte, but Paddle 3.3 never frees 112 bytes per call. A
    head would lose a gigabyte in a million steps.

    Args:
        array: array to copy.
        place: one of Paddle's places. None means the current device.
    """
    tensor = paddle.empty(array.shape, array.dtype.name)
    tensor.get_tensor().set(array, place or paddle_internals.current_place())
    return tensor


# The sources for queued copies. They must live until the copies are done.
_in_flight: deque[tuple[paddle.device.Event, paddle.Tensor]] = deque()


def to_device(array: np.ndarray) -> paddle.Tensor:
    """Copy an array to a tensor on the current device, with the same shape and dtype, without gradient.

    The copy is queued. The caller may change the array immediately.
    """
    kind = _kind_in_use()
    if kind == CPU:
        return tensor_of(array)
    pinned = kind == GPU  # Paddle itself keeps such a copy's source alive
    source = tensor_of(array, paddle.CUDAPinnedPlace() if pinned else paddle.CPUPlace())
    tensor = paddle_internals.copy_to(source, paddle_internals.current_place(), wait=False)
    if not pinned:
        while _in_flight and _in_flight[0][0].query():
            _in_flight.popleft()
        event = paddle.device.Event()
        event.record()
        _in_flight.append((event, source))
    return tensor


def to_host(tensor: paddle.Tensor) -> np.ndarray:
    """Read a tensor's numbers. The host waits until the device has executed its whole queue."""
    return paddle_internals.copy_to(tensor, paddle.CPUPlace(), wait=True).numpy()
