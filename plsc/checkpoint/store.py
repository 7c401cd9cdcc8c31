"""Save and open checkpoints: a folder a step, written beside and renamed; any world size reads any other's.

    checkpoints/step-00000120/  backbone.safetensors  optimizer.safetensors  manifest.json  [classes.json]
                                head-00000-of-00002.safetensors  head-00001-of-00002.safetensors
                                [evaluation.json]

The arrays of each part of a run are in a file of its name, its other values under that name in the manifest.
A head file holds one rank's class rows. The manifest, written last, lists their ranges and each file's size
and checksum. evaluation.json is added when the checkpoint has been evaluated. No pickle, no Paddle, no
collective of its own.

Try it: `Checkpoint.open(find(Path("output/checkpoints"))).head(0, 10)["centres"]`.
"""

import contextlib
import errno
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plsc.checkpoint.evaluation import Evaluation
from plsc.checkpoint.manifest import BACKBONE, file_of, manifest_bytes, tiles
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import DamagedError, layout, size_of, sync_folder, write_synced
from plsc.errors import MissingFileError, UserError
from plsc.utils.atomic_write import remove
from plsc.utils.logging import get_logger
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.text import gigabytes


class SaveError(UserError):
    """A checkpoint could not be written; the earlier ones are untouched and training may continue.

    remedy: what the user can do, a verb and its object.
    """

    remedy = "correct this"


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make space"),
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: "make the file system writable",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user write there"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO), "mount the disk of that folder"),
}


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint on one rank; of all but `rows` and `shard`, rank 0's is written.

    states: the state of each owner, by its name: plain values, and under "arrays" arrays by name.
    rows: this rank's class rows, first axis = class: "centres" [S, D], perhaps "bias" [S],
        and the arrays of their optimizer, such as "momentum" [S, D].
    shard: the classes of those rows, [start, stop); all classes on every rank: a replicated head.
    classes: a name for each class; None: no names.
    weights: whose arrays are the weights to use, for everything but to train on, if it has any.
    """

    step: int
    epoch: int
    states: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, np.ndarray]
    num_classes: int
    shard: tuple[int, int]
    config: Mapping[str, Any]
    preprocessing: Preprocessing
    classes: list[str] | None = None
    weights: str = BACKBONE


def save(
    root: Path,
    content: Content,
    rank: int = 0,
    gather: Callable[[Any], list] = lambda value: [value],
) -> Path:
    """Write the folder `root`/step-XXXXXXXX, which must not exist. Every rank calls it.

    The arrays are not copied and must not change until it returns; then all of it is on the disk.

    gather: each rank's value -> the list of all, on every rank. It must wait longer than Gloo's 30 s, since
    the disks of the ranks may differ in speed.

    Returns the folder. Raises SaveError on every rank, with the rank that failed and why.
    """
    num_classes = content.num_classes
    final = folder_of(root, content.step)
    first = rank == 0
    mine = {}
    if first:
        arrays = {owner: state["arrays"] for owner, state in content.states.items() if "arrays" in state}
        mine = {file_of(owner): layout(of_owner) for owner, of_owner in arrays.items()}
        if content.classes is not None:
            mine["classes.json"] = [json.dumps(content.classes, indent=0).encode()]
    what = f"{root}: checkpoint of step {content.step} not written, earlier ones untouched"
    on_all = partial(_on_all_ranks, what, gather)
    try:
        shards = on_all(_begin, final, first, content.shard)
        world_size = len(shards)
        replicated = set(shards) == {(0, num_classes)}
        if replicated:  # one file for all
            shards = shards[:1]
        assert tiles(shards, num_classes), f"{shards} do not make up the classes [0, {num_classes})"
        names = [f"head-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(len(shards))]
        if first or not replicated:
            mine[names[0 if replicated else rank]] = layout(content.rows)
        written = on_all(_write, final, mine)
        fields = first and {
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
            "world_size": world_size,
            "num_classes": num_classes,
            "embedding_size": content.rows["centres"].shape[1],
            "heads": [
                {"file": name, "start": start, "stop": stop} for name, (start, stop) in zip(names, shards)
            ],
            "files": {name: info for of_rank in written for name, info in of_rank.items()},
        }
        on_all(_publish, final, first, fields)
    except SaveError:
        if first:
            tidy(root)  # the disk may be full or gone; the next save tries again
        raise
    return final


def _on_all_ranks(what: str, gather: Callable[[Any], list], work: Callable, *args: Any) -> list:
    """Call work(*args) on every rank; return all results, or raise SaveError on every rank.

    An error on one rank alone would leave the others waiting.
    """
    result = None
    failure = None
    problem = ""
    number = None
    try:
        result = work(*args)
    except Exception as error:  # noqa: BLE001 (see above)
        failure = error
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        number = getattr(error, "errno", None)
    answers = gather((result, problem, number))
    for rank, (_, problem, number) in enumerate(answers):
        if problem:
            refused = SaveError(f"{what}: rank {rank}: {problem}")
            refused.remedy = _REMEDIES.get(number, SaveError.remedy)
            raise refused from failure
    return [result for result, _, _ in answers]


def _begin(final: Path, first: bool, shard: tuple[int, int]) -> tuple[int, int]:
    """Make the folder beside `final`; return the shard, of which all ranks learn by that."""
    if first:
        final.parent.mkdir(parents=True, exist_ok=True)
        tidy(final.parent)
        _beside(final, "tmp").mkdir()
    return shard


def _write(final: Path, files: dict[str, list]) -> dict[str, dict]:
    tmp = _beside(final, "tmp")
    need = sum(size_of(part) for parts in files.values() for part in parts)
    if need > (free := shutil.disk_usage(tmp).free):
        numbers = f"need {gigabytes(need)}, free {gigabytes(free)}"
        raise OSError(errno.ENOSPC, f"No space left on device ({numbers})")
    return {name: write_synced(tmp / name, parts) for name, parts in files.items()}


def _publish(final: Path, first: bool, fields: Any) -> None:
    """Add the manifest to the folder beside `final`, and give the folder its name."""
    if not first:
        return
    # Deleting an older one here would lose both if the process were killed in between. A run that goes back
    # sets later checkpoints aside.
    assert not final.exists(), f"{final} exists"
    tmp = _beside(final, "tmp")
    write_synced(tmp / "manifest.json", [manifest_bytes(fields)])
    sync_folder(tmp)
    tmp.rename(final)
    sync_folder(final.parent)


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(f"{final.name}.{suffix}")


def tidy(root: Path) -> None:
    """Remove the leftovers of a killed save or prune, before the next save."""
    for path in _entries(root, r"step-\d{8,}\.tmp"):
        with contextlib.suppress(OSError):  # somebody may read it over a network; the next save tries again
            remove(path)


def _entries(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if re.fullmatch(pattern, path.name))


def find(root: Path, which: str = "newest", rename: bool = False) -> Path | None:
    """Find a checkpoint, every checksum verified; None if none was ever completed.

    One rank calls it and sends the others the path, which all open with verify=False. An unusable newer one
    gives a warning and, with `rename`, is set aside as step-XXXXXXXX.bad (never deleted). One that a running
    training deletes meanwhile is skipped.

    Args:
        which: "newest" or "best" of those in `root`, or the folder of a checkpoint, of some, or of a run.
        rename: for a run that will write here.

    Raises: UserError if there are checkpoints and none is usable, so that a run never starts anew over a
    damaged one; if nothing has been evaluated, or the best is missing; also for one of another format, or not
    readable now, which is not damage.
    """
    if which not in ("newest", "best"):
        below = [folder for folder in (Path(which, "checkpoints"), Path(which)) if completed(folder)]
        return _newest(below[0], False) if below else Checkpoint.open(which).path
    newest = _newest(root, rename)
    if which == "newest" or newest is None:
        return newest
    found = best(root)
    if not found:
        raise UserError(f"{root}: no checkpoint has been evaluated, so none is the best; take the newest")
    return Checkpoint.open(found).path


def best(root: Path) -> Path | None:
    """Return the checkpoint in `root` with the best evaluation; of equal ones the oldest. None without one.

    Only evaluations on the main set of the newest one are compared: those of another set, or of more images,
    have other numbers. Nothing but the folders is looked at, so a checkpoint that was deleted or set aside is
    never the best.
    """
    found: Path | None = None
    first: Evaluation | None = None
    value = -math.inf
    for path in reversed(completed(root)):
        made = Evaluation.read(path)
        if made is None or made.value is None:
            continue
        first = first or made
        if (made.set, made.metric) == (first.set, first.metric) and made.value >= value:
            found, value = path, made.value
    return found


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
            get_logger().warning(f"checkpoint {path.name} is unusable ({error}); passed over as {aside.name}")
            continue
        return path
    if bad or _entries(root, r"step-\d{8,}\.bad\d*"):
        raise UserError(
            f"{root}: none of its checkpoints is usable (the warnings say why; those set aside are called "
            ".bad): put a good copy back, or start anew with another Global.output_dir"
        )
    return None


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return root / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder, step-XXXXXXXX."""
    return int(path.stem.removeprefix("step-"))


