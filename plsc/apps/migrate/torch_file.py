"""Read PyTorch's files of weights (`torch.save` of a state dict, .pt and .pth) without PyTorch.

Such a file is an uncompressed zip archive of `data.pkl`, a pickle of the dict in which a tensor is a call of
torch._utils._rebuild_tensor_v2 on a storage, and `data/KEY` with each storage's numbers, raw and
little-endian. The pickle may use tensors, storages and OrderedDict; anything else is refused by name, as in
plsc/utils/safe_pickle.py. Try it:

    load_torch("backbone.pt")["fc.weight"]  # a numpy array
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import NamedTuple

import numpy as np

from plsc.utils.files import open_regular
from plsc.utils.safe_pickle import Refused, Unpickler, ordered_dict, user_errors

# Times the file's size: bytes of all tensors together, since copying them takes as much memory.
_MOST_VIEWS = 16

# BFloat16's bits come as uint16, as in plsc/checkpoint/tensorfile.py.
STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip


class _Kind(NamedTuple):
    """Replaces a class of torch storages."""

    dtype: np.dtype


def _rebuild_tensor(
    storage: np.ndarray,
    offset: int,
    shape: tuple,
    strides: tuple,
    requires_grad: bool,
    hooks: object,
    meta=None,
) -> np.ndarray:
    """Return a view of the storage, so that any number of tensors takes no memory."""
    if not isinstance(storage, np.ndarray) or type(shape) is not tuple or type(strides) is not tuple:
        raise ValueError("a tensor without a storage")
    if len(shape) != len(strides) or len(shape) > 32:
        raise ValueError("a tensor without a storage")
    if not all(type(number) is int and number >= 0 for number in (offset, *shape, *strides)):
        raise ValueError("a tensor whose shape is not of whole numbers")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if math.prod(shape) > storage.size or (math.prod(shape) and last >= storage.size):
        raise ValueError("a tensor that is larger than its storage")
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)


_ALLOWED = {
    **{f"torch.{name}": _Kind(np.dtype(code)) for name, code in STORAGES.items()},
    "collections.OrderedDict": ordered_dict,
}


class _TorchUnpickler(Unpickler):
    allowed = _ALLOWED

    def __init__(self, file: io.BytesIO, archive: zipfile.ZipFile, folder: str, size: int):
        super().__init__(file, len(file.getbuffer()))
        self.archive = archive
        self.folder = folder
        self.storages: dict[tuple, np.ndarray] = {}
        self.allowed = {**_ALLOWED, "torch._utils._rebuild_tensor_v2": self._rebuild}
        self.unread = (
            size  # bytes still to read: entries of an archive may overlap, but must not exceed it in all
        )
        self.unviewed = _MOST_VIEWS * size + 2**20

    def _rebuild(self, *args: object) -> np.ndarray:
        tensor = _rebuild_tensor(*args)
        self.unviewed -= tensor.nbytes
        if self.unviewed < 0:
            raise Refused(f"tensors of more than {_MOST_VIEWS} times its own size")
        return tensor

    def persistent_load(self, pid: tuple) -> np.ndarray:
        word, kind, key, _, size = pid
        if word != "storage" or not isinstance(kind, _Kind) or type(key) is not str:
            raise Refused("a persistent object")
        if (kind, key) not in self.storages:
            data = _stored(self.archive, f"{self.folder}data/{key}", self.unread)
            self.unread -= len(data)
            if len(data) != size * kind.dtype.itemsize:
                raise ValueError(f"storage {key} has {len(data)} bytes")
            self.storages[kind, key] = np.frombuffer(data, kind.dtype)
        return self.storages[kind, key]


def _stored(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed, which torch.save never does")
    if archive.getinfo(name).file_size > most:
        raise ValueError(f"{name} and what else it has are larger than the file")
    return archive.read(name)


def load_torch(path: str) -> object:
    """Read what torch.save wrote: tensors as read-only numpy arrays, dicts, lists and numbers.

    Raises MissingFileError, and UserError for a file that is damaged, or asks for anything but tensors.
    """
    with user_errors(path, "file of torch.save"), open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _load(archive, os.fstat(file.fileno()).st_size)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # RuntimeError: encrypted
            raise ValueError(str(error)) from error


def _load(archive: zipfile.ZipFile, size: int) -> object:
    (pickled,) = [name for name in archive.namelist() if name.endswith("data.pkl") and name.count("/") < 2]
    folder = pickled[: -len("data.pkl")]
    order = f"{folder}byteorder"
    if order in archive.namelist() and _stored(archive, order, size) != b"little":
        raise ValueError("its numbers are big-endian")
    file = io.BytesIO(_stored(archive, pickled, size))
    return _TorchUnpickler(file, archive, folder, size).load()
