"""Save and find checkpoints.

A checkpoint is a folder for one step. It is written under a temporary name and renamed when it is complete.
A run can also read a checkpoint that was written by a run with another number of ranks.

    checkpoints/step-00000120/  backbone.safetensors  optimizer.safetensors  manifest.json  [classes.json]
                                head-00000-of-00002.safetensors  head-00001-of-00002.safetensors
                                [evaluation.json]

A run has parts with a state, such as the backbone and the optimizer. A part's arrays are in a file that is
named after the part. The part's other values are in the manifest, under the part's name. A head file contains
one rank's class rows: the class centres, and their optimizer's arrays. When a checkpoint is saved, the
manifest is written last, and the folder is then renamed. The manifest lists the head files' class ranges, and
each file's size and checksum. evaluation.json is added later, when the checkpoint has been evaluated. The
manifest does not list it. This module uses neither pickle nor Paddle. Ranks communicate only by the function
`gather` that the caller passes to `save`.

Try it: `Checkpoint.open(find(Path("output/checkpoints"))).head(0, 10)["centres"]`.
"""

import contextlib
import errno
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plsc.checkpoint.evaluation import Evaluation
from plsc.checkpoint.manifest import BACKBONE, file_of, manifest_bytes, tiles
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import DamagedError, layout, size_of, sync_folder, write_synced
from plsc.errors import MissingFileError, UserError, escape, writing
from plsc.utils.atomic_write import atomic_write, remove
from plsc.utils.logging import get_logger
from plsc.utils.preprocessing import Preprocessing
from plsc.utils.text import gigabytes


class SaveError(UserError):
    """A checkpoint could not be written. Earlier checkpoints are untouched, and training may continue.

    Attributes:
        remedy: what the user can do, as a verb with its object.
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
    """What one rank writes to a checkpoint. A rank writes its `rows`, and rank 0 writes all other fields.

    Attributes:
        step: how many steps the run has finished.
        epoch: the last finished step's epoch, counted from 1.
        states: the state of each part of the run, by the part's name, such as "backbone". A state contains
            plain values, and its arrays by name under the key "arrays".
        rows: class rows on this rank, by the array's name. The first axis is the S classes in `shard`. The
            arrays are "centres" [S, D], "bias" [S] if the head has a bias, and the arrays of their optimizer,
            such as "momentum" [S, D]. D is the length of a class's row.
        num_classes: class count over all ranks.
        shard: the classes in `rows`, [start, stop). If every rank's `rows` contain all classes, only rank 0
            writes them.
        config: the config's settings, by section.
        preprocessing: how images are prepared for the network.
        classes: each class's name, or None if the classes have no names.
        weights: name of a part, such as the one that keeps a running average of the weights. Evaluation and
            export use this part's arrays as the network's weights. If it has no arrays, they use the
            backbone's.
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
    """Write the folder `root`/step-XXXXXXXX, which must not exist, and return its path. Every rank calls
    this.

    The arrays are not copied, so they must not change until this function returns. When it returns, the whole
    checkpoint is on the disk.

    Args:
        root: the folder with the run's checkpoints.
        content: what this rank writes.
        rank: this rank.
        gather: function that takes this rank's value, and returns all ranks' values as a list, in rank order.
            It must let the ranks call it minutes apart, because their disks may differ in speed. With several
            ranks, pass `distributed.gather_objects`.

    Raises SaveError on every rank if a rank fails. The message names that rank and the reason.
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
        if replicated:  # one file for all ranks
            shards = shards[:1]
        assert tiles(shards, num_classes), f"{shards} do not cover the classes [0, {num_classes})"
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
            "row_width": content.rows["centres"].shape[1],
            "heads": [
                {"file": name, "start": start, "stop": stop} for name, (start, stop) in zip(names, shards)
            ],
            "files": {name: info for of_rank in written for name, info in of_rank.items()},
        }
        on_all(_publish, final, first, fields)
    except SaveError:
        if first:
            tidy(root)  # frees space if the disk is full. What it cannot remove now, the next save removes
        raise
    return final


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary name for a folder with a checkpoint outside a run, and rename it to `folder` at the
    end.

    Raises UserError if `folder` exists, or if it cannot be written. Nothing then remains.
    """
    try:
        with writing(folder), atomic_write(folder, new=True) as beside:
            yield beside
    except SaveError as error:
        reason = getattr(error.__cause__, "strerror", None) or escape(error.__cause__)
        line = f"{escape(folder)}: cannot be written: {reason}; {error.remedy}, and try again"
        raise UserError(line) from error


