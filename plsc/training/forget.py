"""Take people out of a trained network: their centres and the optimizer's state at once, the rest by a short repair.

The repair is a run that starts from the checkpoint (Global.init_from) without them (DataLoader.Train.without), which drops their rows.
Whether the network still treats them otherwise than strangers is tested before and after it: plsc/evaluation/membership.py.
`plsc forget` calls these; docs/finetune.md explains what the test proves.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plsc.checkpoint import store
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config, load
from plsc.data.build import build_dataset
from plsc.data.dataset import Dataset, PairSet, class_names, shared_identities
from plsc.data.preprocessing import Preprocessing
from plsc.entry import Entry
from plsc.errors import CorruptImageError, UserError, shown
from plsc.evaluation.membership import Auc, People, alike, auc, nearest
from plsc.training.embed import embed
from plsc.training.evaluator import build_sets
from plsc.utils.bfloat16 import float32_of

SHARE = 0.375  # of the run's length that the repair takes
WARMUP_STEPS = 10
_ROWS_AT_ONCE = 65_536  # of the centres
_MADE = ("export", "diverged", "predict", "card.md", "card.json")  # of a checkpoint


class Pictures(NamedTuple):
    """Samples of some people: [N, *shape], the person of each [N], the title of their set, and whether the people are known
    by name."""

    samples: np.ndarray
    person_N: np.ndarray
    title: str
    named: bool


class Membership(NamedTuple):
    """How a network treats the tested people's images against those of strangers. None where no person has two."""

    nearest: Auc | None
    alike: Auc | None


def read_pictures(cfg: Config, names: Sequence[str]) -> tuple[Pictures, Pictures]:
    """Read the training images of the classes `names`, and the images of people who were never trained on: those of the
    main evaluation.

    Raises UserError if the data lack one of the classes, or an image of them, or the main evaluation is of no such people.
    """
    key = "DataLoader.Train.dataset"
    data = build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place)
    known = class_names(data)
    if known is None:
        raise UserError(f"{key}: the classes have no names, by which people are found")
    if lacking := set(names).difference(known):
        raise UserError(
            f"{key}: has no class '{min(lacking)}'; the test needs the images that were trained on"
        )
    samples = []
    person = []
    for index in np.flatnonzero(np.isin(known, list(names))[data.labels]).tolist():
        with contextlib.suppress(CorruptImageError):
            samples.append(data.images(index, index + 1)[0])
            person.append(int(data.labels[index]))
    if not samples:
        raise UserError(f"{key}: no image of these people can be decoded")
    return Pictures(np.stack(samples), np.array(person), data.title, True), _read_strangers(cfg, data)


def _read_strangers(cfg: Config, trained: Dataset) -> Pictures:
    seen = getattr(trained, "identities", None)
    sets = build_sets(cfg, trained.preprocessing, trained.num_classes, seen, class_names(trained))
    pairs = next(iter(sets.values()), None)
    if not isinstance(pairs, PairSet):
        raise UserError(
            "DataLoader.Eval.dataset: must be pairs of people who were never trained on, to compare with; name some by -o"
        )
    person = np.arange(pairs.num_images) if pairs.identity_of is None else pairs.identity_of
    named = shared_identities(seen, pairs) is not None  # build_sets refuses those who were trained on
    return Pictures(pairs.images(), person, pairs.title, named)


