"""Check before the first step that all ranks train the same network on the same data into one folder.

Ranks on several machines may have different configs, pictures, versions or disks. No step would show the
difference, and each rank would train to the end in its own way. Therefore every rank lists facts, such as a
config key's value or a checksum of its labels (`_program_facts`, `_network_facts`, `_data_facts`). The facts
are gathered once, and all ranks refuse the first difference. A single rank compares nothing.

The device, the number of loading processes, `hang_seconds` and a path's folders belong to a machine and are
not compared. A difference in threads or processor only causes a warning. Of each set, only a few pictures, at
most 65,536 labels and class names, and at most 4,096 names of training images are compared, so a change in
any other is not noticed.
"""

import contextlib
import importlib.metadata
import secrets
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from plsc import distributed, native
from plsc.config import Config
from plsc.data.dataset import Dataset, make_sample, name_of
from plsc.distributed import environment
from plsc.errors import Mistakes, SeveralErrors, UserError, escape, in_one_line, writing
from plsc.training.init_from import find_weights
from plsc.training.run_folder import locate_checkpoint
from plsc.utils.atomic_write import remove
from plsc.utils.logging import warn_on_rank_0
from plsc.utils.registry import is_import_path
from plsc.utils.version import __version__

_OF_A_MACHINE = {
    *("Global.output_dir", "Global.threads", "Global.device", "Global.hang_seconds"),
    "DataLoader.Train.num_workers",
}
_TRAIN_PICTURES = 4  # how many pictures in the training set are compared
_EVAL_PICTURES = 2  # how many pictures in each evaluation set are compared
_MAX_VALUES = 65_536  # most labels or names per set that are compared, evenly spread
_MAX_NAMES = 4_096  # most pictures per set whose names are compared, evenly spread
# Facts that may differ, since only the last bits of sums depend on them.
_MAY_DIFFER = {
    "threads": "threads: the last bits of sums depend on their number",
    "processor": "as its processor: the last bits of sums depend on its instructions",
}


class Start(NamedTuple):
    """What rank 0 has decided for all ranks.

    Attributes:
        checkpoint: verified checkpoint to read, or None.
        resumes: whether the run is resumed from it. Otherwise the run only takes its weights.
        folders: the folders that rank 0's config names, one of which contains the checkpoint.
        word: a file's name that rank 0 has made in Global.output_dir.
    """

    checkpoint: Path | None
    resumes: bool
    folders: list[Path]
    word: str

    def checkpoint_of(self, cfg: Config) -> Path | None:
        """Return the path by which this rank reads the checkpoint. Ranks may name the same folder
        differently."""
        for of_rank_0, own in zip(self.folders, _named_folders(cfg)):
            if self.checkpoint and self.checkpoint.is_relative_to(of_rank_0):
                return own / self.checkpoint.relative_to(of_rank_0)
        return self.checkpoint


def _named_folders(cfg: Config) -> list[Path]:
    section = cfg.Global
    return [Path(name) for name in (section.output_dir, section.init_from, section.checkpoint) if name]


@contextlib.contextmanager
def one_start(cfg: Config, resumes: bool) -> Iterator[Start]:
    """Find the checkpoint on rank 0, and let rank 0 make a file that the others look for inside the block.

    resumes: whether to look for a run to resume. Rank 0's value counts.

    Every rank calls it. Raises what `locate_checkpoint` and `find_weights` raise.
    """
    folder = Path(cfg.Global.output_dir)

    def begin() -> Start:
        path = locate_checkpoint(cfg.Global, writes=True) if resumes else None
        resumed = path is not None
        if not resumed and cfg.Global.init_from:
            path = find_weights(cfg.Global.init_from)
        word = f".start-{secrets.token_hex(8)}"
        if distributed.world_size() > 1:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / word).touch()
        return Start(path, resumed, _named_folders(cfg), word)

    start = distributed.run_on_rank_0(begin)
    try:
        yield start
    finally:
        if distributed.rank() == 0:
            with contextlib.suppress(OSError):
                remove(folder / start.word)


