"""Call oneDNN, which Paddle's wheel contains, through its C interface.

    images, weights, maps = describe((8, 3, 32, 32)), describe((16, 3, 3, 3)), describe((8, 16, 30, 30))
    sides = [pair(1), pair(0), pair(0), pair(0)]  # strides, dilations, paddings
    settings = [FORWARD_TRAINING, CONVOLUTION, images, weights, None, maps, *sides]
    convolve = Operation("convolution_forward", settings, [SRC, WEIGHTS, DST])
    convolve(images_address, weights_address, maps_address)

Nothing is linked. The library is the one that Paddle has loaded, so it runs on Paddle's threads. The values
and functions below are the same in oneDNN 3.2 (Paddle 2.6) and 3.6 (Paddle 3.3). Their source is
include/oneapi/dnnl/dnnl_types.h and dnnl.h of oneDNN. Arrays are float32 or bfloat16, on the CPU.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p

import numpy as np

from plsc.native import paddle_library

# dnnl_prop_kind_t
FORWARD_TRAINING = 64
BACKWARD = 128
# dnnl_alg_kind_t
CONVOLUTION = 0x1
RELU_OF_OUTPUT = 0x100
AVERAGE_POOLING = 0x3FF  # averages only the pixels inside the image, not the padding
LINEAR = 0x26
CLIP_OF_OUTPUT = 0x106  # dnnl_eltwise_clip_v2_use_dst_for_bwd
ADD = 0x1FFF0
MULTIPLY = 0x1FFF1
SOFTMAX = 0x30000  # dnnl_softmax_accurate
USE_SCALE, USE_SHIFT = 2, 4
# DNNL_ARG_*
SRC = 1
SRC_1 = 2
DST = 17
WEIGHTS = 33
BIAS = 41
MEAN = 49
VARIANCE = 50
SCALE = 51
SHIFT = 52
DIFF_SRC = 129
DIFF_DST = 145
DIFF_WEIGHTS = 161
DIFF_BIAS = 169
DIFF_SCALE = 255
DIFF_SHIFT = 256
POST_OP = 0x8000  # DNNL_ARG_ATTR_MULTIPLE_POST_OP(0): with SRC_1
# dnnl_data_type_t
BFLOAT16 = 2
FLOAT32 = 3

_ANY = 1  # dnnl_format_tag_any
_CPU = 1  # dnnl_cpu
_IN_ORDER = 1  # dnnl_stream_in_order
_SCRATCHPAD = 80  # DNNL_ARG_SCRATCHPAD
_BY_CALLER = 1  # dnnl_scratchpad_mode_user: the library's own scratchpad belongs to one thread
_NAME = 8  # dnnl_query_impl_info_str
_OF_ARGUMENT = 255  # dnnl_query_exec_arg_md
_LINE = 64  # bytes in a cache line
# dnnl_cpu_isa_avx512_core_bf16 and dnnl_cpu_isa_avx512_core_amx. Each later instruction set includes their
# bits.
_AVX512_BF16 = 0xE7
_AMX = 0xFEF


class _Argument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = [("number", c_int), ("memory", c_void_p)]


class _Library:
    """The functions of oneDNN, an engine and a stream.

    Args:
        functions: the loaded library.
        threads: returns Paddle's OpenMP thread count.
    """

    def __init__(self, functions: ctypes.CDLL, threads: Callable[[], int]):
        self.functions = functions
        self.threads = threads
        functions.dnnl_memory_set_data_handle.argtypes = [c_void_p, c_void_p]
        functions.dnnl_primitive_execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        functions.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
        functions.dnnl_primitive_desc_query_md.restype = c_void_p
        functions.dnnl_memory_desc_get_size.argtypes = [c_void_p]
        functions.dnnl_memory_desc_get_size.restype = c_size_t
        functions.dnnl_memory_desc_equal.argtypes = [c_void_p, c_void_p]
        self.engine = c_void_p()
        self.stream = c_void_p()
        functions.dnnl_post_ops_append_eltwise.argtypes = [c_void_p, c_int, c_float, c_float]
        functions.dnnl_post_ops_append_binary.argtypes = [c_void_p, c_int, c_void_p]
        self.call("engine_create", byref(self.engine), _CPU, c_size_t(0))
        self.call("stream_create", byref(self.stream), self.engine, _IN_ORDER)

    def call(self, name: str, *arguments) -> None:
        status = getattr(self.functions, f"dnnl_{name}")(*arguments)
        assert status == 0, f"oneDNN: {name} returned {status}"


class _OfThread(threading.local):
    """One thread's operations and buffers.

    An operation writes to its own memory objects, so two threads must not share one.
    """

    def __init__(self):
        self.kept: dict[Hashable, object] = {}
        self.buffers: dict[Hashable, np.ndarray] = {}


_thread = _OfThread()


@functools.cache
def library() -> _Library | None:
    """Load oneDNN. Return None if this build of Paddle does not contain it."""
    functions = paddle_library("libdnnl.so.3")
    openmp = paddle_library("libiomp5.so")
    return _Library(functions, openmp.omp_get_max_threads) if functions and openmp else None


def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 numbers with this processor's instructions.

    The environment variable ONEDNN_MAX_CPU_ISA limits the instructions that oneDNN uses.
    """
    return _has(_AVX512_BF16)