def test(
    cfg: Config, checkpoint: Path, tested: Pictures, strangers: Pictures, *without: Sequence[str]
) -> list[Membership]:
    """Test whether a checkpoint's network treats `tested` otherwise than `strangers`.

    without: names of classes whose centres count as gone; there is a result for each of these lists.
    """
    backbone, saved = Entry(cfg, [f"Global.checkpoint={json.dumps(str(checkpoint))}"]).load_network()
    evaluation = cfg.DataLoader.Eval
    preprocessing = Preprocessing.from_json(saved.preprocessing)
    sides = []
    for pictures in (tested, strangers):
        read = partial(_rows, pictures.samples)
        count = len(pictures.samples)
        emb = embed(backbone, read, count, preprocessing, evaluation.batch_size, evaluation.flip)
        emb /= np.maximum(np.linalg.norm(emb, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        sides.append(People(emb, pictures.person_N))
    among_themselves = auc(alike(sides[0]), tested.person_N, alike(sides[1]))
    results = []
    for names in without:
        ours, theirs = (nearest(people, _centres(saved, names)) for people in sides)
        results.append(Membership(auc(ours, tested.person_N, theirs), among_themselves))
    return results


def _rows(samples: np.ndarray, start: int, stop: int) -> np.ndarray:
    return samples[start:stop]


def _centres(saved: Checkpoint, without: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the centres of all classes but some, a block at a time: float32 [n, D]."""
    stays = ~np.isin(saved.classes(), list(without))
    for start in range(0, saved.num_classes, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, saved.num_classes)
        rows = float32_of(saved.rows("centres", start, stop))[stays[start:stop]]
        yield rows.reshape(-1, saved.embedding_size)


def repair_config(
    cfg: Config, checkpoint: Path, names: Sequence[str], output: str, overrides: Sequence[str] = ()
) -> Config:
    """Return the config of the repair: SHARE of the run's length from `checkpoint`, without the classes `names`, at the run's
    rate.

    overrides: win over all that. Raises ConfigError, and UserError if they bring the people back, or name another folder.
    """
    length = "max_steps" if cfg.Global.max_steps else "epochs"
    changes = {
        "Global.output_dir": output,
        "Global.init_from": str(checkpoint),
        "Global.keep_centres": None,
        "Global.new_centres": None,
        "Global.keep_step": False,
        "Global.resume": False,
        "Global.checkpoint": None,
        "Global.compatible_with": None,
        "Teacher": {},  # both may have been trained with them
        f"Global.{length}": math.ceil(SHARE * getattr(cfg.Global, length)),
        "DataLoader.Train.num_classes": None,
        "DataLoader.Train.num_samples": None,
        "DataLoader.Train.without": [*cfg.DataLoader.Train.without, *names],
        "LRScheduler": {
            "name": "cosine",
            "learning_rate": cfg.LRScheduler.learning_rate,
            "warmup_steps": WARMUP_STEPS,
        },
    }
    repaired = load(cfg.edit(changes, "plsc forget"), overrides)
    if kept := set(names).difference(repaired.DataLoader.Train.without):
        raise UserError(
            f"-o DataLoader.Train.without: lacks '{shown(min(kept))}', who is to be forgotten; add the name, or leave the key out"
        )
    if repaired.Global.output_dir != output:
        raise UserError("-o Global.output_dir: cannot be set here; name the new folder by --to")
    return repaired


def check_repair(cfg: Config, ranks: int) -> None:
    """Refuse by UserError a repair that could not start."""
    cfg.check_ranks(ranks)
    Entry(cfg).dry_run()


def repair(cfg: Config, ranks: int) -> Path:
    """Train the repair -> its last checkpoint. UserError if it was stopped."""
    entry = Entry(cfg)
    result = entry.launch(ranks) if ranks > 1 else entry.train()
    if "stopped" in result:
        raise UserError(
            f"stopped on {result['stopped']}: the repair is not done, so nothing is said of it and nothing was deleted; delete "
            f"{shown(entry.output_dir)} and begin again"
        )
    return store.find(entry.output_dir / "checkpoints")


def holders(run: Path, names: Sequence[str]) -> list[Path]:
    """List what in a run's folder, and in its earlier runs', was made with one of these people: checkpoints that have them,
    and what may come of them."""
    held = []
    for folder in (run, *sorted(run.glob("previous-*"))):
        checkpoints = [path for path in sorted(folder.glob("checkpoints/step-*")) if _holds(path, names)]
        held += checkpoints
        if checkpoints:
            held += [folder / name for name in _MADE if (folder / name).exists()]
    return held


def _holds(checkpoint: Path, names: Sequence[str]) -> bool:
    """Say whether a checkpoint has one of these classes; one that cannot be read counts as such."""
    try:
        return not set(names).isdisjoint(Checkpoint.open(checkpoint, verify=False).classes() or names)
    except UserError:
        return True
