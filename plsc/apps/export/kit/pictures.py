"""Choose the pictures of a kit: of the main evaluation set, or else of the training set, in pairs whose
classes are known."""

from __future__ import annotations

import numpy as np

from plsc.apps.export.kit import KitPictures
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.data.build import TRAIN, build_dataset
from plsc.data.preprocessing import DARKEST, Preprocessing
from plsc.errors import CorruptImageError, UserError, shown
from plsc.evaluation.sets import EvalSet, TemplateSet, eval_set
from plsc.utils.logging import get_logger


def kit_pictures(cfg: Config, saved: Checkpoint) -> KitPictures | None:
    """Read at most Export.kit samples of the sets that a checkpoint was evaluated or trained on; None, and
    why, if there are none."""
    if not cfg.Export.kit:
        return None
    key = TRAIN if cfg.DataLoader.Eval.dataset is None else "DataLoader.Eval.dataset"
    try:
        data = eval_set(build_dataset(cfg.DataLoader, cfg.Global.seed, cfg.place, key))
        data.check()
        for what, here, trained in data.preprocessing.differences(
            Preprocessing.from_json(saved.preprocessing)
        ):
            raise UserError(f"{key}: {what} is {here} (trained on {trained})")
        pictures = choose(data, cfg.Export.kit)
    except UserError as error:
        get_logger().warning(
            f"Export.kit: the export goes without its kit, whose pictures are not here: {shown(error)}"
        )
        return None
    if len(pictures.samples) < 2:
        get_logger().warning(
            f"Export.kit: the export goes without its kit: {key} has less than two samples for it"
        )
        return None
    return pictures


def choose(data: EvalSet, most: int) -> KitPictures:
    """Choose at most `most` samples, the same each time, from everywhere in a set.

    Half of their pairs are of one class, if the set allows it. Pictures that are corrupt, or black and so
    without an embedding, are left out.
    """
    if data.pairs is not None and not isinstance(data, TemplateSet):
        pairs = _of_pairs(data.pairs, data.data.same, most // 2)
    else:
        people = data.labels if data.labels is not None else data.people()
        known = not isinstance(data, TemplateSet) or data.data.identity_of is not None
        pairs = _of_people(people, most // 2) if known else np.empty((0, 3), np.int64)
    chosen = np.unique(pairs[:, :2]) if len(pairs) else _spread(data.count, most)
    samples = {index: sample for index in chosen.tolist() if (sample := _read(data, index)) is not None}
    chosen = np.array([*samples], np.int64)
    pairs = pairs[np.isin(pairs[:, :2], chosen).all(axis=1)]
    numbers = np.column_stack([np.searchsorted(chosen, pairs[:, :2]), pairs[:, 2]])
    stacked = np.stack([*samples.values()]) if samples else data.preprocessing.empty(0)
    return KitPictures(stacked, numbers, data.title)


def _read(data: EvalSet, index: int) -> np.ndarray | None:
    """Read a sample [*shape]; None for a picture that is corrupt or black."""
    try:
        sample = data.images(index, index + 1)[0]
    except CorruptImageError:
        return None
    return None if data.preprocessing.is_image and sample.max() <= DARKEST else sample


def _spread(count: int, most: int) -> np.ndarray:
    """Choose at most `most` of the numbers below `count`, evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _of_pairs(pairs: np.ndarray, same: np.ndarray, most: int) -> np.ndarray:
    """Choose pairs of a set, int64 [P, 3], half of them of one class."""
    kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
    chosen = np.concatenate([kind[_spread(len(kind), most // 2)] for kind in kinds if len(kind)])
    return np.column_stack([pairs[chosen], same[chosen]])


def _of_people(people: np.ndarray, most: int) -> np.ndarray:
    """Choose two samples each of at most `most` classes, and pair each first with its second and the next
    class's: int64 [P, 3]."""
    order = np.argsort(people, kind="stable")
    starts = np.flatnonzero(np.r_[True, people[order][1:] != people[order][:-1]])
    starts = starts[np.diff(np.r_[starts, len(order)]) > 1]
    starts = starts[_spread(len(starts), most)]
    first, second = order[starts], order[starts + 1]
    ones = np.ones(len(first), np.int64)
    pairs = [np.column_stack([first, second, ones])]
    if len(first) > 1:
        pairs.append(np.column_stack([first, np.roll(second, -1), 0 * ones]))
    return np.concatenate(pairs)
