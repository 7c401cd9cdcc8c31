"""Files as torch.save writes them, made without torch: a zip archive with a pickle and the storages'
bytes."""

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from contextlib import contextmanager

import numpy as np

NAMES = {
    "f4": "FloatStorage",
    "f2": "HalfStorage",
    "f8": "DoubleStorage",
    "u2": "BFloat16Storage",
    "i8": "LongStorage",
}


@contextmanager
def _pretend_torch():
    """Modules whose classes and functions the pickle names, as torch's would be."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in NAMES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))

    def _rebuild_tensor_v2(*args):
        raise AssertionError("is only named")

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        yield torch
    finally:
        del sys.modules["torch"], sys.modules["torch._utils"]


class _Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.args = (storage, offset, shape, strides, False, OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.args


class _Storage:
    def __init__(self, key, kind, size):
        self.key, self.kind, self.size = key, kind, size


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, _Storage):
            return ("storage", getattr(sys.modules["torch"], obj.kind), obj.key, "cpu", obj.size)
        return None


def write_torch(path, arrays, *, wrap=lambda state: state, changed=None):
    """Write name -> array as torch.save writes a state dict. Its storages hold an array each, column by
    column where the array is.

    wrap: state dict -> what is saved. changed: name -> (offset, shape, strides) of a false tensor.
    """
    state, stored = OrderedDict(), []
    with _pretend_torch():
        for key, (name, array) in enumerate(arrays.items()):
            code = array.dtype.str[1:]
            strides = tuple(step // array.itemsize for step in array.strides)
            place = (changed or {}).get(name, (0, array.shape, strides))
            state[name] = _Tensor(_Storage(str(key), NAMES[code], array.size), *place)
            stored.append((f"data/{key}", array.tobytes("A")))
        state._metadata = OrderedDict({"": {"version": 1}})  # as torch's modules add
        file = io.BytesIO()
        _Pickler(file, 2).dump(wrap(state))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in [("data.pkl", file.getvalue()), ("byteorder", b"little"), *stored]:
            archive.writestr(f"weights/{name}", data)
    return str(path)


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
