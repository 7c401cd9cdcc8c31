"""Translate a config of PLSC 2.4, a YAML file with the sections Global, Model, Loss, ...

What a file leaves out is as in its code: read at its tag v2.4.0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from plsc.apps.migrate.import_config.translation import Translation
from plsc.errors import UserError
from plsc.utils.yaml_lines import parse

NETWORKS = {
    **{f"IResNet{depth}": {"name": f"IResNet{depth}"} for depth in (18, 34, 50, 100, 200)},
    "MobileFaceNet_base": {"name": "MobileFaceNet"},
    "MobileFaceNet_large": {"name": "MobileFaceNet", "scale": 4, "blocks": [2, 8, 12, 4]},
    **{f"FaceViT_{size}_patch9_112": {"name": f"FaceViT_{size}"} for size in ("tiny", "small", "base")},
}
_TRAIN, _EVAL = "DataLoader.Train.", "DataLoader.Eval."
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


def translate(text: str, path: str) -> Translation:
    """Translate the text of a config file; `path` is for messages."""
    made = Translation(read(text, path))
    made.facts = [
        "The number of images is not in the file: state it as DataLoader.Train.num_samples, for --stand-in.",
    ]
    for section in (_global, _precision, _model, _head, _schedule, _optimizer, _train, _eval, _export):
        section(made)
    return made


def _number(made: Translation, key: str, default: float | None = None) -> float | None:
    """Return a key's number, or `default` where the file has none there."""
    value = made.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _text(made: Translation, key: str, default: str = "") -> str:
    """Return a key's text, or `default` where the file has none there."""
    value = made.get(key)
    return value if isinstance(value, str) else default


def _global(made: Translation) -> None:
    made.same_if(
        "Global.task_type",
        "recognition",
        "classification with plsc is a head of softmax, and nothing else differs",
    )
    made.same_if("Global.train_epoch_func", "default_train_one_epoch", "training has one loop here")
    for key in ("eval_func", "use_visualdl"):
        made.same(f"Global.{key}")
    weights = "plsc import FILE makes a checkpoint of its weights, for Global.init_from"
    for key in ("checkpoint", "pretrained_model"):
        made.same_if(f"Global.{key}", None, weights)
    made.same_if("Global.finetune", False, weights)
    made.to("Global.output_dir", {"Global.output_dir": made.get("Global.output_dir", "./output/")})
    device = made.get("Global.device", "gpu")
    if device in ("cpu", "gpu"):
        made.to("Global.device", {"Global.device": device})
    else:
        made.lost("Global.device", "plsc runs on CPUs and GPUs")
    made.same_if(
        "Global.save_interval",
        1,
        "checkpoints are written at the end of each epoch, and each Checkpoint.every_steps",
    )
    kept = _number(made, "Global.max_num_latest_checkpoint", 0)
    made.to("Global.max_num_latest_checkpoint", {"Checkpoint.keep": max(1, kept)})
    steps = made.get("Global.max_train_step")
    epochs = {} if made.get("Global.epochs") is None else {"Global.epochs": made.get("Global.epochs")}
    if steps is not None:
        made.to("Global.max_train_step", {"Global.max_steps": steps})
        made.lost("Global.epochs", "max_train_step ends the run here")
    else:
        made.to("Global.epochs", epochs)
    made.to("Global.print_batch_step", {"Global.log_every": made.get("Global.print_batch_step", 10)})
    seed = made.get("Global.seed")
    made.to(
        "Global.seed", {} if seed is None else {"Global.seed": seed}, "the same seed draws other numbers here"
    )
    every = made.get("Global.eval_interval", 1)
    in_steps = made.get("Global.eval_unit", "epoch") == "step"
    keys = (
        {"Global.eval_every": 0, "Global.eval_every_steps": every}
        if in_steps
        else {"Global.eval_every": every}
    )
    made.to("Global.eval_interval", keys)
    made.to("Global.eval_unit", keys)


def _precision(made: Translation) -> None:
    level = made.get("FP16.level", "O2")
    if not any(key.startswith("FP16") for key in made.values) or level == "O0":
        made.same("FP16.level")
    else:
        why = "" if level == "O1" else "the weights stay float32 here, as with O1"
        made.to("FP16.level", {"Global.amp": {"dtype": "float16", "level": "O1"}}, why)
    made.lost("FP16.GradScaler.init_loss_scaling", "the scaler here finds its scale by itself")
    made.same_if("DistributedStrategy.data_parallel", True, "all ranks train the whole backbone here")
    if any(key.startswith("DistributedStrategy.recompute") for key in made.values):
        keys = [key for key in made.values if key.startswith("DistributedStrategy.recompute")]
        for key in keys:
            made.to(key, {"Model.recompute": True}, "every block is computed again")


