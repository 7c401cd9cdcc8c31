"""Save and open checkpoints: a folder a step, written beside and renamed; any world size reads any other's.

    checkpoints/step-00000120/  backbone.safetensors  optimizer.safetensors  manifest.json
                                [ema.safetensors]  [classes.json]
                                head-00000-of-00002.safetensors  head-00001-of-00002.safetensors

A head file holds one rank's class rows. The manifest, written last, lists their ranges and each file's size
and checksum. No pickle, no Paddle, no collective of its own.

Try it: `Checkpoint.open(latest("output/checkpoints")).head(0, 10)["centres"]`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plsc.checkpoint.manifest import (
    BACKBONE,
    EMA,
    Manifest,
    format_of,
    open_folder,
    read_json,
    seal,
    tiles,
)
from plsc.checkpoint.tensorfile import DamagedError, TensorFile, layout, sync_folder, write_synced
from plsc.checkpoint.train_state import TrainState
from plsc.errors import MissingFileError, UserError
from plsc.utils.atomic_write import remove, replace_file
from plsc.utils.disk import full_disk
from plsc.utils.sharding import ClassShard
from plsc.utils.version import __version__

_log = logging.getLogger("plsc")
_RESUME = (
    "resume with the model and data that it was made with, or start a new run in another Global.output_dir"
)


class SaveError(UserError):
    """A checkpoint could not be written; the earlier ones are untouched and training may go on."""


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint on one rank; of all but `head` and `shard`, rank 0's is written.

    head: this rank's rows, first axis = class: "centres" [S, D], perhaps "bias" [S],
        and the arrays of their optimizer, such as "momentum" [S, D].
    shard: the classes of those rows; all classes on every rank: a replicated head.
    preprocessing: how images are prepared. classes: a name for each class; None: no names.
    ema: the averaged weights, with the names of `backbone`; None: there are none.
    """

    step: int
    epoch: int
    backbone: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    head: Mapping[str, np.ndarray]
    shard: ClassShard
    state: TrainState
    config_yaml: str
    preprocessing: dict
    classes: list[str] | None = None
    ema: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Ranks:
    """The ranks that write a checkpoint together.

    gather: the only collective, called three times: each rank's value -> the list of all, on every rank. It
    must wait longer than Gloo's 30 s, since the disks of the ranks may differ in speed.
    """

    rank: int
    world_size: int
    gather: Callable[[Any], list]


ONE_RANK = Ranks(0, 1, lambda value: [value])