def has_amx() -> bool:
    """Return whether oneDNN multiplies bfloat16 numbers with AMX. See `has_bfloat16`."""
    return _has(_AMX)


@functools.cache
def _has(instructions: int) -> bool:
    onednn = library()
    return onednn is not None and onednn.functions.dnnl_get_effective_cpu_isa() & instructions == instructions


@functools.cache
def describe(
    shape: tuple[int, ...], strides: tuple[int, ...] | None = None, dtype: int = FLOAT32
) -> c_void_p:
    """Return an array's descriptor.

    Args:
        shape: the array's shape.
        strides: in elements, not bytes. None stands for C order.
        dtype: FLOAT32 or BFLOAT16.
    """
    if strides is None:
        strides = tuple(np.cumprod((1, *shape[:0:-1]))[::-1].tolist())
    return _described("memory_desc_create_with_strides", shape, dtype, (c_int64 * len(shape))(*strides))


@functools.cache
def describe_any(shape: tuple[int, ...], dtype: int = FLOAT32) -> c_void_p:
    """Return the descriptor for an array whose layout oneDNN chooses, the best one for its operation."""
    return _described("memory_desc_create_with_tag", shape, dtype, _ANY)


def _described(function: str, shape: tuple[int, ...], dtype: int, layout) -> c_void_p:
    descriptor = c_void_p()
    library().call(function, byref(descriptor), len(shape), (c_int64 * len(shape))(*shape), dtype, layout)
    return descriptor


def channels_last(shape: Sequence[int], dtype: int = FLOAT32) -> c_void_p:
    """Return the descriptor for an array that is stored as [N, H, W, C]. shape: (N, H, W, C)."""
    samples, height, width, channels = shape
    return describe(
        (samples, channels, height, width), (height * width * channels, 1, width * channels, channels), dtype
    )


def pair(*numbers: int) -> ctypes.Array:
    """Return numbers for height and width as dnnl_dims_t. A single number is used for both."""
    return (c_int64 * 2)(numbers[0], numbers[-1])


