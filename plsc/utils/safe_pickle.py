"""Read pickles from outside (verification packs, .pdparams of PLSC) without running code from them.

A pickle is a program. Here it may build numbers, text, bytes, lists, tuples, dicts and numeric numpy arrays
only; anything else is refused by name. All protocols are read, and strings of Python 2, which become str
(latin-1: `text.encode("latin-1")` gives the bytes). Try it:

    load_pickle("lfw.bin")  # ([bytes, ...], [True, ...])
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import math
import mmap
import pickle
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import numpy as np

from plsc.errors import UserError, reading, shown
from plsc.utils.atomic_write import atomic_write
from plsc.utils.files import open_regular

MOST_LEVELS = 64  # of lists in lists; the state of an optimizer has five
_MOST_COPIES = 8  # times the file's size: bytes given to calls in all, since they may copy them
_LONGEST_NAME = 80  # characters of a name from the file that a message quotes
_NUMERIC = re.compile(r"[biufc]\d{1,2}|bool|\?")
_DAMAGE = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError),
    struct.error,
)
_EXHAUSTION = (MemoryError, OverflowError, RecursionError)


class Refused(Exception):
    """A pickle asks for something that is not allowed."""


class _Dtype:
    """Replaces numpy.dtype, whose own __setstate__ would accept any flags from a file."""

    def __init__(self, code: str, align: bool = False, copy: bool = False):
        if not _NUMERIC.fullmatch(code):
            raise Refused(f"an array of numpy type '{_quoted(code)}', which is no number")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder({">": ">"}.get(state[1], "<"))


class _Array(np.ndarray):
    """An array that takes its shape and numbers from a pickle, and its type from a _Dtype.

    It takes a state only once: a second one would free the memory of the first, which views may still use.
    """

    def __setstate__(self, state: tuple) -> None:
        version, shape, kind, fortran, data = state
        if not self.flags.writeable or type(kind) is not _Dtype or type(data) not in (bytes, str):
            raise ValueError("an array that is not made of one shape, type and text of bytes")
        _check_shape(shape, kind.dtype, len(data))
        super().__setstate__((int(version), shape, kind.dtype, bool(fortran), data))
        self.flags.writeable = False


def _check_shape(shape: tuple, dtype: np.dtype, size: int) -> None:
    sound = type(shape) is tuple and len(shape) <= 32 and all(type(n) is int and n >= 0 for n in shape)
    # numpy allocates for zeros in a shape as if they were ones.
    if not sound or math.prod(max(n, 1) for n in shape) * dtype.itemsize > max(size, 4096):
        raise ValueError("an array whose shape is not that of its numbers")


def _reconstruct(subtype: object, shape: tuple, code: bytes) -> _Array:
    return np.ndarray.__new__(_Array, (0,), "b")  # of no size: shape and numbers follow as its state


def _bytes_of(data: object) -> bytes:
    """Return bytes that nothing else can change or free: never a view of an array."""
    if type(data) not in (bytes, bytearray, str):
        raise ValueError("numbers that are not given as bytes")
    return data.encode("latin-1") if isinstance(data, str) else bytes(data)


def _frombuffer(data: bytes, kind: _Dtype, shape: tuple, order: str, axes: None = None) -> np.ndarray:
    return np.frombuffer(_bytes_of(data), kind.dtype).reshape(shape, order=order)


def _scalar(kind: _Dtype, data: bytes | str) -> np.generic:
    return np.frombuffer(_bytes_of(data), kind.dtype, 1)[0]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise Refused(f"the codec {_quoted(encoding)}")
    return codecs.encode(text, "latin-1")


def _empty() -> bytes:
    return b""  # protocols 0 to 2 write it as bytes(); bytes(2**40) would be something else


def _named(expression: str, names: dict | None = None) -> object:
    """Replaces eval: Paddle's static graphs pickle a tensor as eval("data", {"data": array})."""
    if expression != "data" or type(names) is not dict or list(names) != ["data"]:
        raise Refused("builtins.eval")
    if not isinstance(names["data"], np.ndarray):
        raise Refused("builtins.eval of what is no array")
    return names["data"]


def ordered_dict() -> collections.OrderedDict:
    """Replaces OrderedDict, which would take any keys."""
    return collections.OrderedDict()


def _quoted(name: object) -> str:
    return shown(str(name)[:_LONGEST_NAME])