def _model(made: Translation) -> None:
    name = _text(made, "Model.name")
    known = NETWORKS.get(name, {"name": name})
    made.to(
        "Model.name",
        {f"Model.{key}": value for key, value in known.items()},
        "" if name in NETWORKS else "plsc has no such network: name one, or your own as package.module:Class",
    )
    made.to("Model.num_features", {"Model.embedding_size": made.get("Model.num_features", 512)})
    made.same_if("Model.data_format", "NCHW", "images and weights are NCHW here, the weights alike for both")
    if name.startswith("FaceViT"):
        made.to("Model.drop_path_rate", {"Model.drop_path": made.get("Model.drop_path_rate", 0.0)})
        made.to("Model.mask_ratio", {"Model.mask_ratio": made.get("Model.mask_ratio", 0.1)})
    for key in ("dropout", "drop_rate"):
        if f"Model.{key}" in made.values and name in NETWORKS:
            made.to(f"Model.{key}", {"Model.dropout": made.get(f"Model.{key}")})
    for key in ("class_num", "num_classes"):
        if f"Model.{key}" in made.values:
            made.to(f"Model.{key}", {f"{_TRAIN}num_classes": made.get(f"Model.{key}")})


def _head(made: Translation) -> None:
    pfc, loss = "Model.pfc_config.", "Loss.Train.MarginLoss."
    spread = made.get(f"{pfc}model_parallel", False) is True
    if any(key.startswith(loss) for key in made.values):
        kind = _margin(made, loss, "dist_" if spread else "")
    else:
        kind = {"Head.name": "dist_softmax" if spread else "softmax", "Head.bias": True}
    made.changes.update(kind)
    for key in (f"{pfc}model_parallel", f"{loss}model_parallel"):
        made.to(key, {"Head.name": kind["Head.name"]})
    if f"{pfc}sample_ratio" in made.values:
        made.to(f"{pfc}sample_ratio", {"Head.sample_rate": made.get(f"{pfc}sample_ratio")} if spread else {})
    made.same(f"{pfc}sparse_update", "only sampled centres are updated here")
    for key in [key for key in made.values if key.startswith("Loss.") and key.endswith(".weight")]:
        made.same_if(key, 1.0, "there is one loss, of weight 1")
    for name in ("CELoss", "ViTCELoss"):
        if f"Loss.Train.{name}.epsilon" in made.values:
            made.lost(f"Loss.Train.{name}.epsilon", "labels are not smoothed here")
    for key in [key for key in made.values if key.startswith("Loss.Eval.CELoss")]:
        made.same(key)


def _margin(made: Translation, loss: str, prefix: str) -> dict[str, Any]:
    m1, m2, m3 = (
        _number(made, f"{loss}{key}", default) for key, default in (("m1", 1.0), ("m2", 0.5), ("m3", 0.0))
    )
    if (m1, m3) == (1, 0):
        margin = {"Head.name": f"{prefix}arcface", "Head.margin": m2}
    elif (m1, m2) == (1, 0):
        margin = {"Head.name": f"{prefix}cosface", "Head.margin": m3}
    else:
        options = {"margin1": m1, "margin2": m2, "margin3": m3}
        margin = {"Head.name": f"{prefix}combined", "Head.options": options}
    for key in ("m1", "m2", "m3"):
        made.to(f"{loss}{key}", margin)
    made.to(f"{loss}s", {"Head.scale": made.get(f"{loss}s", 64.0)})
    return margin


def _schedule(made: Translation) -> None:
    section = "LRScheduler."
    name = _text(made, f"{section}name")
    rate = _number(made, f"{section}learning_rate")
    shapes = {"Poly": "poly", "TimmCosine": "cosine", "ViTLRScheduler": "cosine", "Step": "step"}
    changes: dict[str, Any] = {"LRScheduler.name": shapes.get(name, name)}
    if name == "Poly":
        changes["LRScheduler.power"] = 2.0
    if name == "ViTLRScheduler":
        end = _number(made, f"{section}linear_end", 1e-5)
        if made.get(f"{section}decay_type", "cosine") == "linear":
            changes = {"LRScheduler.name": "poly", "LRScheduler.power": 1.0}
            changes["LRScheduler.min_factor"] = end / rate if rate else 0.0
        made.to(f"{section}decay_type", changes)
        made.to(f"{section}linear_end", changes)
    if name == "TimmCosine":
        lowest = _number(made, f"{section}eta_min", 0.0)
        changes["LRScheduler.min_factor"] = lowest / rate if rate else 0.0
        made.to(f"{section}eta_min", {"LRScheduler.min_factor": changes["LRScheduler.min_factor"]})
    made.to(f"{section}name", changes, "" if name in shapes else "plsc has constant, step, poly and cosine")
    if rate is not None:
        made.to(f"{section}learning_rate", {"LRScheduler.learning_rate": rate})
    by_step = made.get(f"{section}decay_unit", "epoch") == "step"
    made.same(f"{section}decay_unit", "" if by_step else "the rate changes at every step here")
    _warmup(made, section, rate)
    if name == "Step":
        _steps(made, section)


