"""Prepare what an export in 8 bits needs of the data: pictures to calibrate on, and the main set to judge it
by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle

from plsc import distributed
from plsc.apps.export.int8 import Embed, Int8Data, Judged
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.data.batch import make_batch
from plsc.data.dataset import EVALUATION, Dataset, class_names
from plsc.data.preprocessing import Preprocessing
from plsc.data.transforms import CALIBRATION, generator
from plsc.errors import MissingFileError, UserError
from plsc.evaluation.sets import EvalSet
from plsc.training.build import build_training_set
from plsc.training.embed import ahead
from plsc.training.evaluator import build_sets
from plsc.training.resume import build_saved_head


def int8_data(cfg: Config, saved: Checkpoint) -> Int8Data:
    """Draw the pictures from the training set, and build the main evaluation set.

    Raises: UserError if one of them is not there, or the two share people.
    """
    if cfg.DataLoader.Eval.dataset is None:
        raise UserError(
            "Export.formats: onnx_int8 is judged on the main evaluation set, but DataLoader.Eval.dataset is null; name one, or "
            "leave onnx_int8 out"
        )
    cfg = cfg.edit({"DataLoader.Eval.more": {}}, "onnx_int8")
    try:
        cfg.check_data()
    except MissingFileError as error:
        raise MissingFileError(
            f"Export.formats: onnx_int8 needs pictures to train and to evaluate on: {error}"
        ) from error
    dataset = build_training_set(cfg)
    preprocessing = Preprocessing.from_json(saved.preprocessing)
    for what, given, trained in dataset.preprocessing.differences(preprocessing):
        raise UserError(
            f"DataLoader.Train.dataset: {what} is {given} (trained on {trained}); onnx_int8 needs what the network was trained on"
        )
    seen = getattr(dataset, "identities", None)
    sets = build_sets(cfg, preprocessing, saved.num_classes, seen, class_names(dataset))
    ((title, data),) = sets.items()
    pictures = _draw(dataset, cfg.Export.int8_pictures, cfg.Global.seed)
    return Int8Data(pictures, _judge(cfg, saved, title, data), title, cfg.DataLoader.Eval.flip, saved.step)


def _draw(dataset: Dataset, count: int, seed: int) -> np.ndarray:
    """Draw samples [n, *shape] without repeating one: the same ones for the same seed and set."""
    count = min(count, len(dataset))
    drawn = generator(seed, use=CALIBRATION).choice(len(dataset), count, replace=False)
    pictures = dataset.preprocessing.empty(count)
    make_batch(dataset, seed, EVALUATION, drawn, pictures)
    return pictures


def _judge(cfg: Config, saved: Checkpoint, title: str, data: EvalSet) -> Callable[[Embed], Judged]:
    section, head = cfg.DataLoader.Eval, None
    if data.labels is not None:
        if distributed.world_size() > 1:
            raise UserError(
                "Export.formats: onnx_int8 is judged on labelled images here, whose classes are on all ranks; export on one rank"
            )
        head = build_saved_head(cfg, saved)

    def judge(embed: Embed) -> Judged:
        parts = [
            embed(samples) + (embed(np.ascontiguousarray(samples[..., ::-1])) if section.flip else 0)
            for samples in ahead(data.images, 0, data.count, section.batch_size)
        ]
        if head is None:
            result = data.score(np.concatenate(parts))
        else:
            predicted = np.concatenate([head.classify(paddle.to_tensor(part)).numpy() for part in parts])
            result = data.score_predictions(predicted, saved.num_classes)
        row = result.row()
        accuracy = row[result.metric]
        if accuracy is None:
            raise UserError(f"Export.formats: onnx_int8 cannot be judged on {title}: {result.headline}")
        calibration = data.calibration(result, title, saved.step, section.flip)
        return Judged(accuracy, row.get("threshold"), calibration)

    return judge
