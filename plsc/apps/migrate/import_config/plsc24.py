"""Translate a config of PLSC 2.4, a YAML file with the sections Global, Model, Loss, ...

What a file leaves out is as in its code: read at its tag v2.4.0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from typing import Any

from plsc.apps.migrate.import_config.translation import (
    NO_SUCH_NETWORK,
    UNKNOWN,
    Outcome,
    Rule,
    Theirs,
    Translation,
    count,
    lost,
    named,
    one_of,
    only,
    same,
    to,
    when,
)
from plsc.errors import UserError
from plsc.utils.yaml_lines import parse

NETWORKS = {
    **{f"IResNet{depth}": {"name": f"IResNet{depth}"} for depth in (18, 34, 50, 100, 200)},
    "MobileFaceNet_base": {"name": "MobileFaceNet"},
    "MobileFaceNet_large": {"name": "MobileFaceNet", "scale": 4, "blocks": [2, 8, 12, 4]},
    **{f"FaceViT_{size}_patch9_112": {"name": f"FaceViT_{size}"} for size in ("tiny", "small", "base")},
}
_TRAIN, _EVAL = "DataLoader.Train", "DataLoader.Eval"
_PFC, _LOSS = "Model.pfc_config", "Loss.Train.MarginLoss"
_OPS = ("transform_ops", "transform", "batch_transform_ops", "batch_transform")
_LISTS = {
    "FaceIdentificationDataset": "ImageList",
    "FaceVerificationDataset": "PairList",
    "ImageNetDataset": "ImageList",
}


def read(text: str, path: str) -> dict[str, Any]:
    """Read the leaves of the YAML, "Section.key" -> value; operations of a list are keys by their name.

    Raises UserError with the lines that are no YAML, or for a file that is no mapping.
    """
    document = parse(text)
    if document.problems:
        raise UserError(
            "\n".join(f"{path}:{problem.line}: {problem.message}" for problem in document.problems)
        )
    if not isinstance(document.value, dict):
        raise UserError(f"{path}: must be a mapping of sections, as PLSC 2.4's configs are")
    if "Head" in document.value:  # PLSC 2.4 has Loss, and in Model a head
        raise UserError(f"{path}: is a config of plsc already, with a section Head; give it to -c as it is")
    return dict(_leaves(document.value, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        names = [name for item in value for name in item]
        for number, item in enumerate(value, 1):
            for name, inside in item.items():
                again = f"#{number}" if names.count(name) > 1 else ""
                yield from _leaves(inside, f"{path}.{name}{again}")
    elif isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from _leaves(inside, f"{path}.{key}" if path else key)
    else:
        yield path, _literal(value)


def _literal(value: Any) -> Any:
    """Return a tuple or list that is written as text, as PLSC 2.4 evaluates it; anything else as it is."""
    if not isinstance(value, str) or value[:1] not in ("(", "["):
        return value
    try:
        return list(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


# What its code takes for keys that a file leaves out: always, and where the file has anything of a section.
DEFAULTS = """
Global:
  {output_dir: ./output/, device: gpu, max_num_latest_checkpoint: 0, print_batch_step: 10, eval_interval: 1, eval_unit: epoch,
   eval_during_train: true, accum_steps: 1}
Model: {name: "", num_features: 512, drop_path_rate: 0.0, mask_ratio: 0.1, pfc_config: {model_parallel: false}}
LRScheduler: {name: "", eta_min: 0.0, decay_unit: epoch, warmup_epoch: 0}
Optimizer: {name: ""}
DataLoader:
  Train: {dataset: {name: ""}, sampler: {batch_size: 1}, loader: {num_workers: 0}}
  Eval: {dataset: {name: ""}}
