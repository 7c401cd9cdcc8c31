"""Find checkpoints whose files lie on the disks of several machines: what each disk has, and the newest that is whole.

Each machine makes a survey of its own disk, a dict that JSON can hold; whoever has all of them chooses:

    {"host": "node1", "folder": "output/checkpoints", "set_aside": 0, "checkpoints": [
        {"name": "step-00000120", "step": 120, "manifest": "5f0c93ab", "best": 80, "problem": null,
         "files": {"head-00000-of-00002.safetensors":
                   {"bytes": 4096, "crc32": "09ab3c12", "host": "node1", "classes": [0, 500]}, ...},
         "here": ["head-00000-of-00002.safetensors", ...]}]}

No Paddle, no collective. Try it: `choose([survey("output/checkpoints")])`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plsc.checkpoint.manifest import Manifest, read_manifest
from plsc.checkpoint.store import set_aside
from plsc.checkpoint.tensorfile import DamagedError, crc32_of
from plsc.errors import UserError, shown

_log = logging.getLogger("plsc")
_GONE = (errno.ENOENT, errno.ESTALE)  # of what was deleted while it was read, on a network disk too
_FOLDER = re.compile(r"step-(\d{8,})(\.tmp|\.old)?")


class Pieces(NamedTuple):
    """A checkpoint, and the disks that have its files."""

    step: int
    manifest: str
    """Checksum of manifest.json. A folder with another one is of another checkpoint, though of the same step."""
    files: dict[str, dict[str, Any]]
    """Of each file "bytes", "crc32", "host" and "classes", as in the survey."""
    holders: dict[str, list[int]]
    """Of each file the numbers of the surveys that have it."""
    names: dict[int, str]
    """The name of its folder, by the number of the survey."""
    best: int | None
    """The step of the best evaluation up to it."""

    @property
    def folder(self) -> str:
        """The final name of its folder."""
        return f"step-{self.step:08d}"

    @property
    def missing(self) -> list[str]:
        """The files that no disk has."""
        return [name for name, holders in self.holders.items() if not holders]

    @property
    def was_saved(self) -> bool:
        """Whether a disk has it under its final name; else it is the rest of a killed save."""
        return any(not name.endswith(".tmp") for name in self.names.values())


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint's folder; None if it has another name."""
    match = re.fullmatch(r"step-(\d{8,})", name)
    return int(match[1]) if match else None


def survey(root: str | os.PathLike) -> dict[str, Any]:
    """Describe the checkpoints in the folder `root` of this machine; only manifests and sizes are read.

    A folder that a killed save or replacement left is described too if it may be a part of a whole checkpoint.

    Raises: UserError (written by a newer plsc, or not readable now).
    """
    root = Path(root)
    try:
        folders = sorted(path for path in root.glob("step-*") if path.is_dir())
        entries = [_describe_if_there(path) for path in folders if _FOLDER.fullmatch(path.name)]
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{error.filename or root}: cannot be read now ({error.strerror or error}); nothing was changed: "
            "see that its disk is there, and try again"
        ) from error
    return {
        "host": socket.gethostname(),
        "folder": str(root),
        "set_aside": sum(1 for path in folders if re.fullmatch(r"\.bad\d*", path.suffix)),
        "checkpoints": [entry for entry in entries if entry],
    }


def _describe_if_there(path: Path) -> dict[str, Any] | None:
    """Describe a checkpoint's folder; None for one that the ranks of another machine delete or rename just now."""
    try:
        entry = _describe(path)
        return entry if path.exists() else None
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None


def _describe(path: Path) -> dict[str, Any] | None:
    """Describe a checkpoint's folder; None for one that was never completed."""
    unfinished = path.suffix == ".tmp"
    known = {"name": path.name, "step": int(_FOLDER.fullmatch(path.name)[1])}
    try:
        manifest = read_manifest(path / "manifest.json")
    except DamagedError as error:
        nothing = {"manifest": None, "best": None, "problem": str(error), "files": {}, "here": []}
        return None if unfinished else {**known, **nothing}
    # On one disk a folder has its name at once. On several, a disk may have renamed its own and another not.
    if unfinished and manifest.hosts is None:
        return None
    files = _files_of(manifest)
    return {
        **known,
        "manifest": crc32_of(path / "manifest.json"),
        "best": manifest.state.best.step if manifest.state.best else None,
        "problem": None,
        "files": files,
        "here": [name for name, info in files.items() if _has(path / name, info["bytes"])],
    }


def _files_of(manifest: Manifest) -> dict[str, dict[str, Any]]:
    classes = {part.file: [part.start, part.stop] for part in manifest.heads}
    hosts = manifest.hosts or {}
    return {
        name: {**info.model_dump(), "host": hosts.get(name), "classes": classes.get(name)}
        for name, info in manifest.files.items()
    }


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def choose(surveys: Sequence[dict[str, Any]]) -> int | None:
    """Return the step of the newest checkpoint that is whole on these disks together; None if there is none at all.

    Raises: as `find_whole`.
    """
    pieces = find_whole(surveys)
    return pieces.step if pieces else None