_MULTIARRAY = {"_reconstruct": _reconstruct, "scalar": _scalar}
_ALLOWED = {
    **{
        f"{core}.multiarray.{name}": ours
        for core in ("numpy.core", "numpy._core")
        for name, ours in _MULTIARRAY.items()
    },
    **{f"{core}.numeric._frombuffer": _frombuffer for core in ("numpy.core", "numpy._core")},
    "numpy.ndarray": "numpy.ndarray",  # only ever handed to _reconstruct, so it need not be callable
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _empty,
    "builtins.eval": _named,
    "__builtin__.eval": _named,
    "builtins.tuple": tuple,
    "__builtin__.tuple": tuple,
    "collections.OrderedDict": ordered_dict,
}
_NEVER_WRITTEN = (
    *(pickle.DUP, pickle.POP_MARK, pickle.OBJ, pickle.INST, pickle.NEWOBJ, pickle.NEWOBJ_EX),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


class Unpickler(pickle._Unpickler):
    """Builds only what `allowed` lists by full name, and calls what builds it.

    Python's own Unpickler in Python: the one in C keeps a list of as many memo entries as a file says.
    """

    allowed = _ALLOWED
    dispatch: ClassVar[dict] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _NEVER_WRITTEN
    }

    def __init__(self, file: BinaryIO, size: int):
        super().__init__(file, encoding="latin1")
        self._unpaid = _MOST_COPIES * size + 2**20

    def find_class(self, module: str, name: str) -> object:
        try:
            return self.allowed[f"{module}.{name}"]
        except KeyError:
            raise Refused(_quoted(f"{module}.{name}")) from None

    def persistent_load(self, pid: object) -> object:
        raise Refused("a persistent object")

    def load(self) -> object:
        """Return the value of the file. Raises Refused, and what its damage raises."""
        value = super().load()
        _refuse_deep(value)
        return value

    def _pay(self, parts: object) -> None:
        if not isinstance(parts, (tuple, list)):
            raise Refused("a call without arguments")
        sized = (str, bytes, bytearray, tuple, list, dict)
        self._unpaid -= sum(len(part) for part in parts if isinstance(part, sized))
        if self._unpaid < 0:
            raise Refused(f"copies of more than {_MOST_COPIES} times its own size")

    def load_reduce(self) -> None:
        self._pay(self.stack[-1])
        super().load_reduce()

    def load_build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        if isinstance(value, (_Dtype, _Array)):
            self._pay(state)
            value.__setstate__(state)
        elif not isinstance(value, collections.OrderedDict):  # torch's have attributes, which nobody needs
            raise Refused("a change of what is finished")

    def load_setitem(self) -> None:
        _refuse_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _refuse_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _refuse_keys(self.stack[::2])
        super().load_dict()

    dispatch |= {
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
    }


def _refuse_keys(keys: list) -> None:
    """Refuse tuples as keys: hashing one visits all that is in it, as often as it is there."""
    if not all(isinstance(key, (str, bytes, int, float, type(None))) for key in keys):
        raise Refused("a dict by keys that are no text and no numbers")


def _refuse_deep(value: object) -> None:
    """Refuse lists in lists, or dicts, of more than MOST_LEVELS levels, also those that hold themselves."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        inside = {}
        for each in level:
            if isinstance(each, (list, tuple, dict)):
                parts = each.values() if isinstance(each, dict) else each
                inside.update((id(part), part) for part in parts)
        level = [*inside.values()]
        if not level:
            return
    raise Refused(f"values nested more than {MOST_LEVELS} levels deep")


def load_pickle(path: str) -> object:
    """Return the value in a pickle file, of the types that this module allows.

    Raises MissingFileError, and UserError for a file that is damaged or no pickle, or asks for anything else.
    """
    with (
        user_errors(path, "pickle"),
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return Unpickler(data, len(data)).load()


@contextlib.contextmanager
def user_errors(path: str, what: str) -> Iterator[None]:
    """Turn errors of reading `path`, which should be a `what`, into a UserError of one line."""
    with reading(path):
        try:
            yield
        except Refused as error:
            raise UserError(
                f"{shown(path)}: refused: the file asks for {error}; nothing of it was run"
            ) from None
        except (*_DAMAGE, *_EXHAUSTION) as error:
            detail = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"{shown(path)}: is no {what}, or is damaged or cut off ({_quoted(detail)}); fetch it again"
            ) from error


def save_pickle(path: str, value: object) -> None:
    """Write lists, tuples, bytes, bools, numbers and arrays as a pickle (protocol 4), beside `path` and
    renamed."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        pickle.dump(value, file, protocol=4)
