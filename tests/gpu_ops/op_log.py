"""Record what a process asks of its device: the kernels that Paddle launches, and where the host waits for
them.

On a GPU each kernel is a launch, and each value that Python reads is a wait until all launched kernels are
done. Paddle executes the same ops on a CPU, so both are counted there, exactly and on any machine.

Kernels: Paddle's C++ side logs each kernel that it selects, with dtypes, and each op's inputs and outputs,
with shapes, in Python's calls and in autograd's. The log goes to standard error, which `record` keeps in a
file. Left
out is what launches nothing: views (Paddle's strided kernels) and memory without values (`empty`). An op
counts as one kernel, though some launch several on a GPU (a reduction, a sort).
Bytes: all inputs and outputs of an op, except that of a table from which rows are taken, or into which they
are put, only as many bytes count as these rows have.
Waits: the methods of Tensor by which Python reads a value, copies from pageable memory, and ops whose
output's shape depends on values. Copies by `plsc.distributed.device` wait for nothing on a GPU.

Try it, in a process that was started with `environment()`:

    quiet()
    with record(Path("log")) as recorder:
        recorder.enter("here")
        float(paddle.ones([2]).sum())
    parse(Path("log").read_text())  # Op full, Op sum, Wait Tensor.__float__
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import plsc

PACKAGE = Path(plsc.__file__).resolve().parent
_DEVICE = str(PACKAGE / "distributed" / "device.py")
_MARK = "@@@@ "
# Files of Paddle whose log says which kernels run, on what: forward, backward, and copies of views.
_FILES = ("*_functions", "*_function", "*_func", "*nodes", "*_node", "*api*", "utils", "data_transform")

_READS = ("numpy", "item", "tolist", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__")
_READS += ("__str__", "__repr__", "__contains__", "__nonzero__", "__long__", "__hex__")
_COPIES = ("set_value", "copy_")
# Ops that wait for a number of elements, or that are made of a list of the host.
_WAITING_OPS = {"nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "where_index"}
_WAITING_OPS |= {"assign_value", "assign_value_", "repeat_interleave_with_tensor_index"}
_NO_LAUNCH = {"empty", "empty_like", "shape", "share_data", "view_shape", "view_dtype", "data"}
# Rows are taken from the first input or put into it; the table itself is not read as a whole.
_FROM_TABLE = {"index_elementwise_get", "gather", "gather_nd", "index_select", "take_along_axis", "embedding"}
_INTO_TABLE = {"scatter", "index_put", "put_along_axis", "scatter_nd_add", "index_add"}
_OVERWRITE = {"scatter"}  # rows of the table are not read

_ITEMSIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2}
_ITEMSIZES |= {"int32": 4, "float32": 4, "int64": 8, "float64": 8, "complex64": 8, "complex128": 16}


@dataclass(frozen=True)
class Op:
    """A kernel that was launched: its name and dtype in Paddle's registry, the part of the step and the line
    of plsc that asked for it, and the bytes of its inputs and outputs."""

    name: str
    dtype: str
    part: str
    line: str
    bytes: int = 0


@dataclass(frozen=True)
class Wait:
    """A wait of the host for the device: what waited, in which part of the step and which line of plsc."""

    name: str
    part: str
    line: str


def environment(sizes: bool = True) -> dict[str, str]:
    """Return what a process must have in its environment from its start. sizes: whether the log has shapes,
    too."""
    files = _FILES if sizes else ("*api*",)
    return {
        "PLSC_KERNELS": "0",  # the way of GPUs
        "GLOG_minloglevel": "0",
        "GLOG_vmodule": ",".join(f"{name}=6" for name in files),
    }


def quiet() -> None:
    """Send Paddle's log nowhere until `record`, and Python's errors where they went before."""
    assert os.environ.items() >= {**environment(), "GLOG_vmodule": os.environ["GLOG_vmodule"]}.items()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)


@contextlib.contextmanager
def record(target: Path, lines: bool = True) -> Iterator[Recorder]:
    """Record the block into the file, which `parse` reads. One at a time, in the main thread. lines: whether
    those of plsc are noted, too, which is slow."""
    before = os.dup(2)
    with open(target, "wb") as file:
        os.dup2(file.fileno(), 2)
    recorder = Recorder()
    try:
        with recorder.patched(lines):
            yield recorder
    finally:
        os.dup2(before, 2)
        os.close(before)


class Recorder:
    """Writes into Paddle's log what Paddle does not: parts, lines of plsc, waits, and ops of many tensors."""

    def __init__(self):
        self._inside = False  # of a method that waits: those that it calls are no further waits

    def enter(self, part: str) -> None:
        """Note that the part `part` of a step begins, or goes on."""
        _write("part", part)

    @contextlib.contextmanager
    def patched(self, lines: bool) -> Iterator[None]:
        """Patch what is to be noted, for the block."""
        import paddle
        from paddle import _C_ops

        from plsc.heads import blocks
        from plsc.training import verdict

        undo = []

        def patch(owner: Any, name: str, wrapped: Any) -> None:
            if hasattr(owner, name):
                undo.append((owner, name, getattr(owner, name)))
                setattr(owner, name, wrapped(getattr(owner, name), name))

        dense = type(paddle.empty([1]).get_tensor())
        for name in (*_READS, *_COPIES):
            patch(paddle.Tensor, name, self._waiting)
        patch(dense, "set", self._waiting)
        patch(dense, "__array__", self._waiting)
        patch(paddle, "to_tensor", self._waiting)
        patch(paddle.device, "synchronize", self._waiting)
        patch(verdict, "to_host", self._waiting)
        for name in dir(_C_ops):
            if callable(getattr(_C_ops, name)) and not name.startswith("_"):
                patch(_C_ops, name, _with_lists)
        patch(blocks, "product_of_16_bits", _as_on_a_gpu)
        previous = sys.gettrace()
        if lines:
            sys.settrace(_trace)
        try:
            yield
        finally:
            sys.settrace(previous)
            for owner, name, original in reversed(undo):
                setattr(owner, name, original)

    def _waiting(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            if self._inside or _asynchronous(sys._getframe(1)):
                return function(*args, **kwargs)
            _write("wait", name)
            self._inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False

        return wrapped


def _write(*words: Any) -> None:
    os.write(2, f"{_MARK}{' '.join(map(str, words))}\n".encode())


def _asynchronous(frame: FrameType | None) -> bool:
    """Say whether the module that moves arrays without a wait is among the callers up to the next of plsc."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path == _DEVICE:
            return True
        if path.startswith(str(PACKAGE)) and not path.endswith("tensors.py") and path != __file__:
            return False
        frame = frame.f_back
    return False


def _trace(frame: FrameType, event: str, _: Any) -> Any:
    """Note each line of plsc that runs: kernels that are logged after it are its own."""
    path = frame.f_code.co_filename
    if not path.startswith(str(PACKAGE)) or path == __file__:
        return None
    if event == "return":  # the rest of the caller's line
        frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return _trace
    if event != "call":
        _write("line", f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_lineno}")
    return _trace


def _with_lists(function: Any, name: str) -> Any:
    """Wrap an op: note the bytes of calls with lists of tensors, which Paddle's log may cut off."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        out = function(*args, **kwargs)
        into_table = name.rstrip("_") in _INTO_TABLE
        if not into_table and any(
            isinstance(arg, list) and arg and hasattr(arg[0], "get_tensor") for arg in args
        ):
            _write("lists", sum(map(_size, (*args, *kwargs.values(), out))))
        return out

    return wrapped


def _as_on_a_gpu(function: Any, _: str) -> Any:
    """Wrap a product of 16 bits, which a CPU makes in float32: note a GPU's two kernels instead."""

    @functools.wraps(function)
    def wrapped(a, b, *args):
        _write("instead", "of")
        out = function(a, b, *args)
        dtype = str(a.dtype).partition(".")[2]
        halves = out.size * a.element_size()
        _write(
            "instead",
            f"matmul:{dtype}:{_size(a) + _size(b) + halves}",
            f"cast:{dtype}:{halves + _size(out)}",
        )
        return out

    return wrapped


def _size(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return (
        value.size * value.element_size() if hasattr(value, "get_tensor") and value._is_initialized() else 0
    )


# -- the log
# --------------------------------------------------------------------------------------------------------------

_MESSAGE = re.compile(r"^(?=\t*[IWE]\d{4} \d\d:\d\d:|@@@@ )", re.MULTILINE)
_KERNEL = re.compile(r"\] (\w+) kernel: \{(.*)", re.DOTALL)
_KEY = re.compile(r"\] \w+ API kernel key: \[\w+, [\w()]+, (\w+)\]")
_CALL = re.compile(r"Running[ _]AD[ _]API: (\w+)")
# A tensor in the log of Paddle 2, and of Paddle 3; nested ones are preceded by "Grad: [ ", or indented
# further.
_TENSOR = re.compile(
    r"(?<!Grad: \[ )\{Name: [^{}]*?TensorInfo: \[ Type: DenseTensor, Dtype: (\w+), Place: [^,]*, Shape: ([\d, ]*), DistAttr"
    r"|^\t\tDtype: (\w+),\s+Place: .*\n\t\tShape: ([\d, ]*)",
    re.MULTILINE,
)


def parse(log: str) -> tuple[list[Op], list[Wait]]:
    """Read the ops and waits of a log, in their order."""
    ops: list[Op] = []
    waits: list[Wait] = []
    part = line = ""
    pending: list[Op] = []  # kernels of the op that runs
    noted = 0  # ops before those that stand in for a GPU's
    dtype = ""
    in_place = False
    for text in _MESSAGE.split(log):
        message = text.lstrip("\t")
        # In a backward pass Paddle 3 indents.
        message = message.replace("\n" + "\t" * (len(text) - len(message)), "\n")
        if message.startswith(_MARK):
            kind, _, value = message[len(_MARK) :].partition("\n")[0].partition(" ")
            if kind == "part":
                part = value
            elif kind == "line":
                line = value
            elif kind == "wait":
                waits.append(Wait(value, part, line))
            elif kind == "instead" and value == "of":
                ops += pending
                pending = []
                noted = len(ops)
            elif kind == "instead":
                of_gpu = (each.split(":") for each in value.split())
                ops[noted:] = [Op(name, kind, part, line, int(size)) for name, kind, size in of_gpu]
                pending = []
            elif kind == "lists":
                ops += pending  # of a message that was cut off before its outputs
                pending = []
                ops[-1] = Op(**{**vars(ops[-1]), "bytes": int(value)})
        elif key := _KEY.search(message):
            dtype = key[1]
        elif call := _CALL.search(message):
            in_place = call[1].endswith("_")
        elif kernel := _KERNEL.search(message):
            name = kernel[1]
            if "STRIDED" not in kernel[2] and name not in _NO_LAUNCH:
                pending.append(Op(name, dtype, part, line))
                if name in _WAITING_OPS:
                    waits.append(Wait(name, part, line))
        elif "Trans2Contiguous" in message:
            pending.append(Op("contiguous", dtype, part, line))
        elif "Output: [" in message:
            ops += _sized(pending, *_tensors(message), in_place)
            pending = []
    return ops + pending, waits


def _tensors(message: str) -> tuple[list[int], list[int]]:
    """Read the bytes of each input and each output of an op, without the gradients that hang on them."""
    inputs, outputs = message.split("Output: [", 1)
    return _sizes(inputs), _sizes(outputs)


def _sizes(message: str) -> list[int]:
    tensors = (match.groups() for match in _TENSOR.finditer(message))
    return [
        _ITEMSIZES[old_dtype or dtype] * math.prod(map(int, re.findall(r"\d+", old_shape or shape or "")))
        for old_dtype, old_shape, dtype, shape in tensors
    ]


def _sized(pending: Sequence[Op], inputs: list[int], outputs: list[int], in_place: bool) -> Iterator[Op]:
    """Give an op's bytes to its kernel (the last, if there are several), and to copies of views their own."""
    for number, op in enumerate(pending):
        size = 0
        if op.name == "contiguous":
            size = 2 * max(inputs, default=0)
        elif number == len(pending) - 1 or all(later.name == "contiguous" for later in pending[number + 1 :]):
            size = sum(inputs) + sum(outputs)
            if op.name in _FROM_TABLE:
                size += min(sum(outputs), inputs[0]) - inputs[0]
            elif op.name in _INTO_TABLE and in_place:
                times = 1 if op.name in _OVERWRITE else 2
                size -= inputs[0] + sum(outputs) - times * min(max(inputs[1:]), inputs[0])
        yield Op(**{**vars(op), "bytes": size})
