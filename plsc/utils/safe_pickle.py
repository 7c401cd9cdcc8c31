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
import os
import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from plsc.errors import UserError, reading, shown
from plsc.utils.atomic_write import atomic_write
from plsc.utils.files import open_regular

MOST_LEVELS = 64  # of lists in lists; the state of an optimizer has five
_MOST_OPERATIONS = 10_000_000  # a pack of 12,000 images has 24,000
_MOST_COPIES = 8  # times the file's size: bytes given to calls in all, since they may copy them
_LONGEST_NAME = 80  # characters of a name from the file that a message quotes
_NUMERIC = re.compile(r"[biufc]\d{1,2}|bool|\?")
_DAMAGE = (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError)
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
    "collections.OrderedDict": collections.OrderedDict,
}


class Unpickler(pickle.Unpickler):
    """Builds only what `allowed` lists by full name."""

    allowed = _ALLOWED

    def find_class(self, module: str, name: str) -> object:
        try:
            return self.allowed[f"{module}.{name}"]
        except KeyError:
            raise Refused(_quoted(f"{module}.{name}")) from None

    def persistent_load(self, pid: object) -> object:
        raise Refused("a persistent object")

    def load_checked(self, file: BinaryIO) -> object:
        """Return the value in `file`, which must be the file that this object was made with."""
        _check_operations(file)
        file.seek(0)
        return self.load()


def load_pickle(path: str) -> object:
    """Return the value in a pickle file, of the types that this module allows.

    Raises MissingFileError, and UserError for a file that is damaged or no pickle, or asks for anything else.
    """
    with user_errors(path, "pickle"), open_regular(path) as file:
        return Unpickler(file, encoding="latin1").load_checked(file)


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


class _Bounded:
    """A file that is never asked for more bytes than it has, since Python allocates them before reading."""

    def __init__(self, file: BinaryIO):
        self.size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.readline = file.readline
        self._file = file

    def read(self, count: int) -> bytes:
        return self._file.read(min(count, self.size - self._file.tell()))


class _Node:
    """A value during the check: its nesting depth, its bytes with all it contains, and whether it is
    final."""

    __slots__ = ("depth", "fixed", "size")

    def __init__(self, depth: int, size: int, fixed: bool):
        self.depth = depth
        self.size = size
        self.fixed = fixed


_LEAF = _Node(0, 8, True)
_FILLED = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": None, "SETITEMS": None}  # None: up to the mark
_MADE = {  # values that are made of others
    "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "BINPERSID": 1, "STACK_GLOBAL": 2,
    "TUPLE": None, "LIST": None, "DICT": None,
}  # fmt: skip
_NEVER_WRITTEN = {
    "DUP", "POP_MARK", "OBJ", "INST", "NEWOBJ", "NEWOBJ_EX", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    "NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4",
}  # fmt: skip


class _Check:
    """Follows the operations of a pickle without building anything, and refuses dangerous ones.

    Refused are nesting that overflows C's stack when Python hashes or prints the value, data given repeatedly
    to calls, which copy it, and memo numbers out of order, of which a single one makes Python allocate up to
    2^32 entries.
    """

    def __init__(self, size: int):
        self.allowed = _MOST_COPIES * size + 2**20
        self.stack: list[_Node] = []
        self.marks: list[int] = []
        self.memo: dict[int, _Node] = {}

    def take(self, count: int | None) -> list[_Node]:
        """Pop `count` values, or (None) those above the mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise ValueError("too few values")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def follow(self, name: str, argument: object, count: int) -> None:
        """Follow the operation `name` of pickletools, the `count`-th from 0."""
        if name in _NEVER_WRITTEN:
            raise Refused(f"the operation {name}")
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "POP":
            if self.marks and self.marks[-1] == len(self.stack):
                self.marks.pop()
            else:
                self.take(1)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(self.memo) if name == "MEMOIZE" else argument
            if place > count:
                raise Refused(f"memo entry {place} at its operation {count}")
            self.memo[place] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            node = self.memo[argument]
            node.fixed = True  # from here on it is in two places, and its depth is counted in both
            self.stack.append(node)
        elif name in _FILLED:
            parts = self.take(_FILLED[name])
            node = self.stack[-1]
            if node.fixed:
                raise Refused("a change of what is finished")
            self._fill(node, parts)
            if name == "BUILD":
                self._pay(parts)
            elif name.startswith("SETITEM"):
                self._pay_for_keys(parts)
        elif name in _MADE:
            node = _Node(0, 8, False)
            parts = self.take(_MADE[name])
            self._fill(node, parts)
            node.fixed = name not in ("LIST", "DICT", "REDUCE")
            if name == "REDUCE":
                self._pay(parts)
            elif name == "DICT":
                self._pay_for_keys(parts)
            self.stack.append(node)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            self.stack.append(_Node(0, 8, False))
        elif name not in ("PROTO", "FRAME", "STOP"):
            leaf = isinstance(argument, (str, bytes, bytearray)) and len(argument) > 8
            self.stack.append(_Node(0, len(argument), True) if leaf else _LEAF)

    def _fill(self, node: _Node, parts: list[_Node]) -> None:
        for part in parts:
            node.size += part.size
            if part.depth >= node.depth:
                node.depth = part.depth + 1
        if node.depth > MOST_LEVELS:
            raise Refused(f"values nested more than {MOST_LEVELS} levels deep")

    def _pay_for_keys(self, items: list[_Node]) -> None:
        """Hashing a tuple visits all that is in it, as often as it is there: 2^64 numbers where 64 tuples
        hold the next one twice."""
        self._pay([key for key in items[::2] if key.depth])

    def _pay(self, parts: list[_Node]) -> None:
        self.allowed -= sum(part.size for part in parts)
        if self.allowed < 0:
            raise Refused(f"copies of more than {_MOST_COPIES} times its own size")


def _check_operations(file: BinaryIO) -> None:
    """Check a pickle without building anything; raise Refused or ValueError for a dangerous one.

    See _Check.
    """
    bounded = _Bounded(file)
    check = _Check(bounded.size)
    for count, (opcode, argument, _) in enumerate(pickletools.genops(bounded)):
        if opcode.name == "FRAME" and argument > bounded.size:
            raise ValueError("it is cut off")
        if count >= _MOST_OPERATIONS:
            raise Refused(f"more than {_MOST_OPERATIONS:,} operations")
        check.follow(opcode.name, argument, count)


def save_pickle(path: str, value: object) -> None:
    """Write lists, tuples, bytes, bools, numbers and arrays as a pickle (protocol 4), beside `path` and
    renamed."""
    with atomic_write(path) as beside, open(beside, "xb") as file:
        pickle.dump(value, file, protocol=4)