def _warmup(made: Translation, section: str, rate: float | None) -> None:
    steps = _number(made, f"{section}warmup_steps", 0)
    epochs = _number(made, f"{section}warmup_epochs", _number(made, f"{section}warmup_epoch", 0))
    changes = {"LRScheduler.warmup_steps": steps} if steps else {"LRScheduler.warmup_epochs": epochs}
    for key in ("warmup_steps", "warmup_epochs", "warmup_epoch"):
        made.to(f"{section}{key}", changes)
    made.same_if(f"{section}warmup_start_lr", 0.0, "the warm-up begins just above 0 here")
    made.same_if(f"{section}warmup_end_lr", rate, "the warm-up ends at the learning rate here")


def _steps(made: Translation, section: str) -> None:
    values, places = made.get(f"{section}values"), made.get(f"{section}boundaries")
    numbers = isinstance(values, list) and all(
        isinstance(value, (int, float)) and value > 0 for value in values
    )
    factors = {round(later / value, 6) for value, later in zip(values, values[1:])} if numbers else set()
    if len(factors) != 1 or not isinstance(places, list):
        for key in ("values", "boundaries"):
            made.lost(
                f"{section}{key}", "the rates must fall by the same factor each time here, LRScheduler.gamma"
            )
        return
    in_steps = made.get(f"{section}decay_unit", "epoch") == "step"
    made.to(f"{section}values", {"LRScheduler.learning_rate": values[0], "LRScheduler.gamma": factors.pop()})
    made.to(f"{section}boundaries", {f"LRScheduler.{'boundaries' if in_steps else 'milestones'}": places})


def _optimizer(made: Translation) -> None:
    section = "Optimizer."
    names = {"Momentum": "Momentum", "AdamW": "AdamW", "MomentumLARS": "LARS"}
    name = _text(made, f"{section}name")
    why = "" if name in names else "the class centres have Momentum, AdamW or LARS"
    made.to(f"{section}name", {"Optimizer.name": names.get(name, name)}, why)
    for key, ours in (
        ("momentum", "momentum"),
        ("weight_decay", "weight_decay"),
        ("epsilon", "epsilon"),
        ("eps", "epsilon"),
    ):
        if f"{section}{key}" in made.values:
            made.to(f"{section}{key}", {f"Optimizer.{ours}": made.get(f"{section}{key}")})
    betas = made.get(f"{section}betas")
    if isinstance(betas, list) and len(betas) == 2:
        made.to(f"{section}betas", {"Optimizer.beta1": betas[0], "Optimizer.beta2": betas[1]})
    for key in ("use_master_param", "exp_avg_force_fp32"):
        made.same(f"{section}{key}", "weights and moments are float32 here")
    names_without = made.get(f"{section}no_weight_decay_name")
    if isinstance(names_without, list) and all(each in ("norm", "bias") for each in names_without):
        made.same(f"{section}no_weight_decay_name")
    else:
        made.lost(
            f"{section}no_weight_decay_name",
            "biases and norms have no decay here, others by Optimizer.groups",
        )
    clip = f"{section}grad_clip."
    made.same_if(f"{clip}name", "ClipGradByGlobalNorm", "gradients are clipped by their global norm here")
    if f"{clip}clip_norm" in made.values:
        made.to(f"{clip}clip_norm", {"Optimizer.clip_norm": made.get(f"{clip}clip_norm")})
    made.same_if(f"{clip}no_clip_list", ["dist"], "the backbone is clipped here, as a whole")
    made.same_if(
        f"{clip}always_clip", False, "a gradient below the norm is left as it is here, not enlarged to it"
    )