def save(
    root: str | os.PathLike,
    content: Content,
    ranks: Ranks = ONE_RANK,
) -> Path:
    """Write the folder `root`/step-XXXXXXXX, in place of an existing one. Every rank calls it.

    The arrays are not copied and must not change until it returns; then all of it is on the disk.

    Returns the folder. Raises SaveError on every rank, with the rank that failed and why.
    """
    num_classes = content.shard.num_classes
    assert all(len(array) == content.shard.size for array in content.head.values()), "not a row per class"
    assert content.classes is None or len(content.classes) == num_classes
    root = Path(root)
    final = root / f"step-{content.step:08d}"
    fields = {
        "step": content.step,
        "epoch": content.epoch,
        "preprocessing": content.preprocessing,
        "state": content.state.to_json(),
        "config": content.config_yaml,
        "world_size": ranks.world_size,
        "num_classes": num_classes,
        "embedding_size": content.head["centres"].shape[1],
    }
    what = f"{root}: checkpoint of step {content.step} not written, earlier ones untouched"
    rank = ranks.rank
    mine = _files_of_rank_0(content) if rank == 0 else {}
    together = partial(_together, what, ranks.gather)
    try:
        ranges = together(_begin, final, rank, (content.shard.start, content.shard.stop))
        shards = _distinct(ranges, num_classes)
        names = [f"head-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(len(shards))]
        if rank < len(names):
            mine[names[rank]] = layout(content.head)
        files = {name: info for written in together(_write, final, mine) for name, info in written.items()}
        heads = [{"file": name, "start": start, "stop": stop} for name, (start, stop) in zip(names, shards)]
        together(_publish, final, rank, {**fields, "heads": heads, "files": files})
    except SaveError:
        if rank == 0:
            _tidy(root, ignore_errors=True)  # the disk may be full or gone; the next save tries again
        raise
    return final


def save_patiently(write: Callable[[], Path], pauses: Iterable[float]) -> Path:
    """Call `write`, again after each of `pauses` (seconds) while it raises SaveError; alike on all ranks."""
    for pause in pauses:
        try:
            return write()
        except SaveError as error:
            _log.error("%s; it is the last: trying again in %g s, free some space meanwhile", error, pause)
            time.sleep(pause)
    return write()


def _files_of_rank_0(content: Content) -> dict[str, list]:
    files = {
        BACKBONE: layout(content.backbone),
        "optimizer.safetensors": layout(content.optimizer),
    }
    if content.ema is not None:
        files[EMA] = layout(content.ema)
    if content.classes is not None:
        files["classes.json"] = [json.dumps(content.classes, indent=0).encode()]
    return files


def _together(what: str, gather: Callable, work: Callable, *args: Any) -> list:
    """Call work(*args) on every rank; return all results, or raise SaveError on every rank.

    An error on one rank alone would leave the others waiting.
    """
    result = None
    failure = None
    cause = ""
    try:
        result = work(*args)
    except Exception as error:  # noqa: BLE001 (see above)
        failure = error
        cause = " ".join(f"{type(error).__name__}: {error}".split())
    answers = gather((result, cause))
    for number, (_, cause) in enumerate(answers):
        if cause:
            raise SaveError(f"{what}: rank {number}: {cause}") from failure
    return [result for result, _ in answers]


def _begin(final: Path, rank: int, shard: tuple[int, int]) -> tuple[int, int]:
    if rank == 0:
        final.parent.mkdir(parents=True, exist_ok=True)
        _tidy(final.parent)
        _beside(final, "tmp").mkdir()
    return int(shard[0]), int(shard[1])


def _distinct(shards: list[tuple[int, int]], num_classes: int) -> list[tuple[int, int]]:
    """Return one range per head file: the ranks' own, or a single one when the head is replicated."""
    if set(shards) == {(0, num_classes)}:
        shards = shards[:1]
    assert tiles(shards, num_classes), f"the shards {shards} do not make up the classes [0, {num_classes})"
    return shards


def _write(final: Path, files: dict[str, list]) -> dict[str, dict]:
    tmp = _beside(final, "tmp")
    need = sum(len(buffer) for buffers in files.values() for buffer in buffers)
    if error := full_disk(tmp, need):
        raise error
    try:
        return {name: write_synced(tmp / name, buffers) for name, buffers in files.items()}
    except OSError as error:
        raise full_disk(tmp, need, error) or error from error


def _publish(final: Path, rank: int, fields: dict) -> None:
    if rank != 0:
        return
    tmp = _beside(final, "tmp")
    root = final.parent
    manifest = Manifest(format=format_of(fields["files"]), plsc=__version__, **fields)
    write_synced(tmp / "manifest.json", [seal(json.dumps(manifest.to_json(), indent=1)[1:].encode())])
    sync_folder(tmp)
    if final.exists():
        final.rename(_beside(final, "old"))  # `latest` finds it there until the next line is done
    tmp.rename(final)
    sync_folder(root)
    _tidy(root, ignore_errors=True)  # the replaced one; the next save tries again


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(f"{final.name}.{suffix}")


def _tidy(root: Path, ignore_errors: bool = False) -> None:
    """Remove the leftovers of a killed save or prune; a replaced checkpoint gets its name back if needed."""
    for path in _entries(root, r"step-\d{8,}\.(tmp|old)"):
        final = path.with_suffix("")
        if path.suffix == ".old" and not final.exists() and path.is_dir():
            path.rename(final)
            continue
        try:
            remove(path)
        except OSError:
            if not ignore_errors:
                raise


def _entries(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if re.fullmatch(pattern, path.name))


def latest(root: str | os.PathLike, rename: bool = True, before: int | None = None) -> Path | None:
    """Find the newest whole checkpoint in `root`, every checksum verified; None if none was ever completed.

    An unusable newer one gives a warning and, with `rename`, is set aside as step-XXXXXXXX.bad (never
    deleted). One rank calls it, with rename=True for a run that will write here, and sends the others the
    path, which they open with verify=False. A checkpoint that a running training deletes meanwhile is
    skipped.

    Args:
        before: only checkpoints of earlier steps than this; then None too if none of them is usable.

    Raises: UserError if there are checkpoints and none is usable, so that a run never starts anew over a
    damaged one; also for one written by a newer plsc, or not readable now or by this user, which is not
    damage.
    """
    root = Path(root)
    complete = _complete(root)
    for path in reversed(complete):
        if before is not None and int(path.stem[5:]) >= before:
            continue
        try:
            Checkpoint.open(path)
        except UserError as error:
            if not path.exists():
                continue
            if not isinstance(error, DamagedError):
                raise
            aside = _set_aside(path) if rename else path
            _log.warning(
                "checkpoint %s is unusable (%s); %s, trying the one before it",
                path.name,
                error,
                f"kept as {aside.name}" if rename else "left as it is",
            )
            continue
        if rename and path.suffix:  # a replacement was killed halfway
            path = path.rename(path.with_suffix(""))
        return path
    present = _complete(root)
    if set(present) - set(complete):  # written since
        return latest(root, rename, before)
    bad = len(_entries(root, r"step-\d{8,}\.bad\d*")) or len(present)
    if bad and before is None:
        kept = "; they are kept as .bad" if rename else ""
        raise UserError(
            f"{root}: none of the {bad} checkpoints is usable (the warnings say why{kept}): "
            "put a good copy back, or start anew with another Global.output_dir"
        )
    return None


def _complete(root: Path) -> list[Path]:
    """List the completed checkpoints in `root`, damaged ones too, the oldest first."""
    folders = [path for path in _entries(root, r"step-\d{8,}(\.old)?") if _may_be_folder(path)]
    return sorted(folders, key=lambda path: (int(path.stem[5:]), not path.suffix))


def _may_be_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a lost disk: opening the checkpoint reports it
        return True


def best(root: str | os.PathLike) -> Path:
    """Find the best checkpoint in `root` by the main evaluation, every checksum verified.

    The newest whole checkpoint records which it is. Raises UserError if nothing has been evaluated or the
    best is missing, and what `latest` and `Checkpoint.open` raise.
    """
    newest = latest(root, rename=False)
    if newest is None:
        raise MissingFileError(f"{root}: no checkpoint there; train first")
    known = Checkpoint.open(newest, verify=False).state.best
    if not known:
        raise UserError(
            f"{newest}: no evaluation has been made up to this checkpoint, so none is the best; take the newest"
        )
    return Checkpoint.open(Path(root) / f"step-{known.step:08d}").path


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := _beside(path.with_suffix(""), "bad" if number == 1 else f"bad{number}")).exists():
        number += 1
    return path.rename(aside)


