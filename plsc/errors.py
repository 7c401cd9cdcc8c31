"""Define the errors that a user can correct, and make text from outside safe to print.

Such an error's text is one line: the place (file:line, key or sample), the value, the rule and the
remedy. `plsc` prints that line and exits with code 2. Any other exception is a defect in plsc and keeps its
traceback.

Try it: `plsc train -o Global.epochs=x`.
"""

import contextlib
import os
import traceback
from collections.abc import Iterator, Sequence


class UserError(Exception):
    """A mistake in a config, a file or a call that the user can correct.

    Args:
        text: what is wrong.
        key: the config key with the mistake, "Section.key", or a keyword argument of a class that a config
            names. "" if it is not known.
    """

    def __init__(self, text: object = "", key: str = ""):
        super().__init__(text, key)
        self.text = str(text)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class SeveralErrors(UserError):
    """Several independent mistakes. Its text has one line for each of them.

    Args:
        errors: the mistakes, at least two.
    """

    def __init__(self, errors: Sequence[UserError]):
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors

    def __reduce__(self) -> tuple:
        return type(self), (self.errors,)


class Mistakes:
    """Collects the user's mistakes of independent checks, so that all are reported at once.

    mistakes = Mistakes()
    with mistakes.collected():
        check_one_thing()
    with mistakes.collected():
        check_another()
    mistakes.raise_all()
    """

    def __init__(self) -> None:
        self.found: list[UserError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Run a check, and keep its mistakes for `raise_all`."""
        try:
            yield
        except UserError as error:
            self.found += error.errors if isinstance(error, SeveralErrors) else [error]

    def raise_all(self) -> None:
        """Raise UserError with the mistakes that were found. It returns if no mistake was found."""
        if self.found:
            raise self.found[0] if len(self.found) == 1 else SeveralErrors(self.found)


class MissingFileError(UserError):
    """A file or folder that the user named does not exist."""


class CorruptImageError(UserError):
    """An image cannot be decoded. In training, plsc.data.corrupt_images replaces a few such images."""


def in_one_line(error: Exception) -> str:
    """Describe any exception in one line, for example one from a user's class.

    Returns a UserError's text. For any other exception it returns the type, the place in the code,
    and the text's first line.
    """
    if isinstance(error, UserError):
        return str(error)
    # Paddle's own errors begin with a C++ traceback, and a line of dashes precedes their message.
    _, of_paddle, text = str(error).rpartition("Error Message Summary:")
    text = (text.strip(" -\n") if of_paddle else text.strip()).partition("\n")[0]
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {place[0].name}, {place[0].filename}:{place[0].lineno}" if place else ""
    return escape(f"{type(error).__name__}{where}" + (f": {text}" if text else ""))


@contextlib.contextmanager
def reading(
    path: str | bytes | os.PathLike, *, missing: str = "no such file", remedy: str = ""
) -> Iterator[None]:
    """Turn errors in a block that reads a file into errors for the user.

    Raises MissingFileError if the file does not exist. Raises UserError if the system refuses to read it, or
    if its text is not UTF-8.

    Args:
        path: the file. The option that names it may precede it.
        missing: message for a file that does not exist.
        remedy: what to do if the file exists but cannot be read.
    """
    with writing(path, remedy=remedy, what="read"):
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"{escape(path)}: {missing}") from error
        except UnicodeDecodeError as error:
            text = f"{escape(path)}: is not UTF-8 text ({error.reason} at byte {error.start})"
            raise UserError(text) from error


@contextlib.contextmanager
def writing(path: str | bytes | os.PathLike, *, remedy: str = "", what: str = "written") -> Iterator[None]:
    """Turn errors in a block that writes a file into errors for the user.

    Raises UserError if the system refuses to write the file.

    Args:
        path: the file. The option that names it may precede it.
        remedy: what to do if the file cannot be written.
        what: what cannot be done with the file, for the message.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or escape(error)  # NumPy's own OSErrors have only a text
        line = f"{escape(path)}: cannot be {what}: {reason}"
        raise UserError(f"{line}; {remedy}" if remedy else line) from error


def escape(name: object) -> str:
    """Return a name from data as text that is safe to print, on one line.

    Control characters, line breaks, marks that change the text direction, and bytes that are not UTF-8 are
    escaped. Otherwise a file's, folder's or identity's name could add lines to a log, or control a
    terminal.

    Args:
        name: text, bytes or a path.
    """
    text = os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else str(name)
    return text if text.isprintable() else "".join(map(_escaped, text))


def escape_lines(text: str) -> str:
    """Escape text with several lines, such as a quoted file, and shorten very long lines.

    It escapes what `escape` escapes, except line breaks and tabs.
    """
    lines = (
        line if len(line) <= 2000 else f"{line[:1500]} ... {len(line) - 2000:,} characters ... {line[-500:]}"
        for line in text.split("\n")
    )
    return "".join(char if char in "\n\t" else _escaped(char) for char in "\n".join(lines))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # how os.fsdecode represents a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
