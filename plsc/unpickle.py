"""Pickles from outside (verification packs, .pdparams of PLSC), read without running anything that they ask for.

A pickle is a program. Here it may build numbers, text, bytes, lists, tuples, dicts and numeric numpy arrays, and nothing
else; what asks for more is refused by name. All protocols, and the strings of Python 2, which come back as str (latin-1:
`text.encode("latin-1")` gives the bytes). Try it:

    load_pickle("lfw.bin")  # ([bytes, ...], [True, ...])
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from plsc.atomic_write import atomic_write
from plsc.errors import MissingFileError, UserError

_NUMERIC = re.compile(r"[biufc]\d{1,2}|bool|\?")
_DAMAGE = (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError)
_EXHAUSTION = (MemoryError, OverflowError, RecursionError)


class Refused(Exception):
    """The file asks for something that it may not have."""


class _Dtype:
    """Stands in for numpy.dtype, whose own __setstate__ would believe any flags that a file gives it."""

    def __init__(self, code: str, align: bool = False, copy: bool = False):
        if not _NUMERIC.fullmatch(code):
            raise Refused(f"an array of numpy type '{code}', which is no number")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder({">": ">"}.get(state[1], "<"))


class _Array(np.ndarray):
    """An array that takes its shape and numbers from a pickle, its type from a _Dtype."""

    def __setstate__(self, state: tuple) -> None:
        version, shape, kind, fortran, data = state
        super().__setstate__((version, shape, kind.dtype, fortran, data))


def _reconstruct(subtype: type, shape: tuple, code: bytes) -> _Array:
    return np.ndarray.__new__(_Array, (0,), "b")  # of no size: shape and numbers follow as its state


def _frombuffer(data: bytes, kind: _Dtype, shape: tuple, order: str, axes: None = None) -> np.ndarray:
    return np.frombuffer(data, kind.dtype).reshape(shape, order=order)


def _scalar(kind: _Dtype, data: bytes | str) -> np.generic:
    return np.frombuffer(data.encode("latin-1") if isinstance(data, str) else data, kind.dtype, 1)[0]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise Refused(f"the codec {encoding}")
    return codecs.encode(text, "latin-1")


def _empty() -> bytes:
    return b""  # protocols 0 to 2 write it as bytes(); bytes(2**40) would be something else


def _named(expression: str, names: dict | None = None) -> object:
    """Stands in for eval, by whose name Paddle's static graphs pickle a tensor: eval("data", {"data": array})."""
    if expression != "data" or type(names) is not dict or list(names) != ["data"]:
        raise Refused("builtins.eval")
    return names["data"]


_MULTIARRAY = {"_reconstruct": _reconstruct, "scalar": _scalar}
_ALLOWED = {
    **{
        f"{core}.multiarray.{name}": ours
        for core in ("numpy.core", "numpy._core")
        for name, ours in _MULTIARRAY.items()
    },
    **{f"{core}.numeric._frombuffer": _frombuffer for core in ("numpy.core", "numpy._core")},
    "numpy.ndarray": _Array,  # only ever handed to _reconstruct
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _empty,
    "builtins.eval": _named,
    "__builtin__.eval": _named,
    "builtins.tuple": tuple,
    "__builtin__.tuple": tuple,
    "collections.OrderedDict": collections.OrderedDict,
}


class Unpickler(pickle.Unpickler):
    """Builds what stands in `allowed`, by full name."""

    allowed = _ALLOWED

    def find_class(self, module: str, name: str) -> object:
        try:
            return self.allowed[f"{module}.{name}"]
        except KeyError:
            raise Refused(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> object:
        raise Refused("a persistent object")

    def load_checked(self, file: BinaryIO) -> object:
        """What `file`, the one that this was made with, holds."""
        _check_memo(file)
        file.seek(0)
        return self.load()


def load_pickle(path: str) -> object:
    """What a pickle file holds: see the module.

    Raises MissingFileError, and UserError for a file that is damaged or no pickle, or asks for anything else.
    """
    with errors_told(path, "pickle"), open(path, "rb") as file:
        return Unpickler(file, encoding="latin1").load_checked(file)


@contextlib.contextmanager
def errors_told(path: str, what: str) -> Iterator[None]:
    """Turns what goes wrong with reading `path`, that should be a `what`, into a UserError of one line."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except Refused as error:
        raise UserError(f"{path}: refused: the file asks for {error}; nothing of it was run") from None
    except (*_DAMAGE, *_EXHAUSTION) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{path}: is no {what}, or is damaged or cut off ({said[:80]}); fetch it again"
        ) from error


def _check_memo(file: BinaryIO) -> None:
    """Refuse numbers of the memo that are not counted up: Python would allocate up to 2^32 entries for one of them."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > count:
            raise Refused(f"memo entry {argument} at its operation {count}")


def save_pickle(path: str, value: object) -> None:
    """Write lists, tuples, bytes, bools, numbers and arrays as a pickle (protocol 4), beside `path` and renamed."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        pickle.dump(value, file, protocol=4)