def build_and_compare(cfg: Config, start: Start, threads: int, build: Callable[[], Any]) -> Any:
    """Call `build` on every rank, compare the ranks, and return this rank's Trainer.

    Args:
        cfg: this rank's config.
        start: from `one_start`, inside its block.
        threads: thread count for this rank's matrix products.
        build: makes a Trainer without collectives.

    Raises UserError, the same on every rank, if the ranks differ or `build` raises an error on some. If it
    fails on all, each rank raises its own error.
    Collectives: one gather of Python objects.
    """
    if distributed.world_size() == 1:
        return build()
    trainer, problem, cause, data = None, None, None, {}
    try:
        trainer = build()
        data = _network_facts(trainer) | _data_facts(trainer)
    except UserError as error:
        problem = cause = error
    except Exception as error:  # noqa: BLE001 (a user's class may raise any)
        problem, cause = UserError(in_one_line(error)), error
    program = _program_facts(cfg, start, threads)  # after `build`, which imports the user's modules
    rows = distributed.gather_objects((program, data, problem))
    refuse_differences([program for program, _, _ in rows])
    refuse_differences([data for _, data, _ in rows])
    problems = [each for _, _, each in rows]
    if all(problems):
        raise cause
    for rank, each in enumerate(problems):
        if each:
            mistakes = Mistakes()
            for error in each.errors if isinstance(each, SeveralErrors) else [each]:
                mistakes.found.append(type(error)(f"rank {rank}: {error.text}", error.key))
            try:
                mistakes.raise_all()
            except UserError as error:
                raise error from cause
    return trainer


def refuse_differences(facts: list[Mapping[str, Any]]) -> None:
    """Raise UserError for the first fact in which ranks differ, and name the other facts.

    facts: for each rank a mapping from the fact's name to its value. If a rank could not build its data, the
    facts that it lacks are not compared.
    """
    different = []
    for name in dict.fromkeys(name for rank_facts in facts for name in rank_facts):
        unset = None if " " in name else "its default"  # a config's key has no space
        values = [rank_facts.get(name, unset) for rank_facts in facts]
        known = [value for value in values if value is not None]
        if all(value == known[0] for value in known):
            continue
        if name in _MAY_DIFFER:
            warn_on_rank_0(f"{_who_has_what(values)} {_MAY_DIFFER[name]}")
        else:
            different.append((name, values))
    if different:
        name, values = different[0]
        more = f" (so do {', '.join(name for name, _ in different[1:4])})" if different[1:] else ""
        more = more.replace(")", ", ...)") if different[4:] else more
        raise UserError(
            f"the ranks differ in {name}{more}: {_who_has_what(values)}; start all ranks with the same"
        )


def _who_has_what(values: list[Any]) -> str:
    """Describe which ranks have which values: "rank 0 has 0.1, ranks 1, 2 have 0.01"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks.setdefault(escape(value), []).append(rank)
    parts = []
    for value, owners in ranks.items():
        numbers = ", ".join(map(str, owners[:4])) + (", ..." if owners[4:] else "")
        parts.append(f"rank {numbers} has {value}" if len(owners) == 1 else f"ranks {numbers} have {value}")
    return ", ".join(parts[:4])


def _program_facts(cfg: Config, start: Start, threads: int) -> dict[str, Any]:
    """Describe the folder, the program, the config and the checkpoint."""
    folder = Path(cfg.Global.output_dir)
    shared = (folder / start.word).exists()
    plain = cfg.plain()
    facts = {
        "the folder Global.output_dir": "that of rank 0" if shared else f"a folder of its own, {folder}",
        "plsc's version": __version__,
        "plsc's sources": _digest(path.read_bytes() for path in sorted(_sources())),
        "plsc's kernels": native.build(),
        "Paddle's version": paddle.__version__,
        "NumPy's version": np.__version__,  # it draws random numbers
        "OpenCV's version": _version("opencv-python-headless", "opencv-python"),
    }
    for key, value in _flat(plain):
        if key not in _OF_A_MACHINE:
            facts[key] = escape("null" if value is None else value)
    facts |= _module_facts([value for _, value in _flat(plain) if isinstance(value, str)])
    path = start.checkpoint_of(cfg)
    if path is not None:
        facts[f"the checkpoint {path.name}"] = _checkpoint_fact(path)
    return {**facts, "threads": threads, "processor": environment.processor()}


def _checkpoint_fact(path: Path) -> str:
    """Describe a checkpoint by its manifest and its files' sizes. Rank 0 alone has verified every byte."""
    try:
        manifest = _digest([(path / "manifest.json").read_bytes()])
        sizes = sorted((each.name, each.stat().st_size) for each in path.iterdir())
    except OSError as error:
        return f"none at {path} ({error.strerror})"
    return f"{len(sizes)} files ({manifest}, {_digest([repr(sizes).encode()])})"


def _sources() -> Iterable[Path]:
    return Path(__file__).parents[1].rglob("*.py")


