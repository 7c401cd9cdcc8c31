"""Format numbers, times and tables as text."""

from collections.abc import Sequence
from typing import Any


def number(value: float) -> str:
    """Format a number with 4 significant digits and, below 1e7, no exponent: 7.000, 0.01235, 15123, nan."""
    if 1e4 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:#.4g}".rstrip(".")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Format a count of things, such as 1 file or 2 files. `nouns` is the plural if it is not
    `noun` and an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def gigabytes(size: float) -> str:
    """Format bytes: 20.5 GB (1 GB = 10**9 bytes), below one 256.0 MB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Format seconds as h:mm:ss. The hours take as many digits as they need."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    """Format rows as a text table with two spaces between columns. None becomes "-"."""

    def cell(value: Any) -> str:
        return "-" if value is None else number(value) if isinstance(value, float) else str(value)

    lines = [[*headers], *(list(map(cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
