"""Compute on any device that Paddle lists: choose it, move arrays to it, wait for it, read its memory.

No other module names a device's place, stream or library; what is known of each kind is a table in kinds.py.
It calls no collective. A device works through a queue, behind the host. Whatever reads a value of it, or
copies to it from pageable memory, waits until the queue is empty. A CPU has no queue.

    kinds()                              # ("gpu",), ("npu",), or () where Paddle has a CPU alone
    decide("auto", [why_none("gpu")])    # "cpu" or "gpu"
    to_device(np.arange(3))              # a tensor there
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import paddle

from plsc.distributed.kernel_tables import ANY, BLACK_LIST, KernelTable, listed
from plsc.distributed.kinds import AS_KIND, AUTO, CPU, GPU, XPU, describe, kind_of, not_in_force
from plsc.errors import UserError
from plsc.utils.kernels import turned_off
from plsc.utils.logging import warn
from plsc.utils.measure import reset_resident_peak, resident_bytes
from plsc.utils.tensors import tensor_of

# Flags of Paddle's GPU builds; other builds have none of them.
_DETERMINISTIC = {
    "FLAGS_cudnn_deterministic": True,  # convolutions and pooling by algorithms without atomic additions
    "FLAGS_embedding_deterministic": 1,  # likewise the gradients of paddle.nn.Embedding
}
# The least compute capability of GPUs, below which Paddle's autocast does nothing but warn, and the first of
# them.
_CAPABLE = {"float16": ((7, 0), "V100"), "bfloat16": ((8, 0), "A100")}
_NO_KERNEL = re.compile(r"kernel `(\w+)` is not registered|registered in the (\w+) operator")
_NO_COLLECTIVE = re.compile(r"(CCL\w+) is not implemented on")
# Paddle 2.6 tells the memory of GPUs alone.
_memory = paddle.device if hasattr(paddle.device, "memory_allocated") else paddle.device.cuda


def kinds() -> tuple[str, ...]:
    """Return the kinds of devices besides the CPU that this Paddle can compute on, plug-ins first, as its
    launcher has them."""
    built = [GPU] if paddle.is_compiled_with_cuda() else []
    built += [XPU] if paddle.is_compiled_with_xpu() else []
    return (*paddle.device.get_all_custom_device_type(), *built)


def count(kind: str) -> int:
    """Return how many cards of a kind this process sees."""
    if kind not in kinds():
        return 0
    if kind == GPU:
        return paddle.device.cuda.device_count()
    if kind == XPU:
        return paddle.base.core.get_xpu_device_count()
    return paddle.base.core.get_custom_device_count(kind)


def kind_for(device: str) -> str:
    """Return the kind that is meant: of "auto" the first that Paddle has, and the CPU where it has none."""
    return next(iter(kinds()), CPU) if device == AUTO else kind_of(device)


def selected(kind: str) -> int:
    """Return the number of the card that Paddle's launcher gave this rank; 0 without a launcher."""
    return int(os.environ.get(f"FLAGS_selected_{kind}s", "0").split(",")[0])


def why_none(device: str, ranks: int = 1) -> str:
    """Say why this rank cannot compute on a device; "" if it can.

    Args:
        device: a kind, "gpu:1" or "auto". ranks: of the launch.
    """
    kind = kind_for(device)
    if kind == CPU:
        return "" if device == CPU else "this Paddle computes on CPUs alone"
    has = kinds()
    if kind not in has:
        found = f"has {' and '.join(has)}" if has else "computes on CPUs alone"
        return f"this Paddle {found} (install {describe(kind).wheel})"
    if ranks > 1 and kind != has[0]:
        return f"a launch of several ranks takes {has[0]}, the first kind that this Paddle has"
    _, named, card = device.partition(":")
    if named and ranks > 1:
        return f"that is one card, and this is a run of {ranks} ranks (Global.device={kind} gives each rank its own)"
    number = int(card) if named else selected(kind)
    cards = count(kind)
    if number < cards:
        return ""
    variable = describe(kind).visible
    hidden = f" with {variable}={os.environ[variable]}" if variable in os.environ else ""
    if cards == 0:
        return f"Paddle has {kind}, but sees no card{hidden}"
    shown = "1 visible card" if cards == 1 else f"{cards} visible cards"
    return f"there {'is' if cards == 1 else 'are'} {shown} of {kind}{hidden}, and this rank would take number {number}"


