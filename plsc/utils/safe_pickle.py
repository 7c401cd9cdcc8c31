"""Read pickles from outside (verification packs, PLSC's .pdparams) without running code from them.

A pickle is a program. Here it may build only numbers, text, bytes, lists, tuples, dicts and numeric NumPy
arrays. Anything else is refused by name. Strings of Python 2 become str (latin-1). Try it:

    load_pickle("lfw.bin", "verification pack")  # ([bytes, ...], [True, ...])
"""

import collections
import contextlib
import pickle
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from plsc.errors import UserError, escape, reading
from plsc.utils.files import open_regular

_LONGEST = 80  # characters of a name or text from the file that a message quotes


class Refused(Exception):
    """A pickle asked for something that is not allowed."""


def _dtype(code: str, *_: object) -> np.dtype:
    dtype = np.dtype(code)
    if dtype.kind not in "biufc":
        raise Refused(f"an array of numpy type '{code}', which is not a number")
    return dtype


def _encode(text: str, codec: str) -> bytes:
    if codec != "latin1":
        raise Refused(f"the codec {codec}")
    return text.encode("latin-1")


class Unpickler(pickle._Unpickler):
    """Finds only the names that `allowed` lists.

    It derives from Python's unpickler that is written in Python. The one in C allocates as many memo entries
    as the file asks for.
    """

    allowed: ClassVar[dict[str, object]] = {
        "numpy.core.multiarray._reconstruct": lambda *_: np.ndarray((0,), "b"),  # its state follows
        "numpy.core.multiarray.scalar": lambda dtype, data: np.frombuffer(data, dtype)[0],
        "numpy.core.numeric._frombuffer": lambda data, dtype, shape, order, *_: np.frombuffer(
            bytes(memoryview(data)), dtype
        ).reshape(shape, order=order),
        "numpy.ndarray": "numpy.ndarray",  # an argument of _reconstruct. A call could take any memory
        "numpy.dtype": _dtype,
        "_codecs.encode": _encode,
        "builtins.bytes": lambda: b"",  # what protocols 0 to 2 write for it
        "builtins.tuple": tuple,  # Paddle's tensors are pairs of name and array
        "collections.OrderedDict": collections.OrderedDict,
    }

    def find_class(self, module: str, name: str) -> object:
        """Return the allowed object with this name. Names of NumPy 2 and Python 2 are translated first."""
        module = module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins")
        try:
            return self.allowed[f"{module}.{name}"]
        except KeyError:
            raise Refused(f"{module}.{name}") from None

    def load_build(self) -> None:
        """Give an array its shape, type and numbers. Doing so twice would free memory that views still use.

        An OrderedDict keeps only its items. A number type keeps this machine's byte order and ignores the
        flags in the file.
        """
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, np.ndarray) and made.flags.writeable:
            made.__setstate__(state)
            made.flags.writeable = False
        elif isinstance(made, np.dtype) and state[1] == ">":
            raise Refused("numbers of another byte order")
        elif not isinstance(made, (np.dtype, collections.OrderedDict)):
            raise Refused("a change of what is finished")

    dispatch: ClassVar[dict] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def load_pickle(path: str, what: str) -> object:
    """Return the value in a pickle file, made of the types that this module allows.

    Args:
        path: the file.
        what: what the file should be, for error messages.

    Raises MissingFileError if the file does not exist. Raises UserError if it is damaged, is no pickle, or
    asks for anything else.
    """
    with user_errors(path, what), open_regular(path) as file:
        return Unpickler(file, encoding="latin1").load()


@contextlib.contextmanager
def user_errors(path: str, what: str) -> Iterator[None]:
    """Convert errors from reading `path`, which should be a `what`, to a UserError with one line."""
    with reading(path):
        try:
            yield
        except (UserError, OSError):
            raise
        except Refused as error:
            asked = escape(str(error)[:_LONGEST])
            raise UserError(
                f"{escape(path)}: refused: the file asks for {asked}; none of it was run"
            ) from None
        except Exception as error:
            detail = escape(" ".join(str(error).split())[:_LONGEST]) or type(error).__name__
            raise UserError(
                f"{escape(path)}: is not a {what}, or is damaged or truncated ({detail}); fetch it again"
            ) from error