def _module_facts(values: Iterable[str]) -> dict[str, str]:
    """Describe the source of each module that is the user's own.

    It is in a package that the config names, or it is not in a folder of installed modules, such as a script
    or a module beside the config.

    values: all texts of the config.
    """
    named = {value.partition(":")[0].partition(".")[0] for value in values if is_import_path(value)}
    root = Path(__file__).parents[2]
    facts = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__") or ""
        if not file.endswith(".py") or file.startswith((f"{root}/plsc/", f"{root}/tools/")):
            continue
        installed = "/site-packages/" in file or "/dist-packages/" in file
        installed = installed or file.startswith(sysconfig.get_path("stdlib"))
        if name != "__mp_main__" and (not installed or name.partition(".")[0] in named):
            what = "the script" if name == "__main__" else f"the source of {name}"
            with contextlib.suppress(OSError):  # deleted since
                facts[what] = _digest([Path(file).read_bytes()])
    return facts


def _version(*packages: str) -> str:
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "unknown"


def _network_facts(trainer: Any) -> dict[str, Any]:
    """Describe the network, which the caller may have passed instead of Model.name."""
    arrays = [(name, value.shape, str(value.dtype)) for name, value in trainer.backbone.state_dict().items()]
    return {
        "the network": f"{len(arrays)} arrays ({_digest([repr(arrays).encode()])})",
    }


def _data_facts(trainer: Any) -> dict[str, Any]:
    """Describe the data sets."""
    dataset = trainer.dataset
    name = "DataLoader.Train"
    facts = _set_facts(name, dataset, dataset.labels, dataset.num_classes)
    shape = dataset.preprocessing.shape
    facts[f"the names of the images of {name}"] = _digest([_some_names(dataset)])
    facts |= _picture_facts(
        name, lambda index: make_sample(dataset, index, 0, shape), len(dataset), _TRAIN_PICTURES
    )
    for number, (title, data) in enumerate(trainer.evaluator.sets.items(), 1):
        name = f"the evaluation set {number} ({_without_folders(title)})"
        facts |= _set_facts(name, data, data.labels, data.num_classes, data.count)
        facts |= _picture_facts(
            name, lambda index, data=data: data.images(index, index + 1), data.count, _EVAL_PICTURES
        )
    return facts


def describe_images(dataset: Dataset) -> str:
    """Describe a training set by its image count and a checksum of its labels and its images' names.

    The checksum contains at most as many labels and names as the ranks compare.
    """
    return f"{len(dataset):,} (checksum {_digest([*_spread(dataset.labels), _some_names(dataset)])})"


def _some_names(dataset: Dataset) -> bytes:
    step = -(-len(dataset) // _MAX_NAMES) or 1
    names = [_without_folders(name_of(dataset.name, index)) for index in range(0, len(dataset), step)]
    return repr(names).encode()


def _set_facts(name: str, data: Any, labels: Any, classes: int | None, count: int | None = None) -> dict:
    identities = getattr(data, "identities", None)
    return {
        f"the images of {name}": f"{len(labels) if count is None else count:,}",
        f"the classes of {name}": None if classes is None else f"{classes:,}",
        f"the names of the classes of {name}": None if identities is None else _digest(_spread(identities)),
        f"the labels of {name}": None if labels is None else _digest(_spread(labels)),
    }


def _picture_facts(name: str, picture: Callable[[int], np.ndarray], count: int, most: int) -> dict[str, Any]:
    """Describe `most` pictures, or why one cannot be read. The step that needs such a picture handles it."""
    facts = {}
    for index in sorted({count * part // most for part in range(most)} if count else ()):
        try:
            value = _digest([np.ascontiguousarray(picture(index)).tobytes()])
        except UserError as error:
            value = str(error)
        facts[f"the pictures of {name}, number {index}"] = value
    return facts


def _spread(values: np.ndarray) -> Iterator[bytes]:
    """Yield at most _MAX_VALUES values, evenly spread, as bytes."""
    step = -(-len(values) // _MAX_VALUES) or 1
    part = values[::step]
    if part.dtype.kind == "U":  # numbered folders are named by their whole path
        yield repr([*map(_without_folders, part.tolist())]).encode()
    else:
        yield repr(part.tolist()).encode() if part.dtype.kind == "O" else np.ascontiguousarray(part).tobytes()


def _without_folders(path: str) -> str:
    return path.rpartition("/")[2]


def _digest(parts: Iterable[bytes]) -> str:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return f"{crc:08x}"


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested sections' dotted keys and their values. Paths lose their folders."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _flat(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(child, Mapping) for child in value):
        for number, child in enumerate(value):
            yield from _flat(child, f"{key}.{number}")
    else:
        yield key, _portable(value)


def _portable(value: Any) -> Any:
    if isinstance(value, list):
        return [_portable(each) for each in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value