def decide(device: str, lacks: Sequence[str]) -> str:
    """Choose the kind of device for all ranks alike.

    Args:
        device: as Global.device; of "auto" the first kind that Paddle has, if there are cards.
        lacks: why a rank cannot have it, "" if it can, by rank.

    Raises UserError, the same on all ranks, if only some can, or if a kind was asked for that one cannot
    have.
    """
    without = [rank for rank, why in enumerate(lacks) if why]
    if device == CPU or (device == AUTO and len(without) == len(lacks)):
        return CPU
    if not without:
        return kind_for(device)
    whose = "" if len(lacks) == 1 else f"rank {without[0]}: "
    others = f" (likewise {len(without) - 1} more of {len(lacks)} ranks)" if len(without) > 1 else ""
    raise UserError(
        f"Global.device: {device}, but {whose}{lacks[without[0]]}{others}; give each rank a card, or set "
        "Global.device=cpu"
    )


def use(kind: str, device: str = AUTO, ranks: int = 1) -> None:
    """Compute on a kind of device from here on; in a launch of several ranks on cards, Paddle picks each
    rank's own.

    Raises UserError if Paddle was imported without the settings of the kind.
    """
    if lacking := not_in_force(kind):
        shown = " ".join(f"{name}={value}" for name, value in lacking.items())
        raise UserError(
            f"Global.device: {device} is {kind}, but Paddle was imported without its settings; put {shown} into the "
            f"environment, or load a config with Global.device={kind} before Paddle is imported"
        )
    if kind == CPU:
        paddle.set_device(CPU)
    elif ranks == 1:
        paddle.set_device(device if ":" in device else f"{kind}:{selected(kind)}")


def backend_variables(kind: str) -> dict[str, str]:
    """Return the environment by which Paddle takes the collectives of a kind: else those of the first that it
    has."""
    if kind == CPU:
        return {"PADDLE_DISTRI_BACKEND": "gloo"}
    if kind in (GPU, XPU):
        return {}
    return {
        "PADDLE_DISTRI_BACKEND": "xccl",
        "PADDLE_XCCL_BACKEND": kind,
        f"FLAGS_selected_{kind}s": str(selected(kind)),
    }


def kind_in_use() -> str:
    """Return the kind of device that Paddle computes on now."""
    return kind_of(paddle.get_device())


def on_device() -> bool:
    """Say whether Paddle computes on something else than the CPU."""
    return kind_in_use() != CPU


def asynchronous() -> bool:
    """Say whether the host would wait to read a value of the device: on every one but CPUs, and with
    PLSC_KERNELS=0.

    With the kernels turned off a CPU takes the devices' way in everything, so that it can be tested and
    counted there.
    """
    return turned_off() or on_device()


def lacks(operator: str) -> bool:
    """Say whether the kind in use has no kernel for a float32 operator in its vendor's sources, so that
    others do its work.

    Where the sources are not known, nothing is lacking.
    """
    return _lacks(os.environ.get(AS_KIND) or kind_in_use(), operator)


@functools.cache
def _lacks(kind: str, operator: str) -> bool:
    table = listed(kind)
    return table is not None and table.lacks(operator, "float32")


def registered(kind: str) -> KernelTable:
    """Return the kernels that this Paddle and its plug-in have for a kind, without those that the environment
    turns off."""
    off = os.environ.get(BLACK_LIST, "").split(",")
    kernels: dict[str, set[str]] = {}
    for operator, keys in paddle.base.core._get_registered_phi_kernels("all").items():
        for backend, layout, dtype in (key.strip("()").split(", ") for key in keys):
            if backend.lower() in (kind, "custom") and layout != "STRIDED" and operator not in off:
                kernels.setdefault(operator, set()).add(ANY if dtype == "Undefined" else dtype)
    return KernelTable(f"Paddle {paddle.__version__} with its {kind}", kernels)


