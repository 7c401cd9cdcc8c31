"""Save and open checkpoints: a folder a step, written beside and renamed; any world size reads any other's.

    checkpoints/step-00000120/  backbone.safetensors  optimizer.safetensors  manifest.json  [classes.json]
                                head-00000-of-00002.safetensors  head-00001-of-00002.safetensors

Whatever has a state, has a name: its arrays are in the file of that name, its other values under that name in
the manifest. A head file holds one rank's class rows. The manifest, written last, lists their ranges and each
file's size and checksum. No pickle, no Paddle, no collective of its own.

Try it: `Checkpoint.open(find("output/checkpoints")).head(0, 10)["centres"]`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plsc.checkpoint.manifest import BACKBONE, file_of, head_file, manifest_bytes, tiles
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import DamagedError, layout, sync_folder, write_synced
from plsc.errors import MissingFileError, UserError
from plsc.utils.atomic_write import remove
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.room import missing_space
from plsc.utils.sharding import ClassShard

_log = logging.getLogger("plsc")


class SaveError(UserError):
    """A checkpoint could not be written; the earlier ones are untouched and training may go on."""


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint on one rank; of all but `rows` and `shard`, rank 0's is written.

    states: the state of each owner, by its name: plain values, and under "arrays" arrays by name.
    rows: this rank's class rows, first axis = class: "centres" [S, D], perhaps "bias" [S],
        and the arrays of their optimizer, such as "momentum" [S, D].
    shard: the classes of those rows; all classes on every rank: a replicated head.
    classes: a name for each class; None: no names.
    weights: whose arrays are the weights to use, for everything but to train on, if it has any.
    """

    step: int
    epoch: int
    states: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, np.ndarray]
    shard: ClassShard
    config: Mapping[str, Any]
    preprocessing: Preprocessing
    classes: list[str] | None = None
    weights: str = BACKBONE


@dataclass(frozen=True)
class Ranks:
    """The ranks that write a checkpoint together.

    gather: each rank's value -> the list of all, on every rank. It must wait longer than Gloo's 30 s, since
    the
        disks of the ranks may differ in speed.
    """

    rank: int
    world_size: int
    gather: Callable[[Any], list]


ONE_RANK = Ranks(0, 1, lambda value: [value])


def save(root: str | os.PathLike, content: Content, ranks: Ranks = ONE_RANK) -> Path:
    """Write the folder `root`/step-XXXXXXXX, in place of an existing one. Every rank calls it.

    The arrays are not copied and must not change until it returns; then all of it is on the disk.

    Returns the folder. Raises SaveError on every rank, with the rank that failed and why.
    """
    num_classes = content.shard.num_classes
    root = Path(root)
    final = root / f"step-{content.step:08d}"
    fields = {
        "step": content.step,
        "epoch": content.epoch,
        "preprocessing": content.preprocessing,
        "weights": content.weights if content.states[content.weights].get("arrays") else BACKBONE,
        "state": {
            owner: plain
            for owner, state in content.states.items()
            if (plain := {key: value for key, value in state.items() if key != "arrays"})
        },
        "config": content.config,
        "world_size": ranks.world_size,
        "num_classes": num_classes,
        "embedding_size": content.rows["centres"].shape[1],
    }
    what = f"{root}: checkpoint of step {content.step} not written, earlier ones untouched"
    first = ranks.rank == 0
    mine = _files_of_rank_0(content) if first else {}
    together = partial(_together, what, ranks)
    try:
        shard = int(content.shard.start), int(content.shard.stop)
        shards = _distinct(together(_begin, final, first, shard), num_classes)
        names = [head_file(number, len(shards)) for number in range(len(shards))]
        replicated = len(names) < ranks.world_size
        if first or not replicated:
            mine[names[0 if replicated else ranks.rank]] = layout(content.rows)
        written = together(_write, final, mine)
        files = {name: info for of_rank in written for name, info in of_rank.items()}
        heads = [{"file": name, "start": start, "stop": stop} for name, (start, stop) in zip(names, shards)]
        together(_publish, final, first, {**fields, "heads": heads, "files": files})
    except SaveError:
        if first:
            tidy(root)  # the disk may be full or gone; the next save tries again
        raise
    return final