def _on_all_ranks(what: str, gather: Callable[[Any], list], work: Callable, *args: Any) -> list:
    """Call work(*args) on every rank, and return all ranks' results in rank order.

    Raises SaveError on every rank if a rank fails. Without the error, the other ranks would wait for the rank
    that failed.
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
    """Make the temporary folder beside `final` on the first rank.

    Returns `shard`, because `_on_all_ranks` then gives each rank's shard to all ranks.
    """
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
    """Add the manifest to the temporary folder, and rename the folder to `final`."""
    if not first:
        return
    # `final` cannot exist: before a run returns to an earlier step, it sets all later checkpoints aside.
    # Deleting `final` here would be unsafe. If the process were then killed before the rename, neither the
    # old nor the new checkpoint would exist.
    assert not final.exists(), f"{final} exists"
    tmp = _beside(final, "tmp")
    write_synced(tmp / "manifest.json", [manifest_bytes(fields)])
    sync_folder(tmp)
    tmp.rename(final)
    sync_folder(final.parent)


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(f"{final.name}.{suffix}")


def tidy(root: Path) -> None:
    """Remove the temporary folders of saves and prunes that did not finish."""
    for path in _entries(root, r"step-\d{8,}\.tmp"):
        with contextlib.suppress(OSError):  # another host may be reading it. The next save tries again
            remove(path)


def _entries(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if re.fullmatch(pattern, path.name))


def find(root: Path, which: str = "newest", rename: bool = False) -> Path | None:
    """Find a checkpoint, and verify its checksums.

    One rank calls this, and sends the path to the other ranks. All ranks then open the checkpoint with
    verify=False. A checkpoint is unusable if a file in it is missing or damaged. The search for the newest
    checkpoint skips unusable ones, and logs a warning for each. It also skips a checkpoint that a run deletes
    during the search.

    Args:
        root: the folder with the run's checkpoints.
        which: "newest" or "best", which selects a checkpoint in `root`. Any other value is the path of a
            checkpoint's folder, of a folder with checkpoints, or of a run's folder. If the folder contains
            several checkpoints, the newest one is selected.
        rename: whether to rename unusable checkpoints in `root` to step-XXXXXXXX.bad. They are never deleted.
            A run that will write to `root` passes True.

    Returns the checkpoint's folder. If `which` is "newest" or "best", and `root` contains no checkpoint, not
    even an unusable one, returns None.

    Raises UserError in these cases:
        - There are checkpoints, but none is usable, or all were set aside. A run must not start from step 0
          beside damaged checkpoints.
        - `which` is "best", but no checkpoint has been evaluated, or the best one is unusable.
        - `which` is a folder without a checkpoint, or the folder of one unusable checkpoint.
        - A checkpoint has an unknown format, or cannot be read now, for example because a disk is not
          mounted. Such a checkpoint does not count as unusable.
    """
    if which not in ("newest", "best"):
        beside = root / Path(which).name
        if not Path(which).exists() and beside.is_dir():
            raise MissingFileError(f"{which}: there is no such checkpoint folder, did you mean '{beside}'?")
        below = [folder for folder in (Path(which, "checkpoints"), Path(which)) if completed(folder)]
        return _newest(below[0], False) if below else Checkpoint.open(which).path
    newest = _newest(root, rename)
    if which == "newest" or newest is None:
        return newest
    found = best(root)
    if not found:
        raise UserError(f"{root}: no checkpoint has been evaluated, so none is the best; use the newest")
    return Checkpoint.open(found).path


def best(root: Path) -> Path | None:
    """Return the checkpoint in `root` with the best evaluation, or None if none has been evaluated.

    The result is not stored, but found at each call from the files evaluation.json. If several checkpoints
    have the best value, the oldest of them is returned. An evaluation counts only if it is like the newest
    one that has a value (`Evaluation.is_like`). An evaluation that was made with other images, for example,
    is not like it, and the two values cannot be compared. The function never returns a checkpoint that was
    deleted or set aside, because it reads only the folders that `completed` lists.

    The result changes if a later evaluation has a higher value, or is not like the older ones, and if the
    best checkpoint is set aside.
    """
    found: Path | None = None
    first: Evaluation | None = None
    value = -math.inf
    for path in reversed(completed(root)):
        made = Evaluation.read(path)
        if made is None or made.value is None:
            continue
        first = first or made
        if made.is_like(first) and made.value >= value:
            found, value = path, made.value
    return found


def _newest(root: Path, rename: bool) -> Path | None:
    """Find the newest usable checkpoint in `root`, as `find` describes."""
    bad = 0
    for path in reversed(completed(root)):
        try:
            Checkpoint.open(path)
        except (DamagedError, MissingFileError) as error:
            if not path.exists():  # deleted during the search
                continue
            bad += 1
            renamed = f" and renamed to {set_aside(path).name}" if rename else ""
            get_logger().warning(f"checkpoint {path.name} is unusable ({error}); it was skipped{renamed}")
            continue
        return path
    notes = ["the warnings above say why"] if bad else []
    if _entries(root, r"step-\d{8,}\.bad\d*"):
        notes.append("checkpoints that a run has set aside have .bad in their names")
    if notes:
        raise UserError(
            f"{root}: no checkpoint is usable ({'; '.join(notes)}); put a good copy back, or start a new run "
            "with another Global.output_dir"
        )
    return None


def folder_of(root: Path, step: int) -> Path:
    """Return the folder for a step's checkpoint."""
    return root / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step from a checkpoint folder's name, step-XXXXXXXX."""
    return int(path.stem.removeprefix("step-"))


