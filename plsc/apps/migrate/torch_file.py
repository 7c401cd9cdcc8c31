"""Read PyTorch's weights files (.pt and .pth, a state dict that torch.save wrote) without PyTorch.

Such a file is an uncompressed zip archive. `data.pkl` pickles the dict, in which a tensor is a call to
torch._utils._rebuild_tensor_v2 with a storage. `data/KEY` contains a storage's raw little-endian numbers. The
pickle may use tensors, storages and OrderedDict. Anything else is refused by name, as in
plsc/utils/safe_pickle.py. Try it:

    load_torch("backbone.pt")["fc.weight"]  # a numpy array
"""

import collections
import io
import math
import zipfile
from typing import ClassVar

import numpy as np

from plsc.utils.files import open_regular
from plsc.utils.safe_pickle import Refused, Unpickler, user_errors

# BFloat16's bits are read as uint16, as in plsc/checkpoint/tensorfile.py.
STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip


def _rebuild_tensor(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_: object) -> np.ndarray:
    """Return a read-only view into the storage, so that any number of tensors takes no memory.

    Args:
        storage: [S], the numbers.
        offset: where the tensor's first number is in the storage.
        shape: the tensor's shape.
        strides: step along each axis, in numbers.

    Raises ValueError if the numbers are not whole and non-negative, or if the tensor exceeds its storage.
    """
    numbers = (offset, *shape, *strides)
    if not all(type(number) is int and number >= 0 for number in numbers) or len(shape) != len(strides):
        raise ValueError("a tensor whose shape is not of whole numbers")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if math.prod(shape) > storage.size or (math.prod(shape) and last >= storage.size):
        raise ValueError("a tensor that is larger than its storage")
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)


class _TorchUnpickler(Unpickler):
    allowed: ClassVar[dict] = {
        **{f"torch.{name}": np.dtype(code) for name, code in STORAGES.items()},
        "collections.OrderedDict": collections.OrderedDict,
        "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    }

    def __init__(self, pickled: bytes, archive: zipfile.ZipFile, folder: str):
        super().__init__(io.BytesIO(pickled))
        self._archive = archive
        self._folder = folder
        self._storages: dict[str, bytes] = {}

    def persistent_load(self, pid: tuple) -> np.ndarray:
        """Return a storage's array. The archive is uncompressed, as torch.save writes it.

        Raises Refused if the persistent object is not a storage.
        """
        word, kind, key, *_ = pid
        if word != "storage" or not isinstance(kind, np.dtype) or type(key) is not str:
            raise Refused("a persistent object")
        if key not in self._storages:
            self._storages[key] = self._archive.read(f"{self._folder}data/{key}")
        return np.frombuffer(self._storages[key], kind)


def load_torch(path: str) -> object:
    """Read a torch.save file. It may contain tensors, dicts, lists and numbers.

    Returns its content, with tensors as read-only numpy arrays.

    Raises MissingFileError if there is no such file, and UserError if it is damaged or needs anything except
    tensors.
    """
    with (
        user_errors(path, "file of torch.save"),
        open_regular(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        (pickled,) = [
            name for name in archive.namelist() if name.endswith("data.pkl") and name.count("/") < 2
        ]
        return _TorchUnpickler(archive.read(pickled), archive, pickled[: -len("data.pkl")]).load()