def _files_of_rank_0(content: Content) -> dict[str, list]:
    arrays = {owner: state["arrays"] for owner, state in content.states.items() if "arrays" in state}
    files = {file_of(owner): layout(of_owner) for owner, of_owner in arrays.items()}
    if content.classes is not None:
        files["classes.json"] = [json.dumps(content.classes, indent=0).encode()]
    return files


def _together(what: str, ranks: Ranks, work: Callable, *args: Any) -> list:
    """Call work(*args) on every rank; return all results, or raise SaveError on every rank.

    An error on one rank alone would leave the others waiting.
    """
    result = None
    failure = None
    problem = ""
    try:
        result = work(*args)
    except Exception as error:  # noqa: BLE001 (see above)
        failure = error
        problem = " ".join(f"rank {ranks.rank}: {type(error).__name__}: {error}".split())
    answers = ranks.gather((result, problem))
    for _, problem in answers:
        if problem:
            raise SaveError(f"{what}: {problem}") from failure
    return [result for result, _ in answers]


def _begin(final: Path, first: bool, shard: tuple[int, int]) -> tuple[int, int]:
    """Make the folder beside `final`; return the shard, of which all ranks learn by that."""
    if first:
        final.parent.mkdir(parents=True, exist_ok=True)
        tidy(final.parent)
        _beside(final, "tmp").mkdir()
    return shard


def _distinct(shards: list[tuple[int, int]], num_classes: int) -> list[tuple[int, int]]:
    """Return one range per head file: the ranks' own, or a single one when the head is replicated."""
    if set(shards) == {(0, num_classes)}:
        shards = shards[:1]
    assert tiles(shards, num_classes), f"the shards {shards} do not make up the classes [0, {num_classes})"
    return shards


def _write(final: Path, files: dict[str, list]) -> dict[str, dict]:
    tmp = _beside(final, "tmp")
    need = sum(len(buffer) for buffers in files.values() for buffer in buffers)
    if lack := missing_space(tmp, need):
        raise OSError(errno.ENOSPC, f"No space left on device ({lack})")
    return {name: write_synced(tmp / name, buffers) for name, buffers in files.items()}


def _publish(final: Path, first: bool, fields: dict) -> None:
    """Add the manifest to the folder beside `final`, and give the folder its name."""
    if not first:
        return
    tmp = _beside(final, "tmp")
    write_synced(tmp / "manifest.json", [manifest_bytes(fields)])
    sync_folder(tmp)
    if final.exists():
        final.rename(_beside(final, "old"))  # `find` finds it there until the next line is done
    tmp.rename(final)
    sync_folder(final.parent)
    tidy(final.parent)  # the replaced one; the next save tries again


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(f"{final.name}.{suffix}")


def tidy(root: Path) -> None:
    """Remove the leftovers of a killed save or prune; a replaced checkpoint gets its name back if needed."""
    for path in _entries(root, r"step-\d{8,}\.(tmp|old)"):
        final = path.with_suffix("")
        if path.suffix == ".old" and not final.exists() and path.is_dir():
            path.rename(final)
            continue
        with contextlib.suppress(OSError):  # somebody may read it over a network; the next save tries again
            remove(path)


def _entries(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if re.fullmatch(pattern, path.name))