def newest_below(folder: str) -> str | Path:
    """Return the newest checkpoint in a run's folder, not verified. Return `folder` if it contains none."""
    return [folder, *completed(Path(folder)), *completed(Path(folder, "checkpoints"))][-1]


def completed(root: Path) -> list[Path]:
    """List the checkpoints in `root` whose save came to its end, by their names alone, the oldest first."""
    return sorted((path for path in _entries(root, r"step-\d{8,}") if path.is_dir()), key=step_of)


def newest_step(root: Path) -> int | None:
    """Return the step of the newest completed checkpoint in `root`; no checksum is verified."""
    present = completed(root)
    return step_of(present[-1]) if present else None


def set_aside(path: Path) -> Path:
    """Rename the checkpoint to `path`.bad, .bad2, ...; return the new path."""
    names = (_beside(path, f"bad{number}" if number > 1 else "bad") for number in itertools.count(1))
    return path.rename(next(aside for aside in names if not aside.exists()))


def set_aside_after(root: Path, step: int) -> None:
    """Set the checkpoints of later steps in `root` aside, so that a run that has gone back is not resumed
    from them: new ones have lower steps."""
    later = [path for path in completed(root) if step_of(path) > step]
    aside = [set_aside(path) for path in later]
    if aside:
        get_logger().warning(
            f"going on from step {step}: later checkpoints are set aside, the last one as {aside[-1]}"
        )


def prune(root: Path, keep: int) -> list[Path]:
    """Delete the oldest checkpoints beyond the newest `keep`, except the best. Rank 0 calls it after a save.

    Only folders with a manifest count, and only they are deleted. Return the folders that were deleted. What
    the disk does not let it delete stays until the next save.
    """
    whole = [path for path in completed(root) if (path / "manifest.json").is_file()]
    kept = best(root)
    deleted = []
    for path in whole[:-keep]:
        if path == kept:
            continue
        with contextlib.suppress(OSError):  # such as: somebody reads it over a network
            tmp = path.rename(_beside(path, "tmp"))  # a kill in the middle leaves nothing that looks whole
            deleted.append(path)
            sync_folder(tmp.parent)
            remove(tmp)
    return deleted