def _train(made: Translation) -> None:
    section = _TRAIN
    made.to(f"{section}dataset.name", {f"{section}dataset": _dataset(made, section)})
    pieces = _number(made, "Global.accum_steps", 1)
    size = _number(made, f"{section}sampler.batch_size", 1)
    made.to("Global.accum_steps", {f"{section}accumulate": pieces} if pieces != 1 else {})
    made.to(
        f"{section}sampler.batch_size",
        {f"{section}batch_size": size // pieces if isinstance(pieces, int) and pieces > 0 else size},
    )
    _loader(made, section)
    made.same_if(f"{section}sampler.shuffle", True, "training shuffles here")
    made.same_if(f"{section}sampler.drop_last", False, "the last, smaller batch of an epoch is trained, too")
    made.to(
        f"{section}loader.num_workers", {f"{section}num_workers": made.get(f"{section}loader.num_workers", 0)}
    )


def _loader(made: Translation, section: str) -> None:
    samplers = ("DistributedBatchSampler", "BatchSampler")
    key = f"{section}sampler.name"
    if made.get(key) in samplers:
        made.same(key)
    else:
        made.lost(key, "DataLoader.Train.sampler has shuffle, balanced and pk")
    made.same(f"{section}loader.use_shared_memory")


def _eval(made: Translation) -> None:
    section = _EVAL
    evaluated = made.get("Global.eval_during_train", True) and f"{section}dataset.name" in made.values
    data = _dataset(made, section)
    made.to(f"{section}dataset.name", {f"{section}dataset": data if evaluated else None})
    made.to("Global.eval_during_train", {f"{section}dataset": data if evaluated else None})
    _loader(made, section)
    if evaluated:
        made.to(
            f"{section}sampler.batch_size",
            {f"{section}batch_size": made.get(f"{section}sampler.batch_size", 256)},
        )
    made.same_if(f"{section}sampler.shuffle", False, "evaluation keeps the order here")
    made.same_if(f"{section}sampler.drop_last", False, "all images are evaluated here")
    made.same(f"{section}loader.num_workers", "a thread reads the images to evaluate")
    flip = "Metric.Eval.LFWAcc.flip_test"
    if evaluated and flip in made.values:
        made.to(flip, {f"{section}flip": made.get(flip)})
    for key in ("Metric.Train.TopkAcc.topk", "Metric.Eval.TopkAcc.topk"):
        made.same_if(key, [1], "the report has the accuracy of the first class")


def _dataset(made: Translation, section: str) -> dict[str, Any]:
    """Translate a data set with its transforms to one of plsc."""
    path = f"{section}dataset."
    name = _text(made, f"{path}name")
    data: dict[str, Any] = {"name": _LISTS.get(name, name)}
    keys = {"list": "cls_label_path", "root": "image_root"} if name in _LISTS else {"folder": "root"}
    for ours, key in keys.items():
        if f"{path}{key}" in made.values:
            data[ours] = made.get(f"{path}{key}")
            made.to(f"{path}{key}", {f"{section}dataset": data})
    made.same_if(f"{path}delimiter", "\t", "a TAB or the last space separates path and label here")
    for ops in _OPS:
        of_ops = [key for key in made.values if key.startswith(f"{path}{ops}.")]
        _transforms(made, f"{path}{ops}.", of_ops, section, data)
    return data


def _transforms(made: Translation, path: str, keys: list[str], section: str, data: dict[str, Any]) -> None:
    """Translate the operations on an image, and set their keys in `data`."""
    target = {f"{section}dataset": data}
    for key in keys:
        operation, _, argument = key[len(path) :].partition(".")
        value = made.get(key)
        if operation == "ToCHWImage" or (operation, argument) == ("DecodeImage", "channel_first"):
            made.same(key)
        elif (operation, argument) == ("DecodeImage", "to_rgb"):
            data["channels"] = "RGB" if value else "BGR"
            made.to(key, target)
        elif (
            (operation, argument) == ("RandFlipImage", "flip_code")
            and value == 1
            or operation == "RandomHorizontalFlip"
            and value is None
        ):
            data["flip"] = True
            made.to(key, target)
        elif operation == "NormalizeImage" and _is_usual(argument, value):
            made.same(key)
        else:
            why = "mean and scale of a data set are one number each" if operation == "NormalizeImage" else ""
            made.lost(key, why or "docs/augmentation.md has what can be done to images here")


_USUAL = {"scale": ("1.0/255.0", 1 / 255), "order": ("",), "mean": (0.5,), "std": (0.5,)}


def _is_usual(argument: str, value: Any) -> bool:
    """Say whether an argument of NormalizeImage is that of (pixel / 255 - 0.5) / 0.5, plsc's own normalisation."""
    values = value if isinstance(value, list) else [value]
    return all(each in _USUAL.get(argument, ()) for each in values)


def _export(made: Translation) -> None:
    formats = made.get("Export.export_type")
    if formats in ("onnx", "paddle"):
        made.to("Export.export_type", {"Export.formats": [formats]})
    made.same("Export.input_shape", "comes from the data")