def set_aside_after(root: str | os.PathLike, step: int) -> None:
    """Set the checkpoints of later steps aside, so that a run that has gone back is not resumed from them."""
    for path in _entries(Path(root), r"step-\d{8,}"):
        if int(path.name[5:]) > step:
            _set_aside(path)


def prune(
    root: str | os.PathLike, keep: int, protect: Collection[int] = (), way_back: int | None = None
) -> list[Path]:
    """Delete the oldest checkpoints beyond the newest `keep`; rank 0 calls it after a save.

    Args:
        protect: steps that stay whatever their age, such as the best one.
        way_back: the newest checkpoint of an earlier step than this stays too.

    Only folders with a manifest and all files count, and only they are deleted. Returns: the deleted folders.
    """
    assert keep >= 1
    whole = []
    for path in sorted(_entries(Path(root), r"step-\d{8,}"), key=lambda path: int(path.name[5:])):
        try:
            Checkpoint.open(path, verify=False)
        except UserError:  # `latest` reports what is wrong with it
            continue
        whole.append(path)
    earlier = [int(path.name[5:]) for path in whole if way_back is not None and int(path.name[5:]) < way_back]
    doomed = [path for path in whole[:-keep] if int(path.name[5:]) not in (*protect, *earlier[-1:])]
    for path in doomed:
        tmp = path.rename(_beside(path, "tmp"))  # a kill in the middle leaves nothing that looks whole
        sync_folder(tmp.parent)
        remove(tmp)
    return doomed