def find(root: str | os.PathLike, which: str = "newest", rename: bool = False) -> Path | None:
    """Find a checkpoint, every checksum verified; None if none was ever completed.

    One rank calls it and sends the others the path, which all open with verify=False. An unusable newer one
    gives a warning and, with `rename`, is set aside as step-XXXXXXXX.bad (never deleted). One that a running
    training deletes meanwhile is skipped.

    Args:
        which: "newest" or "best" of those in `root`, or the folder of a checkpoint or a run.
        rename: for a run that will write here.

    Raises: UserError if there are checkpoints and none is usable, so that a run never starts anew over a
    damaged one; if nothing has been evaluated, or the best is missing; also for one of another format, or not
    readable now, which is not damage.
    """
    root = Path(root)
    try:
        if which not in ("newest", "best"):
            below = Path(which, "checkpoints")
            return _newest(below, False) if completed(below) else Checkpoint.open(which).path
        newest = _newest(root, rename)
    except OSError as error:
        raise UserError(f"{root}: cannot be read now ({error}); try again") from error
    if which == "newest" or newest is None:
        return newest
    best = Checkpoint.open(newest, verify=False).best
    if not best:
        raise UserError(f"{newest}: nothing has been evaluated, so none is the best; take the newest")
    return Checkpoint.open(root / f"step-{best.step:08d}").path


def _newest(root: Path, rename: bool) -> Path | None:
    """Find the newest whole checkpoint, see `find`."""
    bad = 0
    for path in reversed(completed(root)):
        try:
            Checkpoint.open(path)
        except (DamagedError, MissingFileError) as error:
            if not path.exists():  # deleted meanwhile
                continue
            bad += 1
            aside = set_aside(path) if rename else path
            _log.warning("checkpoint %s is unusable (%s); passed over as %s", path.name, error, aside.name)
            continue
        if rename and path.suffix:  # a replacement was killed halfway
            path = path.rename(path.with_suffix(""))
        return path
    if bad or _entries(root, r"step-\d{8,}\.bad\d*"):
        raise UserError(
            f"{root}: none of its checkpoints is usable (the warnings say why; those set aside are called "
            ".bad): put a good copy back, or start anew with another Global.output_dir"
        )
    return None


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder, step-XXXXXXXX or step-XXXXXXXX.old."""
    return int(path.stem.removeprefix("step-"))


def completed(root: Path) -> list[Path]:
    """List the completed checkpoints in `root`, damaged ones too, the oldest first."""
    folders = [path for path in _entries(root, r"step-\d{8,}(\.old)?") if path.is_dir()]
    return sorted(folders, key=lambda path: (step_of(path), not path.suffix))


def newest_step(root: Path) -> int | None:
    """Return the step of the newest completed checkpoint in `root`; no checksum is verified."""
    present = completed(root)
    return step_of(present[-1]) if present else None


def set_aside(path: Path) -> Path:
    """Rename the checkpoint to `path`.bad, .bad2, ...; return the new path."""
    name = path.with_name(path.name.removesuffix(".old"))
    names = (_beside(name, f"bad{number}" if number > 1 else "bad") for number in itertools.count(1))
    return path.rename(next(aside for aside in names if not aside.exists()))


def set_aside_after(root: Path, step: int) -> list[Path]:
    """Set the checkpoints of later steps in `root` aside, so that a run that has gone back is not resumed
    from them; return their new paths."""
    later = (path for path in _entries(root, r"step-\d{8,}") if step_of(path) > step)
    return [set_aside(path) for path in sorted(later, key=step_of)]


def prune(root: str | os.PathLike, keep: int, protect: int | None = None) -> list[Path]:
    """Delete the oldest checkpoints beyond the newest `keep`; rank 0 calls it after a save.

    protect: the step of one that stays whatever its age, the best. Only folders with a manifest count, and
    only they are deleted. Returns the deleted folders.
    """
    entries = sorted(_entries(Path(root), r"step-\d{8,}"), key=step_of)
    whole = [path for path in entries if (path / "manifest.json").is_file()]
    doomed = [path for path in whole[:-keep] if step_of(path) != protect]
    for path in doomed:
        tmp = path.rename(_beside(path, "tmp"))  # a kill in the middle leaves nothing that looks whole
        sync_folder(tmp.parent)
        try:
            remove(tmp)
        except OSError as error:  # somebody reads it over a network; the next save tries again
            _log.warning("%s: not deleted: %s", tmp, error)
    return doomed
