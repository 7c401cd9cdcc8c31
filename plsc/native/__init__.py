"""Load the compiled C++ kernels for CPUs.

If plsc was installed without a compiler, there are no kernels. `library()` then returns None, and the caller
uses Paddle's operators or numpy. The kernels find their threads and matrix products at run time in the
libraries that Paddle has loaded, since a second OpenMP runtime would compete with the first for the
processors. PLSC_KERNELS=0 in the environment turns the kernels off. Build them in a checkout and try them:

    python setup.py build_ext --inplace && pytest tests/native/heads tests/backbones/test_normalisation.py
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path

import numpy as np

from plsc.utils.logging import get_logger

_MKL = "libmklml_intel.so"
_FILE = Path(__file__).parent / "_native.abi3.so"
# Instruction sets that the loops are compiled for, by their numbers in native.cpp.
LEVELS = ("baseline", "AVX2", "AVX-512")
_VERSION = 19  # of the functions below, equal to that in native.cpp: an outdated library must not be called
_ARGUMENTS = {
    "plsc_setup": [c_void_p] * 5,
    "plsc_instructions": [c_int],
    "plsc_unit_rows": [c_void_p, c_int64, c_int64, c_void_p, c_void_p],
    "plsc_turn_units": [c_void_p] * 3 + [c_int64] * 2 + [c_void_p],
    "plsc_gather": [c_void_p, c_void_p, c_int64, c_int64, c_void_p],
    "plsc_momentum": [c_void_p] * 4 + [c_int64] * 2 + [c_float] * 3 + [c_int],
    "plsc_lars": [c_void_p] * 4 + [c_int64] * 2 + [c_float] * 3,
    "plsc_adamw": [c_void_p] * 5 + [c_int64] * 2 + [c_float] * 8,
    "plsc_pair_products": [c_void_p] * 4 + [c_int64] * 2 + [c_int, c_void_p],
    "plsc_sum_of_squares": [c_void_p, c_int64],
    "plsc_read_records": [c_int, c_void_p, c_int64, c_int64, c_void_p],
    "plsc_write_records": [c_int, c_void_p, c_int64, c_int64, c_void_p],
    "plsc_pack": [c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p],
    "plsc_unpack": [c_void_p, c_int, c_int64, c_void_p, c_void_p, c_int64, c_void_p],
    "plsc_draw_rows": [c_void_p] * 2 + [c_int64] * 3 + [c_void_p, c_int64, c_float, c_int, c_void_p],
    "plsc_softmax_forward": [c_void_p] * 2,
    "plsc_softmax_backward": [c_void_p] * 7,
    "plsc_attention_weights_backward": [c_void_p] + [c_int64] * 2 + [c_void_p],
    "plsc_weight_gradient": [c_void_p, c_int, *[c_void_p] * 3],
    "plsc_squared_distances": [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p],
    "plsc_weighted_sums": [c_void_p, c_int64, *[c_void_p] * 3, c_int64, c_void_p],
    "plsc_norm_forward": [c_int]
    + [c_void_p] * 5
    + [c_int64, c_int, c_int64, c_int64, c_int, c_float, c_float]
    + [c_void_p] * 4,
    "plsc_norm_backward": [c_int]
    + [c_void_p] * 7
    + [c_int64, c_int, c_int64, c_int64, c_int]
    + [c_void_p] * 6,
}


def turned_off() -> bool:
    """Return whether the user has turned the kernels off."""
    return os.environ.get("PLSC_KERNELS") == "0"


def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None if they are turned off or cannot be loaded."""
    return None if turned_off() else compiled()


def build() -> str:
    """Describe the kernels in use by the checksum of their sources: "a build of 6bb54fa7", or "none"."""
    kernels = library()
    if kernels is None:
        return "none"
    sources = getattr(kernels, "plsc_sources", None)
    return f"a build of {sources():08x}" if sources else "an old build"


def multiplies() -> bool:
    """Return whether kernels with matrix products can be called.

    They need a library that only Paddle's wheels for x86-64 contain.
    """
    return library() is not None and paddle_library(_MKL) is not None


def address(array, dtype: str = "float32", shape: Sequence[int] | None = None) -> int:
    """Return an array's or a CPU tensor's address for a kernel.

    Asserts that the array has the type and shape that the kernel expects, and that it is C-contiguous.

    Args:
        array: numpy array, or Paddle tensor on the CPU.
        dtype: expected dtype.
        shape: expected shape, or None if the caller checks it.
    """
    assert array is not None
    assert shape is None or list(array.shape) == list(shape), (array.shape, shape)
    if isinstance(array, np.ndarray):
        assert array.dtype == dtype and array.flags.c_contiguous
        return array.ctypes.data
    # Paddle reports that an empty slice is not contiguous.
    in_order = array.is_contiguous() or array.size == 0
    assert str(array.dtype) == f"paddle.{dtype}" and in_order and array.place.is_cpu_place()
    return array.data_ptr()


def optional_address(array, dtype: str = "float32", shape: Sequence[int] | None = None) -> int | None:
    """Return None for None, else the `address` of the array. The other arguments are those of `address`."""
    return None if array is None else address(array, dtype, shape)


@functools.cache
def paddle_library(name: str) -> ctypes.CDLL | None:
    """Load the library with this file name from Paddle's wheel. Return None if the wheel does not have it.

    If Paddle has loaded it already, this is the same library, since a process loads a file once.
    """
    import paddle

    path = Path(paddle.__file__).parent / "libs" / name
    return ctypes.CDLL(str(path)) if path.exists() else None


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """Load the compiled kernels, even if they are turned off.

    Return None if they cannot be loaded. The reason is logged once.
    """
    try:
        native = ctypes.CDLL(str(_FILE))
        why = "" if native.plsc_version() == _VERSION else "built from other sources; build them again"
    except OSError as error:
        why = str(error) if _FILE.exists() else "not built"
    if why:
        get_logger().info(
            f"kernels: none ({why}); everything runs on Paddle's operators, several times slower on a CPU; "
            "to build them, install plsc again where there is a C++ compiler (g++)"
        )
        return None
    for name, arguments in _ARGUMENTS.items():
        getattr(native, name).argtypes = arguments
    native.plsc_sum_of_squares.restype = c_double
    if hasattr(native, "plsc_sources"):
        native.plsc_sources.restype = c_uint32
    openmp, mkl, onednn = map(paddle_library, ("libiomp5.so", _MKL, "libdnnl.so.3"))
    native.plsc_setup(
        *(_address(openmp, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")),
        _address(mkl, "cblas_sgemm"),
        _address(onednn, "dnnl_gemm_bf16bf16f32"),
    )
    native.plsc_instructions(len(LEVELS) - 1)
    return native


def _address(library: ctypes.CDLL | None, name: str) -> int | None:
    function = getattr(library, name, None) if library else None
    return ctypes.cast(function, c_void_p).value if function else None