_THRESHOLD = "threshold.json"  # in the folder but not in the manifest: it may be added or removed later


def set_threshold(saved: Checkpoint, cosine: float, of: str, flip: bool) -> Path:
    """Store the threshold of a later evaluation with a checkpoint; `state` has it when it is opened again.

    Args:
        cosine: two images with a higher one are of the same class.
        of: title of the set.
        flip: see DataLoader.Eval.flip.
    """
    file = saved.path / _THRESHOLD
    content = {"threshold": cosine, "threshold_set": of, "threshold_step": saved.step, "flip": flip}
    try:
        replace_file(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(
            f"{file}: cannot be written: {error.strerror}; copy the checkpoint to a folder of yours"
        ) from error
    return file


def _read_threshold(path: Path) -> dict[str, Any]:
    """Read the fields that `set_threshold` stored with a checkpoint; {} if there are none."""
    file = path / _THRESHOLD
    if not file.is_file():
        return {}
    kinds = {"threshold": float, "threshold_set": str, "threshold_step": int, "flip": bool}
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError):
        content = None
    right = isinstance(content, dict) and all(type(content.get(key)) is kind for key, kind in kinds.items())
    if not right or not -1 <= content["threshold"] <= 1:
        raise UserError(f"{file}: is not what plsc-eval --set-threshold writes; delete it, or write it anew")
    return {key: content[key] for key in kinds}


