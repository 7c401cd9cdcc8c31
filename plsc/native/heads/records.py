"""Read, write, pack and unpack an offloaded bank's stored rows ("records"), by kernels.

A record contains one row from each array side by side, as float32 or as bfloat16 bits (uint16). Numbers
are rounded to bfloat16 at random. An update is usually smaller than bfloat16's step (1/128 to 1/256 of the
value), so rounding to the nearest would lose most updates. The probability to round up equals the part of
the step that is cut off, so updates are preserved on average. The random numbers are a function of (seed,
step, class, column). A resumed run, or a run with another world size, therefore rounds in the same way.

These kernels run without Python's lock, mostly in one thread while the backbone computes. PLSC_KERNELS=0 does
not turn them off. Try it: `pytest tests/native/heads/test_records.py`.
"""

import os
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import numpy as np

from plsc.native import address, compiled, optional_address

_GOLDEN = 0x9E3779B97F4A7C15


def read_records(file: int, rows: np.ndarray, out: np.ndarray) -> None:
    """Read records from an open file.

    Args:
        file: file descriptor.
        rows: record numbers, int64 [k].
        out: [k, width], where the records are written.

    Raises EOFError if the file ends too early, and OSError if it cannot be read.
    """
    _raise(compiled().plsc_read_records(file, *_records(rows, out)))


def write_records(file: int, rows: np.ndarray, records: np.ndarray) -> None:
    """Write records to an open file.

    Args:
        file: file descriptor.
        rows: record numbers, int64 [k].
        records: the records, [k, width].

    Raises OSError if the file cannot be written.
    """
    _raise(compiled().plsc_write_records(file, *_records(rows, records)))


def rounding_keys(seed: int, step: int, classes: np.ndarray) -> np.ndarray:
    """Return a random key for each class in a run's step: uint32 [k].

    The key and the column determine the random number that rounds a number of the class. The keys
    come from splitmix64's finaliser.

    Args:
        seed: the run's seed.
        step: training step.
        classes: int64 [k].
    """
    key = classes.astype(np.uint64) * np.uint64(_GOLDEN)
    key += np.uint64((step * 0xD1342543DE82EF95 + seed * 0xA0761D6478BD642F) % 2**64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (key >> np.uint64(32)).astype(np.uint32)


def pack(arrays: Sequence[np.ndarray], slots: np.ndarray, keys: np.ndarray | None) -> np.ndarray:
    """Pack rows from several arrays into records [k, sum of widths].

    Args:
        arrays: float32, [., n] or [.].
        slots: row numbers in each array, int64 [k].
        keys: the rows' `rounding_keys`, uint32 [k], to round to bfloat16. None keeps float32.
    """
    widths = _widths(arrays)
    records = np.empty((len(slots), sum(widths)), np.float32 if keys is None else np.uint16)
    given = optional_address(keys, "uint32", slots.shape)
    compiled().plsc_pack(*_arguments(arrays, widths, slots), len(slots), given, records.ctypes.data)
    return records


def unpack(records: np.ndarray, arrays: Sequence[np.ndarray], slots: np.ndarray) -> None:
    """Unpack records into rows of several arrays.

    Args:
        records: float32, or bfloat16 bits as uint16, [k, sum of widths].
        arrays: float32, [., n] or [.].
        slots: row numbers in each array, int64 [k].
    """
    widths = _widths(arrays)
    is_half = records.dtype == np.uint16
    packed = address(records, "uint16" if is_half else "float32", (len(slots), sum(widths)))
    compiled().plsc_unpack(packed, is_half, len(slots), *_arguments(arrays, widths, slots))


def _widths(arrays: Sequence[np.ndarray]) -> list[int]:
    return [array.shape[1] if array.ndim == 2 else 1 for array in arrays]


def _arguments(arrays: Sequence[np.ndarray], widths: list[int], slots: np.ndarray) -> tuple:
    """Return the kernels' arguments for the arrays' rows `slots`.

    Asserts the conditions that numpy would check. Without them a kernel would read or write other memory.
    """
    addresses = [address(array) for array in arrays]
    at_slots = address(slots, "int64", [len(slots)])
    assert all(array.ndim in (1, 2) for array in arrays)
    assert not len(slots) or (slots.min() >= 0 and slots.max() < min(map(len, arrays)))
    count = len(arrays)
    return (c_void_p * count)(*addresses), (c_int64 * count)(*widths), count, at_slots


def _records(rows: np.ndarray, records: np.ndarray) -> tuple[int, int, int, int]:
    """Return the kernels' arguments for records [k, width] and their numbers `rows`: the address of the
    numbers, k, the size of a record in bytes, and the address of the records.

    Asserts that a kernel will read and write no other memory.
    """
    count, width = records.shape
    at_rows = address(rows, "int64", [count])
    return at_rows, count, width * records.itemsize, address(records, str(records.dtype))


def _raise(code: int) -> None:
    if code < 0:
        raise EOFError
    if code:
        raise OSError(code, os.strerror(code))
