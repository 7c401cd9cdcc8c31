"""Read a tensor file of Paddle's static graphs (fluid.io.save_vars, save_persistables) without Paddle.

All little-endian: uint32 0, uint64 number of levels of sequence lengths, each as uint64 size and bytes;
uint32 0, int32 size of a protobuf message with the field 1 dtype and the fields 2 dims, and the numbers, raw.
Source: Paddle's SerializeToStream and TensorToStream, VarType.TensorDesc in framework.proto. Try it:

    load_tensor("dist@arcface@rank@00000.w_0")  # a numpy array
"""

from __future__ import annotations

import math
import os
import struct
from typing import BinaryIO

import numpy as np

from plsc.utils.files import open_regular
from plsc.utils.safe_pickle import user_errors

# VarType.Type -> dtype. BF16's bits come as uint16, as in plsc/checkpoint/tensorfile.py.
_DTYPES = {0: "?", 1: "<i2", 2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8", 20: "u1", 21: "i1", 22: "<u2"}
_MOST_BYTES = 4096  # of the message, which has some ten
_MOST_LEVELS = 16


def load_tensor(path: str) -> np.ndarray:
    """Read the tensor in the file. Raises MissingFileError, and UserError for a damaged or other file."""
    with user_errors(path, "tensor file of Paddle"), open_regular(path) as file:
        dtype, shape = _header(file)
        left = os.fstat(file.fileno()).st_size - file.tell()
        size = math.prod(shape) * dtype.itemsize
        if left != size:
            raise ValueError(f"{dtype} {list(shape)} has {size} bytes, there are {left}")
        return np.fromfile(file, dtype).reshape(shape)


def _header(file: BinaryIO) -> tuple[np.dtype, tuple[int, ...]]:
    version, levels = _read(file, "<IQ")
    if version != 0 or levels > _MOST_LEVELS:
        raise ValueError("it does not begin as one")
    for _ in range(levels):
        file.seek(*_read(file, "<Q"), os.SEEK_CUR)
    version, size = _read(file, "<Ii")
    if version != 0 or not 0 < size <= _MOST_BYTES:
        raise ValueError("its header has no end")
    message = file.read(size)
    kinds, dims, at = [], [], 0
    while at < size:
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag == 0x08:
            kinds.append(value)
        elif tag == 0x10:
            dims.append(value)
        elif tag == 0x12:  # the same numbers packed; `value` is their length
            stop = at + value
            while at < stop:
                value, at = _varint(message, at)
                dims.append(value)
        else:
            raise ValueError(f"its header has an unknown field {tag}")
    if len(kinds) != 1 or kinds[0] not in _DTYPES or len(dims) > 32:
        raise ValueError("its header has no dtype that is known")
    return np.dtype(_DTYPES[kinds[0]]), tuple(dims)


def _read(file: BinaryIO, code: str) -> tuple[int, ...]:
    data = file.read(struct.calcsize(code))
    if len(data) != struct.calcsize(code):
        raise ValueError("it is cut off")
    return struct.unpack(code, data)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read protobuf's number at `at`; return it and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("its header is cut off")