class Operation:
    """Runs an operation on the arrays whose addresses it is called with. Cache it with `kept`.

    Args:
        name: the operation is made by the function dnnl_{name}_primitive_desc_create.
        settings: arguments to that function between the engine and the attributes.
        arguments: the arrays' DNNL_ARG_* numbers, in the addresses' order in a call.
        post_ops: steps that are applied to each result before it is stored. A step is
            ("eltwise", algorithm, alpha, beta) or ("binary", algorithm, descriptor). If a binary step comes
            first, its array is the argument POST_OP | SRC_1.
        avoid: name prefix of oneDNN implementations that must not be used.
    """

    def __init__(
        self,
        name: str,
        settings: Sequence,
        arguments: Sequence[int],
        post_ops: Sequence[tuple] = (),
        avoid: str | None = None,
    ):
        onednn = library()
        self._free = onednn.functions
        self._memories = []
        self._primitive = c_void_p()
        self.descriptor = c_void_p()
        if name == "reorder":  # only this function takes an engine for each array
            settings = [settings[0], onednn.engine, settings[1], onednn.engine]
        else:
            settings = [onednn.engine, *settings]
        chain = c_void_p()
        attributes = c_void_p()
        onednn.call("post_ops_create", byref(chain))
        for kind, *numbers in post_ops:
            onednn.call(f"post_ops_append_{kind}", chain, *numbers)
        onednn.call("primitive_attr_create", byref(attributes))
        onednn.call("primitive_attr_set_post_ops", attributes, chain)
        onednn.call("primitive_attr_set_scratchpad_mode", attributes, _BY_CALLER)
        onednn.call(f"{name}_primitive_desc_create", byref(self.descriptor), *settings, attributes)
        onednn.call("primitive_attr_destroy", attributes)
        onednn.call("post_ops_destroy", chain)
        while avoid and self._implementation().startswith(avoid):
            onednn.call("primitive_desc_next_impl", self.descriptor)
        onednn.call("primitive_create", byref(self._primitive), self.descriptor)
        self._scratch = self.size(_SCRATCHPAD)
        numbers = [*arguments, _SCRATCHPAD] if self._scratch else arguments
        for number in numbers:
            memory = c_void_p()
            onednn.call("memory_create", byref(memory), self.layout(number), onednn.engine, None)
            self._memories.append(memory)
        array = (_Argument * len(numbers))(*map(_Argument, numbers, self._memories))
        self._set = onednn.functions.dnnl_memory_set_data_handle
        self._execute = onednn.functions.dnnl_primitive_execute
        self._call = (self._primitive, onednn.stream, len(numbers), array)

    def _implementation(self) -> str:
        name = c_char_p()
        library().call("primitive_desc_query", self.descriptor, _NAME, 0, byref(name))
        return name.value.decode()

    def layout(self, argument: int) -> c_void_p:
        """Return the descriptor for an array in the layout that the operation uses.

        The descriptor lives as long as the operation.
        """
        query = library().functions.dnnl_primitive_desc_query_md
        return c_void_p(query(self.descriptor, _OF_ARGUMENT, argument))

    def size(self, argument: int) -> int:
        """Return an array's size in bytes."""
        return library().functions.dnnl_memory_desc_get_size(self.layout(argument))

    def __call__(self, *addresses: int) -> None:
        if self._scratch:
            addresses = (*addresses, buffer(self._scratch, _SCRATCHPAD))
        assert len(addresses) == len(self._memories)
        for memory, address in zip(self._memories, addresses):
            self._set(memory, address)
        status = self._execute(*self._call)
        assert status == 0, f"oneDNN: execute returned {status}"

    def __del__(self):
        for memory in self._memories:
            self._free.dnnl_memory_destroy(memory)
        self._free.dnnl_primitive_destroy(self._primitive)
        self._free.dnnl_primitive_desc_destroy(self.descriptor)


def same(one: c_void_p, other: c_void_p) -> bool:
    """Return whether two descriptors describe the same array."""
    return bool(library().functions.dnnl_memory_desc_equal(one, other))


def kept(make: Callable) -> Callable:
    """Cache a function's results.

    The key is its arguments, the thread, and Paddle's thread count.
    """

    @functools.wraps(make)
    def get(*arguments: Hashable):
        key = (make, library().threads(), *arguments)
        made = _thread.kept.get(key)
        if made is None:
            made = _thread.kept[key] = make(*arguments)
        return made

    return get


def buffer(size: int, purpose: Hashable) -> int:
    """Return the address of `size` bytes in this thread's memory, aligned to a cache line.

    The next call with the same purpose may reuse them.
    """
    array = _thread.buffers.get(purpose)
    if array is None or array.nbytes < size + _LINE:
        array = _thread.buffers[purpose] = np.empty(size + _LINE, np.uint8)
    return -(-array.ctypes.data // _LINE) * _LINE