def find_whole(
    surveys: Sequence[dict[str, Any]], before: int | None = None, step: int | None = None
) -> Pieces | None:
    """Find the newest checkpoint each of whose files is on one of the disks; None if there is none at all.

    A newer one that is not whole is warned about, with its step and the file, host and classes that are missing.

    Args:
        before: only checkpoints of earlier steps than this; then None too if none of them is whole.
        step: only checkpoints of this step.

    Raises: UserError, the line of that warning, if there are checkpoints and none is whole.
    """
    lines = []
    for pieces in _group(surveys):
        if (before is not None and pieces.step >= before) or step not in (None, pieces.step):
            continue
        if not pieces.missing:
            for line in lines:
                _log.warning("%s; taking step %d instead", line, pieces.step)
            return pieces
        if pieces.was_saved:
            lines.append(_missing_line(pieces, surveys))
    if before is not None:
        return None
    lines += _damaged_lines(surveys, step)
    aside = sum(each["set_aside"] for each in surveys)
    if not lines and aside and step is None:
        lines = [f"none of the {aside} checkpoints is usable; they are kept as .bad: put a good copy back"]
    if lines:
        raise UserError(f"{_places(surveys)}: {lines[0]}, or start anew with another Global.output_dir")
    return None


def _group(surveys: Sequence[dict[str, Any]]) -> list[Pieces]:
    """Gather the folders of each checkpoint from all disks, the newest first; of one step the first disk's first."""
    groups: dict[tuple[int, str], Pieces] = {}
    for number, each in enumerate(surveys):
        for entry in sorted(each["checkpoints"], key=lambda entry: entry["name"]):
            if entry["manifest"] is None:
                continue
            key = entry["step"], entry["manifest"]
            holders = {name: [] for name in entry["files"]}
            pieces = groups.setdefault(key, Pieces(*key, entry["files"], holders, {}, entry["best"]))
            if number not in pieces.names:  # a disk has one folder of a checkpoint
                pieces.names[number] = entry["name"]
                for name in entry["here"]:
                    pieces.holders.get(name, []).append(number)
    return sorted(groups.values(), key=lambda pieces: -pieces.step)


def _missing_line(pieces: Pieces, surveys: Sequence[dict[str, Any]]) -> str:
    missing = pieces.missing
    info = pieces.files[missing[0]]
    classes = ""
    if info["classes"]:
        start, stop = info["classes"]
        classes = f" (classes {start} to {stop - 1})"
    wrote = f", written on host {shown(info['host'])}," if info["host"] else ""
    more = f", nor are {len(missing) - 1} others" if missing[1:] else ""
    hosts = ", ".join(dict.fromkeys(shown(each["host"]) for each in surveys))
    return (
        f"checkpoint of step {pieces.step}: {shown(missing[0])}{classes}{wrote} is not on the disk of {hosts}{more}: "
        f"start with that machine too, or copy its {pieces.folder} into that of another (cp -n)"
    )


def _damaged_lines(surveys: Sequence[dict[str, Any]], step: int | None) -> list[str]:
    entries: Iterator = ((each["host"], entry) for each in surveys for entry in each["checkpoints"])
    return [
        f"checkpoint of step {entry['step']} on host {shown(host)}: {shown(entry['problem'])}; put a good copy back"
        for host, entry in entries
        if entry["problem"] and step in (None, entry["step"])
    ]


def _places(surveys: Sequence[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(shown(each["folder"]) for each in surveys))


def settle(root: str | os.PathLike, pieces: Pieces, number: int) -> None:
    """Give the folder of `pieces` in `root`, which is the survey `number`, its final name.

    Another checkpoint of that step is set aside: on the other disks it is not whole, or not the one that was chosen. Raises UserError.
    """
    final = Path(root, pieces.folder)
    name = pieces.names.get(number)
    if name == final.name:
        return
    try:
        if final.exists():
            _log.warning(
                "%s: is another checkpoint of step %d; kept as %s", final, pieces.step, set_aside(final).name
            )
        if name:
            final.with_name(name).rename(final)
    except OSError as error:
        raise UserError(
            f"{final}: cannot get its name: {error.strerror}; see that it can be written"
        ) from error


def set_damaged_aside(root: str | os.PathLike, pieces: Pieces) -> list[str]:
    """Set the files of `pieces` in `root` that fail their checksum aside as FILE.bad; return their names. Reads every byte.

    Raises: UserError (not readable now).
    """
    folder = Path(root, pieces.folder)
    damaged = []
    try:
        for name, info in pieces.files.items():
            path = folder / name
            if _has(path, info["bytes"]) and crc32_of(path) != info["crc32"]:
                damaged.append(name)
                _log.warning("%s: fails its checksum; kept as %s", path, set_aside(path).name)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: cannot be read now ({error.strerror or error}); see that its disk is there, and try again"
        ) from error
    return damaged
