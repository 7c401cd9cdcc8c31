"""Tensor files as Paddle's save_vars writes them, byte by byte after its SerializeToStream."""

import struct

import numpy as np

CODES = {"f2": 4, "f4": 5, "f8": 6, "i8": 3, "u2": 22}


def varint(number):
    data = b""
    while number > 0x7F:
        data, number = data + bytes([number & 0x7F | 0x80]), number >> 7
    return data + bytes([number])


def tensor_bytes(array, packed=False, levels=()):
    dims = [varint(size) for size in array.shape]
    message = b"\x08" + varint(CODES[array.dtype.str[1:]])
    if packed:
        message += b"\x12" + varint(len(b"".join(dims))) + b"".join(dims)
    else:
        message += b"".join(b"\x10" + size for size in dims)
    lod = b"".join(struct.pack("<Q", len(level)) + level for level in levels)
    head = struct.pack("<IQ", 0, len(levels)) + lod + struct.pack("<Ii", 0, len(message))
    return head + message + np.ascontiguousarray(array).tobytes()