def newest_below(folder: str) -> str | Path:
    """Return the newest checkpoint in `folder`/checkpoints. If that folder contains no checkpoint, return the
    newest one in `folder`, or else `folder` itself. No checksum is verified."""
    return [folder, *completed(Path(folder)), *completed(Path(folder, "checkpoints"))][-1]


def completed(root: Path) -> list[Path]:
    """List the completed checkpoints in `root`, the oldest first. Only the folder names are checked."""
    return sorted((path for path in _entries(root, r"step-\d{8,}") if path.is_dir()), key=step_of)


def newest_step(root: Path) -> int | None:
    """Return the step of the newest completed checkpoint in `root`, or None. No checksum is verified."""
    present = completed(root)
    return step_of(present[-1]) if present else None


def set_aside(path: Path) -> Path:
    """Set a checkpoint aside, and return its new path. The folder gets the suffix .bad, or the first free one
    among .bad2, .bad3, ..."""
    names = (_beside(path, f"bad{number}" if number > 1 else "bad") for number in itertools.count(1))
    return path.rename(next(aside for aside in names if not aside.exists()))


def set_aside_after(root: Path, step: int) -> None:
    """Set aside the checkpoints in `root` that are later than `step`.

    A run that returns to an earlier step writes checkpoints with lower steps again. Without this function,
    the run would later resume from the old checkpoints with higher steps.
    """
    later = [path for path in completed(root) if step_of(path) > step]
    aside = [set_aside(path) for path in later]
    if aside:
        get_logger().warning(
            f"resuming from step {step}: later checkpoints are set aside, the last one as {aside[-1]}"
        )


def prune(root: Path, keep: int) -> list[Path]:
    """Delete all checkpoints except the newest `keep` and the one that `best` returns. Return their former
    folders.

    Rank 0 calls this after a save. Only folders with a manifest are counted and deleted. A folder that cannot
    be deleted now is deleted after a later save.
    """
    whole = [path for path in completed(root) if (path / "manifest.json").is_file()]
    kept = best(root)
    deleted = []
    for path in whole[:-keep]:
        if path == kept:
            continue
        with contextlib.suppress(OSError):  # for example, another host is reading it
            # The folder gets a name that `completed` does not list. If the process is killed during the
            # deletion, the remaining files are therefore not mistaken for a checkpoint.
            tmp = path.rename(_beside(path, "tmp"))
            deleted.append(path)
            sync_folder(tmp.parent)
            remove(tmp)
    return deleted