def name() -> str:
    """Return the name of the device that Paddle computes on, as its driver gives it; else its kind."""
    kind = kind_in_use()
    if kind == CPU:
        return "CPU"
    return paddle.device.cuda.get_device_name() if kind == GPU else kind


def finish() -> None:
    """Wait until the device has finished its work, to measure time; a CPU always has."""
    if on_device():
        paddle.device.synchronize()


def why_no_autocast(dtype: str) -> str:
    """Say why the device in use cannot compute a network in mixed precision of a dtype; "" if it can. Not for
    a CPU."""
    kind = kind_in_use()
    if kind == GPU:
        (major, minor), first = _CAPABLE[dtype]
        has = tuple(paddle.device.cuda.get_device_capability())
        if has >= (major, minor):
            return ""
        return f"needs a GPU of compute capability {major}.{minor} ({first}) or later, this one has {has[0]}.{has[1]}"
    one = paddle.ones([1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Paddle warns of a dtype that it does not know there, and computes in float32
        with paddle.amp.auto_cast(dtype=dtype):
            mixes = paddle.matmul(one, one).dtype != paddle.float32
    return "" if mixes else f"is none that Paddle's autocast has for {kind}"


def set_precision(kind: str, tf32: bool, deterministic: bool) -> None:
    """Set whether float32 products are computed in TensorFloat-32, and whether algorithms are deterministic.

    Call it before the first computation. Only GPUs have such settings: a CPU computes in float32, and repeats
    its bits with the same threads; what other kinds do is their plug-ins' choice.
    """
    if kind != GPU:
        if kind != CPU and deterministic:
            warn(f"Global.deterministic: Paddle has no such setting for {kind}; see its plug-in's documents")
        return
    core = paddle.base.core
    core.set_cublas_switch(tf32)
    core.set_cudnn_switch(tf32)
    if not deterministic:
        return
    # cuBLAS reads it when it starts. Without a workspace of its own for each stream it may change algorithms.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    known = set(core.globals().keys())
    paddle.set_flags({flag: value for flag, value in _DETERMINISTIC.items() if flag in known})
    if missing := [flag for flag in _DETERMINISTIC if flag not in known]:
        warn(
            f"Global.deterministic: this Paddle has no {', '.join(missing)}; what they make deterministic is as it is"
        )


def used_bytes() -> int:
    """Read the memory that is in use now: of the device's tensors, on a CPU of this process."""
    return _memory.memory_allocated() if on_device() else resident_bytes()


def peak_bytes() -> int:
    """Read the most memory that was in use since `reset_peak`; see `used_bytes`."""
    return _memory.max_memory_allocated() if on_device() else resident_bytes("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the present value. On a device Paddle 2.6 cannot: there it stays that of the whole
    process."""
    if not on_device():
        reset_resident_peak()
    elif hasattr(_memory, "reset_max_memory_allocated"):
        _memory.reset_max_memory_allocated()


def total_bytes() -> int | None:
    """Return the memory of the card in use; None where Paddle cannot tell."""
    if kind_in_use() != GPU:
        return None
    return paddle.device.cuda.get_device_properties().total_memory


@contextlib.contextmanager
def explained(remedy: str) -> Iterator[None]:
    """Raise UserError in place of what Paddle raises inside the block for want of a device's memory, kernel
    or collective.

    remedy: for want of memory. A plug-in's failed call says no more than that it failed: it is one for memory
    if as much as is in use cannot be had again.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not on_device() or not (why := _wanting(error, remedy)):
            raise
        raise UserError(f"{kind_in_use()}: {why}") from error


def _wanting(error: Exception, remedy: str) -> str:
    """Say what a device lacks by an error of Paddle's; "" if it is another one."""
    if found := _NO_KERNEL.search(str(error)):
        return (
            f"there is no kernel for the operator {found[1] or found[2]}, nor one of the CPU that Paddle may take; take a newer "
            "plug-in, or let FLAGS_enable_api_kernel_fallback=1 copy what the CPU can compute"
        )
    if found := _NO_COLLECTIVE.search(str(error)):
        return f"its plug-in has no {found[1]}, which several ranks need; take a newer one, one card, or Global.device=cpu"
    if isinstance(error, MemoryError) or _cannot_double(error):
        return f"its memory is used up ({used_bytes() / 2**20:,.1f} MB by tensors); {remedy}"
    return ""


def _cannot_double(error: Exception) -> bool:
    if "CustomDevice error" not in str(error):
        return False
    try:
        paddle.empty([max(used_bytes(), 2**20)], "uint8")
    except OSError:
        return True
    return False


def _pinned_place() -> object | None:
    """Return the place of memory that a copy to the device is queued from; None where Paddle has no such
    place."""
    return paddle.CUDAPinnedPlace() if kind_in_use() == GPU else None


_in_flight: deque[tuple[paddle.device.Event, paddle.Tensor]] = (
    deque()
)  # sources of copies, which must live until these are done


def to_device(array: np.ndarray) -> paddle.Tensor:
    """Copy an array to the current device as a tensor of the same shape and dtype, without gradient.

    The copy is queued. The array itself may be changed at once.
    """
    if kind_in_use() == CPU:
        return tensor_of(array)
    pinned_place = _pinned_place()
    source = tensor_of(array, pinned_place or paddle.CPUPlace())
    tensor = source._copy_to(paddle.framework._current_expected_place(), False)
    if pinned_place is None:  # of pinned memory Paddle itself keeps the source
        while _in_flight and _in_flight[0][0].query():
            _in_flight.popleft()
        event = paddle.device.Event()
        event.record()
        _in_flight.append((event, source))
    return tensor


def to_host(tensor: paddle.Tensor) -> np.ndarray:
    """Read a tensor's numbers: the host waits once, until the device has done all that was queued."""
    return tensor._copy_to(paddle.CPUPlace(), True).numpy()


class Sender:
    """Copies large arrays to the device, one a step, on a stream of its own beside the work of the step
    before.

    Where there is no pinned memory, on plug-ins, it is `to_device`. On CPUs an array is passed on as it is.
    """

    BUFFERS = 2  # of one shape: one is filled while the work of the step before uses the other

    def __init__(self):
        self._buffers: dict[tuple, deque[_Buffer]] = {}
        self._pinned_place = _pinned_place()
        self._stream = None if self._pinned_place is None else paddle.device.Stream()
        self._queued = None  # event: what was queued when the last array was sent

    def send(self, array: np.ndarray) -> np.ndarray | paddle.Tensor:
        """Return the numbers on the device, where they are overwritten by the second call after this one.

        The array itself may be changed at once. Work that uses the result has to be queued before the next
        call.
        """
        if not asynchronous():
            return array
        if self._stream is None:
            return to_device(array)
        buffers = self._buffers.setdefault((array.shape, array.dtype.name), deque())
        if len(buffers) < self.BUFFERS:
            buffers.append(_Buffer(array, self._stream, self._pinned_place))
        else:
            buffers.rotate(-1)
        buffer = buffers[-1]
        buffer.fill(array)
        if self._queued is not None:
            self._stream.wait_event(self._queued)  # the last use of this buffer was queued before
        with paddle.device.stream_guard(self._stream):
            buffer.on_device.copy_(buffer.on_host, False)
        buffer.copied.record(self._stream)
        paddle.device.current_stream().wait_event(buffer.copied)
        self._queued = paddle.device.Event()
        self._queued.record()
        return buffer.on_device


class _Buffer:
    """Memory for one array on the device and pinned memory, and the event of the last copy between them."""

    def __init__(self, array: np.ndarray, stream: paddle.device.Stream, pinned_place: object):
        self.on_device = paddle.empty(array.shape, array.dtype.name)
        self._place = pinned_place
        self.on_host = tensor_of(array, pinned_place)
        self.copied = paddle.device.Event()
        # What is queued may still use this memory, for the tensor that had it before.
        stream.wait_stream(paddle.device.current_stream())

    def fill(self, array: np.ndarray) -> None:
        """Write the pinned memory, when the copy of two steps ago is done: by then it is."""
        self.copied.synchronize()
        self.on_host.get_tensor().set(array, self._place)
