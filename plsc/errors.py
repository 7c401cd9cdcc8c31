"""Define the errors that a user can correct, and make text from outside safe to print.

The text of such an error is one line: where (file:line, key or sample), the value, the rule and the remedy.
`plsc` prints that line and exits with code 2; any other exception is a defect of plsc and keeps its
traceback.
"""

import contextlib
import os
import traceback
from collections.abc import Iterator


class UserError(Exception):
    """A mistake in a config, a file or a call that the user can correct.

    text: what is wrong. key: the key of the config that it is about, "Section.key", or a keyword argument of
    a class that a config names.
    """

    def __init__(self, text: object = "", key: str = ""):
        super().__init__(text, key)
        self.text = str(text)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class MissingFileError(UserError):
    """A file or folder that the user named is not there."""


class CorruptImageError(UserError):
    """An image that cannot be decoded. In training, plsc.data.corrupt_images replaces a few such images."""


def in_one_line(error: Exception) -> str:
    """Describe an exception of any kind, such as one in a user's class: a UserError by its text, another by
    its type, the place in the code and the first line of its text."""
    if isinstance(error, UserError):
        return str(error)
    # Paddle's own errors begin with a C++ traceback, and have a line of dashes above their message.
    _, of_paddle, text = str(error).rpartition("Error Message Summary:")
    text = (text.strip(" -\n") if of_paddle else text.strip()).partition("\n")[0]
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {place[0].name}, {place[0].filename}:{place[0].lineno}" if place else ""
    return escape(f"{type(error).__name__}{where}" + (f": {text}" if text else ""))


@contextlib.contextmanager
def reading(
    path: str | bytes | os.PathLike, *, missing: str = "no such file", remedy: str = ""
) -> Iterator[None]:
    """Turn the system's refusal to let `path` be read, and text that is not UTF-8, into a line for the user.

    Args:
        path: the file, perhaps with the option that names it in front.
        missing: what is said of a file that is not there, in a MissingFileError.
        remedy: what to do where it is there and cannot be read.
    """
    with writing(path, remedy=remedy, what="read"):
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"{escape(path)}: {missing}") from error
        except UnicodeDecodeError as error:
            text = f"{escape(path)}: is no UTF-8 text ({error.reason} at byte {error.start})"
            raise UserError(text) from error


@contextlib.contextmanager
def writing(path: str | bytes | os.PathLike, *, remedy: str = "", what: str = "written") -> Iterator[None]:
    """Turn the system's refusal to let `path` be written into a line for the user, as `reading` does."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or escape(error)  # NumPy's own OSErrors have text alone
        line = f"{escape(path)}: cannot be {what}: {reason}"
        raise UserError(f"{line}; {remedy}" if remedy else line) from error


def escape(name: object) -> str:
    """Return a name from data (text, bytes or a path) as text that is safe to print, on one line.

    Control characters, line breaks, marks that change the direction of text, and bytes that are not UTF-8 are
    escaped. Otherwise the name of a file, a folder or an identity could add lines to a log, or control a
    terminal.
    """
    text = os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else str(name)
    return text if text.isprintable() else "".join(map(_escaped, text))


def escape_lines(text: str) -> str:
    """Escape what `escape` escapes but line breaks and tabs, and cut very long lines, as of a quoted file."""
    lines = (
        line if len(line) <= 2000 else f"{line[:1500]} ... {len(line) - 2000:,} characters ... {line[-500:]}"
        for line in text.split("\n")
    )
    return "".join(char if char in "\n\t" else _escaped(char) for char in "\n".join(lines))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, as os.fsdecode represents it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
