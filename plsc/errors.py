"""The errors that mean "the user can mend this".

Their text is one line: where (file:line, key or sample), the value, the rule and the remedy. The console scripts print that line
and leave with exit code 2; anything else is a defect of ours and keeps its traceback.
"""


class UserError(ValueError):
    """A mistake in a config, a file or a call that the user can correct."""


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder that the user named is not there."""

    def __str__(self) -> str:  # FileNotFoundError's own __str__ would print errno fields
        return str(self.args[0])


class CorruptImageError(UserError):
    """An image that cannot be decoded. Training replaces a few of them by others, and says so; see plsc.data.corrupt."""