class Checkpoint:
    """A whole checkpoint, open for reading; arrays come as copies. Make one with `Checkpoint.open`.

    Attributes: path, manifest (a `Manifest`), and from it step, epoch, num_classes, embedding_size, state,
    preprocessing, config_yaml.
    """

    def __init__(self, path: Path, manifest: Manifest, tensors: dict[str, TensorFile]):
        self.path = path
        self.manifest = manifest
        self._tensors = tensors
        self.step, self.epoch = manifest.step, manifest.epoch
        self.num_classes, self.embedding_size = manifest.num_classes, manifest.embedding_size
        self.state = manifest.state.model_copy(update=_read_threshold(path))
        self.preprocessing, self.config_yaml = manifest.preprocessing, manifest.config

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> Checkpoint:
        """Open the folder `path`.

        Args:
            verify: read every file and compare its checksum. Without, only sizes, headers and ranges are
                checked; right after `latest` has verified, that is enough.

        Raises: DamagedError (cut, altered, never completed, hostile), MissingFileError, UserError (newer
        format, no permission).
        """
        path = Path(path)
        return cls(path, *open_folder(path, verify))

    def require(self, section: str, *keys: str) -> None:
        """Raise UserError unless `section`, "state" or "preprocessing", has all `keys`; imported centres lack some."""
        known = self.state.to_json() if section == "state" else self.preprocessing
        lacking = [key for key in keys if known.get(key) is None]
        if lacking:
            raise UserError(
                f"{self.path}/manifest.json: {section}.{lacking[0]}: is missing, so this cannot be used as a run's "
                "checkpoint; name one of a training, start from this one with Global.init_from, or import centres with --backbone"
            )

    def backbone(self) -> dict[str, np.ndarray]:
        """Read all arrays of the backbone, parameters and buffers, as the training left them."""
        return self._all(BACKBONE)

    @property
    def weights_file(self) -> str:
        """The file of the weights to use, for everything but to train on: the averaged ones if there are any."""
        return EMA if EMA in self._tensors else BACKBONE

    def weights(self) -> dict[str, np.ndarray]:
        """Read all arrays of `weights_file`; the names are those of `backbone`."""
        return self._all(self.weights_file)

    def ema(self) -> dict[str, np.ndarray] | None:
        """Read the averaged weights; None if the run had none."""
        return self._all(EMA) if EMA in self._tensors else None

    def optimizer(self) -> dict[str, np.ndarray]:
        """Read all arrays of the backbone's optimizer."""
        return self._all("optimizer.safetensors")

    def _all(self, name: str) -> dict[str, np.ndarray]:
        return {array: self._tensors[name].read(array) for array in self._tensors[name].arrays}

    def classes(self) -> list[str] | None:
        """Read the name of each class, or None if the run had none."""
        if "classes.json" not in self.manifest.files:
            return None
        names = read_json(self.path / "classes.json")
        if (
            not isinstance(names, list)
            or len(names) != self.num_classes
            or not all(isinstance(n, str) for n in names)
        ):
            raise DamagedError(f"{self.path}/classes.json: is not a list of {self.num_classes} names")
        return names

    @property
    def head_arrays(self) -> dict[str, Any]:
        """The head's arrays by name, with `.dtype` and `.shape`; the first axis is that of the first file."""
        return self._tensors[self.manifest.heads[0].file].arrays

    def head(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read only the rows of classes [start, stop) of the head's arrays, [stop - start, ...] each."""
        return {name: self.rows(name, start, stop) for name in self.head_arrays}

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read the rows of classes [start, stop) of one of the head's arrays."""
        assert 0 <= start <= stop <= self.num_classes
        entry = self.head_arrays[name]
        out = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        for part in self.manifest.heads:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                self._tensors[part.file].read_rows(name, low - part.start, out[low - start : high - start])
        return out

    def check_matches(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        backbone: Mapping[str, Any] | None = None,
        optimizer: Mapping[str, Any] | None = None,
        head: Mapping[str, Any] | None = None,
        remedy: str = _RESUME,
    ) -> None:
        """Raise UserError for a checkpoint of another model or data, with each difference and `remedy`.

        Args:
            backbone, optimizer, head: this run's arrays or tensors by name; names and shapes must agree (of
                the head's, all axes but the first). None = not compared.
        """
        differences = []
        if self.num_classes != num_classes:
            differences.append(f"has {self.num_classes} classes, this run has {num_classes}")
        if self.embedding_size != embedding_size:
            differences.append(f"has embedding size {self.embedding_size}, this run has {embedding_size}")
        files = {
            "backbone": BACKBONE,
            "optimizer": "optimizer.safetensors",
            "head": self.manifest.heads[0].file,
        }
        for part, wanted in (("backbone", backbone), ("optimizer", optimizer), ("head", head)):
            if wanted is not None and not (part == "head" and self.embedding_size != embedding_size):
                differences += _differences(part, self._tensors[files[part]].arrays, wanted)
        if differences:
            raise UserError(f"checkpoint {self.path.name} {'; '.join(differences)}: {remedy}")


def _differences(part: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """List at most one difference of each kind: missing names, extra names, other shapes."""
    axes = slice(1 if part == "head" else 0, None)
    lack, surplus = sorted(set(wanted) - set(saved)), sorted(set(saved) - set(wanted))
    other = [
        n
        for n in sorted(set(saved) & set(wanted))
        if list(saved[n].shape)[axes] != list(wanted[n].shape)[axes]
    ]
    differences = []
    if lack:
        differences.append(f"lacks {len(lack)} {part} arrays that this run has ({lack[0]})")
    if surplus:
        differences.append(f"has {len(surplus)} {part} arrays that this run lacks ({surplus[0]})")
    if other:
        name = other[0]
        shapes = f"{list(saved[name].shape)[axes]}, this run has {list(wanted[name].shape)[axes]}"
        differences.append(f"has {len(other)} {part} arrays of another shape ({name}: {shapes})")
    return differences
