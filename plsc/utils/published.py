"""Download published networks from pinned addresses: `path_of(SFACE)`.

Each file is downloaded once. It is stored in ~/.cache/plsc, or in the folder that the environment variable
PLSC_CACHE names. Files keep their authors' names.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from plsc.errors import UserError, escape, writing
from plsc.utils.atomic_write import atomic_write
from plsc.utils.bar import Bar
from plsc.utils.files import read_regular
from plsc.utils.logging import get_logger

_TIMEOUT = 30  # maximum seconds without data
_BLOCK = 2**16  # bytes


class Published(NamedTuple):
    """A published file. `size` is in bytes, and `sha256` has 64 hex digits."""

    title: str
    address: str
    sha256: str
    size: int
    licence: str

    @property
    def file(self) -> str:
        """The file's name, without folders."""
        return self.address.rsplit("/", 1)[-1]


def sha256_of(path: str | os.PathLike) -> str:
    """Return a regular file's SHA-256, 64 hex digits. Raises what open_regular raises."""
    return hashlib.sha256(read_regular(path)).hexdigest()


def path_of(published: Published, *others: Published) -> Path:
    """Return a published file's local path. Download the file if it does not exist.

    Args:
        published: the file.
        others: further files that the caller will need. If the download fails, the error names those that do
            not exist, too.

    Raises UserError if it cannot be downloaded, or if its SHA-256 is wrong.
    """
    folder = os.environ.get("PLSC_CACHE") or os.path.expanduser("~/.cache/plsc")
    if folder.startswith("~"):
        raise UserError(
            f"{published.file}: there is no home folder to store it in; name a folder in PLSC_CACHE"
        )
    path = Path(folder, published.file)
    if not path.is_file():
        _fetch(published, path, [each for each in others if not Path(folder, each.file).is_file()])
    if sha256_of(path) != published.sha256:
        raise UserError(
            f"{escape(path)}: is not {published.title} (its SHA-256 differs); remove it to download it again"
        )
    return path


def _fetch(published: Published, path: Path, others: Sequence[Published]) -> None:
    """Download a published file to a path. Raises UserError if this fails or the SHA-256 is wrong.

    `others` are further files that the error names.
    """
    import http.client
    import urllib.request  # takes 20 ms, and is needed only once

    addresses = " and ".join(each.address for each in (published, *others))
    by_hand = (
        f"download {addresses} on another machine or later to {escape(path.parent)}, or set PLSC_CACHE to a "
        f"folder with {'these files' if others else 'this file'}"
    )
    with writing(path.parent, remedy="name another folder in PLSC_CACHE"), atomic_write(path) as beside:
        try:
            with (
                urllib.request.urlopen(published.address, timeout=_TIMEOUT) as answer,  # noqa: S310
                Bar(f"fetching {published.file}", published.size, "bytes") as bar,
                open(beside, "xb") as file,
            ):
                while block := answer.read(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = escape(getattr(error, "reason", None) or error)
            raise UserError(f"{published.file}: cannot be downloaded ({reason}); {by_hand}") from None
        if sha256_of(beside) != published.sha256:
            raise UserError(f"{published.file}: the download is truncated or another file; {by_hand}")
    get_logger().info(f"{published.title}: {published.licence}, {published.address}, now in {escape(path)}")