"""
OF_A_SECTION = {
    "FP16": {"FP16.level": "O2"},
    _LOSS: {f"{_LOSS}.m1": 1.0, f"{_LOSS}.m2": 0.5, f"{_LOSS}.m3": 0.0, f"{_LOSS}.s": 64.0},
    f"{_EVAL}.dataset.name": {f"{_EVAL}.sampler.batch_size": 256},
}


def _has(theirs: Theirs, section: str) -> bool:
    return any(key.startswith(section) for key in theirs)


def _eval_interval(theirs: Theirs, key: str) -> Outcome:
    every = theirs["Global.eval_interval"]
    if theirs["Global.eval_unit"] == "step":
        return to({"Global.eval_every": 0, "Global.eval_every_steps": every})
    return to({"Global.eval_every": every})


def _is_vit(theirs: Theirs) -> bool:
    return theirs["Model.name"].startswith("FaceViT")


def _is_spread(theirs: Theirs) -> bool:
    return theirs[f"{_PFC}.model_parallel"] is True


def _margin(theirs: Theirs, key: str) -> Outcome:
    m1, m2, m3 = (theirs[f"{_LOSS}.{name}"] for name in ("m1", "m2", "m3"))
    prefix = "dist_" if _is_spread(theirs) else ""
    if (m1, m3) == (1, 0):
        return to({"Head.name": f"{prefix}arcface", "Head.margin": m2})
    if (m1, m2) == (1, 0):
        return to({"Head.name": f"{prefix}cosface", "Head.margin": m3})
    options = {"margin1": m1, "margin2": m2, "margin3": m3}
    return to({"Head.name": f"{prefix}combined", "Head.options": options})


def _spread(theirs: Theirs, key: str) -> Outcome:
    if _has(theirs, _LOSS):
        return to({"Head.name": _margin(theirs, key).changes["Head.name"]})
    return to({"Head.name": "dist_softmax" if _is_spread(theirs) else "softmax", "Head.bias": True})


def _min_factor(theirs: Theirs, key: str) -> Outcome:
    rate = theirs.get("LRScheduler.learning_rate")
    return to({"LRScheduler.min_factor": theirs[key] / rate if rate else 0.0})


def _warmup(theirs: Theirs, key: str) -> Outcome:
    if steps := theirs.get("LRScheduler.warmup_steps", 0):
        return to({"LRScheduler.warmup_steps": steps})
    epochs = theirs.get("LRScheduler.warmup_epochs", theirs["LRScheduler.warmup_epoch"])
    return to({"LRScheduler.warmup_epochs": epochs})


def _betas(theirs: Theirs, key: str) -> Outcome:
    if len(theirs[key]) != 2:
        return UNKNOWN
    return to({"Optimizer.beta1": theirs[key][0], "Optimizer.beta2": theirs[key][1]})


def _without_decay(theirs: Theirs, key: str) -> Outcome:
    names = theirs[key]
    if isinstance(names, list) and all(name in ("norm", "bias") for name in names):
        return same()
    return lost("biases and norms have no decay here, others by Optimizer.groups")


def _batch_size(theirs: Theirs, key: str) -> Outcome:
    whole, pieces = operator.index(theirs[key]), operator.index(theirs["Global.accum_steps"])
    return to({f"{_TRAIN}.batch_size": whole // max(1, pieces)})


def _is_evaluated(theirs: Theirs) -> bool:
    return bool(theirs["Global.eval_during_train"] and theirs[f"{_EVAL}.dataset.name"])


def _evaluation(theirs: Theirs, key: str) -> Outcome:
    data = _dataset(theirs, _EVAL) if _is_evaluated(theirs) else None
    return to({f"{_EVAL}.dataset": data})


def _dataset(theirs: Theirs, section: str) -> dict[str, Any]:
    """Translate a data set with its transforms to one of plsc."""
    name = theirs[f"{section}.dataset.name"]
    data: dict[str, Any] = {"name": _LISTS.get(name, name)}
    keys = {"list": "cls_label_path", "root": "image_root"} if name in _LISTS else {"folder": "root"}
    for ours, key in keys.items():
        if f"{section}.dataset.{key}" in theirs:
            data[ours] = theirs[f"{section}.dataset.{key}"]
    for ops in _OPS:
        for key in theirs:
            if key.startswith(f"{section}.dataset.{ops}."):
                data.update(_transform(theirs, key) or {})
    return data


def _transform(theirs: Theirs, key: str) -> dict[str, Any] | None:
    """Return the keys of a data set here that an argument of an operation on images becomes; None if it has
    no counterpart."""
    operation, _, argument = key.split(".", 4)[4].partition(".")
    value = theirs[key]
    if operation == "ToCHWImage" or (operation, argument) == ("DecodeImage", "channel_first"):
        return {}
    if operation == "NormalizeImage" and _is_usual(argument, value):
        return {}
    if (operation, argument) == ("DecodeImage", "to_rgb"):
        return {"channels": "RGB" if value else "BGR"}
    mirrors = (operation, argument, value) == ("RandFlipImage", "flip_code", 1)
    if mirrors or (operation == "RandomHorizontalFlip" and value is None):
        return {"flip": True}
    return None


_USUAL = {"scale": ("1.0/255.0", 1 / 255), "order": ("",), "mean": (0.5,), "std": (0.5,)}


def _is_usual(argument: str, value: Any) -> bool:
    """Say whether an argument of NormalizeImage is that of (pixel / 255 - 0.5) / 0.5, plsc's own
    normalisation."""
    values = value if isinstance(value, list) else [value]
    return all(each in _USUAL.get(argument, ()) for each in values)


def _operation(theirs: Theirs, key: str) -> Outcome:
    ours = _transform(theirs, key)
    if ours is None:
        normalises = ".NormalizeImage." in key
        one = "mean and scale of a data set are one number each"
        return lost(
            one if normalises else "docs/training.md#augmentation has what can be done to images here"
        )
    return _images(theirs, key) if ours else same()


def _images(theirs: Theirs, key: str) -> Outcome:
    section = _TRAIN if key.startswith(_TRAIN) else _EVAL
    return to({f"{section}.dataset": _dataset(theirs, section)})


_AMP = {"Global.amp": {"dtype": "float16", "level": "O1"}}
_WEIGHTS = "plsc import FILE makes a checkpoint of its weights, for Global.init_from"
_CLIP = "Optimizer.grad_clip"


def _of_both(section: str) -> dict[str, Rule]:
    """Return the rules that training and evaluation data have in common."""

    def has_list(theirs: Theirs) -> bool:
        return theirs[f"{section}.dataset.name"] in _LISTS

    return {
        f"{section}.dataset.cls_label_path": when(has_list, _images),
        f"{section}.dataset.image_root": when(has_list, _images),
        f"{section}.dataset.root": when(lambda theirs: not has_list(theirs), _images),
        **{f"{section}.dataset.{ops}.*": _operation for ops in _OPS},
        f"{section}.sampler.name": one_of(
            ("DistributedBatchSampler", "BatchSampler"),
            same(),
            lost("DataLoader.Train.sampler has shuffle, balanced and pk"),
        ),
        f"{section}.loader.use_shared_memory": same(),
    }


TABLE: dict[str, Rule] = {
    "Global.task_type": only(
        "recognition", "classification with plsc is a head of softmax, and nothing else differs"
    ),
    "Global.train_epoch_func": only("default_train_one_epoch", "training has one loop here"),
    "Global.eval_func": same(),
    "Global.use_visualdl": same(),
    "Global.checkpoint": only(None, _WEIGHTS),
    "Global.pretrained_model": only(None, _WEIGHTS),
    "Global.finetune": only(False, _WEIGHTS),
    "Global.output_dir": "Global.output_dir",
    "Global.device": "Global.device",
    "Global.save_interval": only(
        1, "checkpoints are written at the end of each epoch, and each Checkpoint.every_steps"
    ),
    "Global.max_num_latest_checkpoint": lambda theirs, key: to({"Checkpoint.keep": max(1, theirs[key])}),
    "Global.max_train_step": "Global.max_steps",
    "Global.epochs": when(
        lambda theirs: theirs.get("Global.max_train_step") is None,
        "Global.epochs",
        lost("max_train_step ends the run here"),
    ),
    "Global.print_batch_step": "Global.log_every",
    "Global.seed": lambda theirs, key: to(
        {} if theirs[key] is None else {"Global.seed": theirs[key]}, "the same seed draws other numbers here"
    ),
    "Global.eval_interval": _eval_interval,
    "Global.eval_unit": _eval_interval,
    "FP16.level": one_of(
        ("O0",), same(), one_of(("O1",), to(_AMP), to(_AMP, "the weights stay float32 here, as with O1"))
    ),
    "FP16.GradScaler.init_loss_scaling": lost("the scaler here finds its scale by itself"),
    "DistributedStrategy.data_parallel": only(True, "all ranks train the whole backbone here"),
    "DistributedStrategy.recompute*": to({"Model.recompute": True}, "every block is computed again"),
    "Model.name": named("Model", NETWORKS, NO_SUCH_NETWORK),
    "Model.num_features": "Model.embedding_size",
    "Model.data_format": only("NCHW", "images and weights are NCHW here, the weights alike for both"),
    "Model.drop_path_rate": when(_is_vit, "Model.drop_path"),
    "Model.mask_ratio": when(_is_vit, "Model.mask_ratio"),
    "Model.class_num": f"{_TRAIN}.num_classes",
    "Model.num_classes": f"{_TRAIN}.num_classes",
    **{f"{_LOSS}.{key}": _margin for key in ("m1", "m2", "m3")},
    f"{_LOSS}.s": "Head.scale",
    f"{_PFC}.model_parallel": _spread,
    f"{_LOSS}.model_parallel": _spread,
    f"{_PFC}.sample_ratio": when(_is_spread, "Head.sample_rate", same()),
    f"{_PFC}.sparse_update": same("only sampled centres are updated here"),
    "Loss.*.weight": only(1.0, "there is one loss, of weight 1"),
    "Loss.Train.ViTCELoss.epsilon": lost("labels are not smoothed here"),
    "Loss.Eval.CELoss*": same(),
    "LRScheduler.name": named(
        "LRScheduler",
        {
            "Poly": {"name": "poly", "power": 2.0},
            "TimmCosine": {"name": "cosine"},
            "ViTLRScheduler": {"name": "cosine"},
        },
        "plsc has constant, step, poly and cosine",
    ),
    "LRScheduler.decay_type": only("cosine", "poly here has a power of 1 for a line: LRScheduler.power"),
    "LRScheduler.eta_min": when(lambda theirs: theirs["LRScheduler.name"] == "TimmCosine", _min_factor),
    "LRScheduler.learning_rate": "LRScheduler.learning_rate",
    "LRScheduler.decay_unit": one_of(("step",), same(), same("the rate changes at every step here")),
    **{f"LRScheduler.{key}": _warmup for key in ("warmup_steps", "warmup_epochs", "warmup_epoch")},
    "LRScheduler.warmup_start_lr": only(0.0, "the warm-up begins just above 0 here"),
    "LRScheduler.warmup_end_lr": when(
        lambda theirs: theirs["LRScheduler.warmup_end_lr"] == theirs.get("LRScheduler.learning_rate"),
        same(),
        lost("the warm-up ends at the learning rate here"),
    ),
    "Optimizer.name": named(
        "Optimizer",
        {"Momentum": {"name": "Momentum"}, "AdamW": {"name": "AdamW"}, "MomentumLARS": {"name": "LARS"}},
        "the class centres have Momentum, AdamW or LARS",
    ),
    "Optimizer.momentum": "Optimizer.momentum",
    "Optimizer.weight_decay": "Optimizer.weight_decay",
    "Optimizer.epsilon": "Optimizer.epsilon",
    "Optimizer.eps": "Optimizer.epsilon",
    "Optimizer.betas": _betas,
    "Optimizer.use_master_param": same("weights and moments are float32 here"),
    "Optimizer.exp_avg_force_fp32": same("weights and moments are float32 here"),
    "Optimizer.no_weight_decay_name": _without_decay,
    f"{_CLIP}.name": only("ClipGradByGlobalNorm", "gradients are clipped by their global norm here"),
    f"{_CLIP}.clip_norm": "Optimizer.clip_norm",
    f"{_CLIP}.no_clip_list": only(["dist"], "the backbone is clipped here, as a whole"),
    f"{_CLIP}.always_clip": only(
        False, "a gradient below the norm is left as it is here, not enlarged to it"
    ),
    f"{_TRAIN}.dataset.name": _images,
    **_of_both(_TRAIN),
    "Global.accum_steps": one_of((1,), same(), count(f"{_TRAIN}.accumulate")),
    f"{_TRAIN}.sampler.batch_size": _batch_size,
    f"{_TRAIN}.sampler.shuffle": only(True, "training shuffles here"),
    f"{_TRAIN}.sampler.drop_last": only(False, "the last, smaller batch of an epoch is trained, too"),
    f"{_TRAIN}.loader.num_workers": f"{_TRAIN}.num_workers",
    **_of_both(_EVAL),
    f"{_EVAL}.dataset.name": _evaluation,
    "Global.eval_during_train": _evaluation,
    f"{_EVAL}.sampler.batch_size": when(_is_evaluated, f"{_EVAL}.batch_size"),
    f"{_EVAL}.sampler.shuffle": only(False, "evaluation keeps the order here"),
    f"{_EVAL}.sampler.drop_last": only(False, "all images are evaluated here"),
    f"{_EVAL}.loader.num_workers": same("a thread reads the images to evaluate"),
    "Metric.Eval.LFWAcc.flip_test": when(_is_evaluated, f"{_EVAL}.flip"),
    "Metric.Train.TopkAcc.topk": only([1], "the report has the accuracy of the first class"),
    "Metric.Eval.TopkAcc.topk": only([1], "the report has the accuracy of the first class"),
    "Export.export_type": one_of(
        ("onnx", "paddle"), lambda theirs, key: to({"Export.formats": [theirs[key]]}), UNKNOWN
    ),
    "Export.input_shape": same("comes from the data"),
}


def translate(text: str, path: str) -> Translation:
    """Translate the text of a config file; `path` is for messages."""
    values = read(text, path)
    defaults = read(DEFAULTS, "")
    for section, of_section in OF_A_SECTION.items():
        if _has(values, section):
            defaults.update(of_section)
    made = Translation(values, {}, defaults, TABLE)
    made.facts = [
        "The number of images is not in the file: state it as DataLoader.Train.num_samples, for --stand-in.",
    ]
    return made
