"""Read pickles from outside (verification packs, .pdparams of PLSC) without running code from them.

A pickle is a program. Here it may build numbers, text, bytes, lists, tuples, dicts and numeric numpy arrays
only; anything else is refused by name. Strings of Python 2 become str (latin-1). Try it:

    load_pickle("lfw.bin")  # ([bytes, ...], [True, ...])
"""

from __future__ import annotations

import collections
import contextlib
import pickle
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import numpy as np

from plsc.errors import UserError, reading, shown
from plsc.utils.atomic_write import atomic_write
from plsc.utils.files import open_regular

_LONGEST_NAME = 80  # characters of a name from the file that a message quotes


class Refused(Exception):
    """A pickle asks for something that is not allowed."""


class _Dtype:
    """Stands for numpy.dtype, whose own __setstate__ would accept any flags from a file."""

    def __init__(self, code: str, *_: object):
        self.dtype = np.dtype(code)
        if self.dtype.kind not in "biufc":
            raise Refused(f"an array of numpy type '{_quoted(code)}', which is no number")

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "<")


class _Array(np.ndarray):
    """An array that takes its shape and numbers from a pickle, and its type from a _Dtype.

    Only once: a second state would free the memory of the first, which views may still use.
    """

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, data = state
        if not self.flags.writeable:
            raise Refused("a change of what is finished")
        super().__setstate__((1, shape, kind.dtype, bool(fortran), data))
        self.flags.writeable = False


def _reconstruct(*_: object) -> _Array:
    return np.ndarray.__new__(_Array, (0,), "b")  # shape and numbers follow as its state


def _frombuffer(data: bytes, kind: _Dtype, shape: tuple, order: str, *_: object) -> np.ndarray:
    return np.frombuffer(bytes(memoryview(data)), kind.dtype).reshape(shape, order=order)


def _scalar(kind: _Dtype, data: bytes | str) -> np.generic:
    text = data.encode("latin-1") if isinstance(data, str) else bytes(memoryview(data))
    return np.frombuffer(text, kind.dtype)[0]


def _encode(text: str, codec: str) -> bytes:
    if codec != "latin1":
        raise Refused(f"the codec {_quoted(codec)}")
    return text.encode("latin-1")


def _quoted(name: object) -> str:
    return shown(str(name)[:_LONGEST_NAME])


class Unpickler(pickle._Unpickler):
    """Finds what `allowed` lists by full name, and nothing else.

    Python's own in Python: the one in C keeps a list of as many memo entries as a file says.
    """

    allowed: ClassVar[dict[str, object]] = {
        **{
            f"{core}.{name}": ours
            for core in ("numpy.core", "numpy._core")
            for name, ours in {
                "multiarray._reconstruct": _reconstruct,
                "multiarray.scalar": _scalar,
                "numeric._frombuffer": _frombuffer,
            }.items()
        },
        "numpy.ndarray": "numpy.ndarray",  # an argument of _reconstruct; called, it would take any memory
        "numpy.dtype": _Dtype,
        "_codecs.encode": _encode,
        "__builtin__.bytes": lambda: b"",  # what protocols 0 to 2 write for it
        "builtins.tuple": tuple,  # Paddle's tensors are pairs of name and array
        "__builtin__.tuple": tuple,
        "collections.OrderedDict": collections.OrderedDict,
    }

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> object:
        try:
            return self.allowed[f"{module}.{name}"]
        except KeyError:
            raise Refused(_quoted(f"{module}.{name}")) from None

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], (_Dtype, _Array, collections.OrderedDict)):
            raise Refused("a change of what is finished")
        super().load_build()

    dispatch: ClassVar[dict] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def load_pickle(path: str) -> object:
    """Return the value in a pickle file, of the types that this module allows.

    Raises MissingFileError, and UserError for a file that is damaged or no pickle, or asks for anything else.
    """
    with user_errors(path, "pickle"), open_regular(path) as file:
        return Unpickler(file).load()


@contextlib.contextmanager
def user_errors(path: str, what: str) -> Iterator[None]:
    """Turn errors of reading `path`, which should be a `what`, into a UserError of one line."""
    with reading(path):
        try:
            yield
        except (UserError, OSError):
            raise
        except Refused as error:
            raise UserError(
                f"{shown(path)}: refused: the file asks for {error}; nothing of it was run"
            ) from None
        except Exception as error:
            detail = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"{shown(path)}: is no {what}, or is damaged or cut off ({_quoted(detail)}); fetch it again"
            ) from error


def save_pickle(path: str, value: object) -> None:
    """Write a value as a pickle that InsightFace reads, beside `path` and renamed."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        pickle.dump(value, file, protocol=4)
