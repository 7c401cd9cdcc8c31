"""Translate a config of InsightFace's arcface_torch, a Python file of assignments, without running it.

Its train_v2.py takes configs/base.py for what a file leaves out; DEFAULTS are the values there. Read at commit 7fadd420
of deepinsight/insightface.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plsc.apps.migrate.import_config.translation import Translation
from plsc.errors import UserError

DEFAULTS = {
    "margin_list": [1.0, 0.5, 0.0],
    "network": "r50",
    "resume": False,
    "save_all_states": False,
    "output": "ms1mv3_arcface_r50",
    "embedding_size": 512,
    "sample_rate": 1,
    "interclass_filtering_threshold": 0,
    "fp16": False,
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "verbose": 2000,
    "frequent": 10,
    "dali": False,
    "dali_aug": False,
    "gradient_acc": 1,
    "seed": 2048,
    "num_workers": 2,
    "using_wandb": False,
}
# Not in DEFAULTS, since nothing here depends on them: the other keys of wandb.
_WANDB = (
    "wandb_key",
    "wandb_entity",
    "wandb_project",
    "wandb_log_all",
    "wandb_resume",
    "suffix_run_name",
    "save_artifacts",
    "notes",
)
NETWORKS = {
    "r18": {"name": "IResNet18"},
    "r34": {"name": "IResNet34"},
    "r50": {"name": "IResNet50"},
    "r100": {"name": "IResNet100"},
    "r200": {"name": "IResNet200"},
    "mbf": {"name": "MobileFaceNet"},
    "mbf_large": {"name": "MobileFaceNet", "scale": 4, "blocks": [2, 8, 12, 4]},
    "vit_t": {"name": "FaceViT_tiny"},
    "vit_t_dp005_mask0": {"name": "FaceViT_tiny", "drop_path": 0.05, "mask_ratio": 0.0},
    "vit_s": {"name": "FaceViT_small"},
    "vit_s_dp005_mask_0": {"name": "FaceViT_small", "drop_path": 0.05, "mask_ratio": 0.0},
    "vit_b": {"name": "FaceViT_base", "recompute": True},
    "vit_b_dp005_mask_005": {
        "name": "FaceViT_base",
        "drop_path": 0.05,
        "mask_ratio": 0.05,
        "recompute": True,
    },
}
# What train_v2.py, losses.py and dataset.py do whatever the config says.
_FIXED = {
    "Head.scale": 64.0,
    "Optimizer.clip_norm": 5.0,
    "LRScheduler.name": "poly",
    "LRScheduler.power": 1.0,
}
# Types of the values that are computed with below; plsc's own check sees to the others.
_KINDS = {
    "margin_list": list,
    "network": str,
    "optimizer": str,
    "warmup_epoch": (int, float),
    "rec": str,
    "val_targets": list,
    "batch_size": int,
    "gradient_acc": int,
}
_LONGEST = 1000  # characters of a text, items of a list
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def read(text: str, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the values of `config.key = value`, a later one of the same key instead of the earlier.

    A value is a literal, an earlier `config.key`, arithmetic of these, or a list of them, of a size that a config
    has. The second result is the beginning of all else that the file does, by key or "line N". Raises UserError for
    a file that is not Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{path}{line}: is no Python file, as arcface_torch's configs are") from error
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    lines = [line.encode() for line in re.split("\r\n?|\n", text)]
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_text(statement) or _makes(statement):
            continue
        key = _key_of(statement)
        name = key or f"line {statement.lineno}"
        values.pop(name, None)
        unread.pop(name, None)
        try:
            if key is None:
                raise ValueError
            values[key] = _value(statement.value, values)
        except (ValueError, ArithmeticError, KeyError, RecursionError):
            line = lines[statement.lineno - 1]
            end = statement.end_col_offset if statement.end_lineno == statement.lineno else len(line)
            shown_end = min(end, statement.col_offset + _LONGEST)
            unread[name] = line[statement.col_offset : shown_end].decode("utf-8", "replace")
    return values, unread


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _makes(statement: ast.stmt) -> bool:
    """Say whether a statement is `config = edict()`."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
        and not statement.value.args
        and not statement.value.keywords
    )


def _key_of(statement: ast.stmt) -> str | None:
    """Return "key" of `config.key = ...`; None for any other statement."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.attr if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) else None


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Compute a value. Raises ValueError for what is none, or too large for one: lines that multiply the one before
    would take for ever."""
    if isinstance(node, (ast.List, ast.Tuple)):
        value = [_value(item, known) for item in node.elts]
        fits = not any(isinstance(item, list) for item in value)
    else:
        value = _one_value(node, known)
        fits = not isinstance(value, int) or abs(value) < 2**63
    if not fits or (isinstance(value, (str, list)) and len(value) > _LONGEST):
        raise ValueError(ast.dump(node))
    return value


def _one_value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Attribute):
        return known[node.attr]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, known), _value(node.right, known)
        if {type(left), type(right)} <= {int, float}:
            return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, (ast.Constant, ast.UnaryOp)):
        value = ast.literal_eval(node)
        if isinstance(value, (int, float, str, type(None))):
            return value
    raise ValueError(ast.dump(node))


def translate(text: str, path: str) -> Translation:
    """Translate the text of a config file; `path` is for messages, and its name is that of the run."""
    values, unread = read(text, path)
    for key, kinds in _KINDS.items():
        if key in values and (not isinstance(values[key], kinds) or values[key] is None):
            unread[key] = repr(values.pop(key))
    if "wandb_key" in values:
        values["wandb_key"] = "(not copied)"  # it is a password
    made = Translation(values, DEFAULTS, unread)
    absent = [f"{key} {value}" for key, value in DEFAULTS.items() if key not in values]
    made.facts = [
        "Not in the file, from arcface_torch's configs/base.py: " + ", ".join(absent) if absent else "",
        "Not in the file, from arcface_torch's code: s 64, clipping at 5, a schedule to 0 along a line, mirrored images. Its weight",
        "decay falls on biases, norms and slopes, too; here they have none.",
    ]
    made.changes.update(_FIXED)
    for section in (_model, _head, _optimizer, _schedule, _data, _evaluation, _run):
        section(made)
    output = made.get("output") or f"work_dirs/{Path(path).stem}"
    made.to("output", {"Global.output_dir": output})
    return made


def _model(made: Translation) -> None:
    name = made.get("network")
    known = NETWORKS.get(name, {"name": str(name)})
    made.to(
        "network",
        {f"Model.{key}": value for key, value in known.items()},
        "" if name in NETWORKS else "plsc has no such network: name one, or your own as package.module:Class",
    )
    made.to("embedding_size", {"Model.embedding_size": made.get("embedding_size")})


def _head(made: Translation) -> None:
    margins = made.get("margin_list")
    if len(margins) != 3 or not all(isinstance(margin, (int, float)) for margin in margins):
        made.lost("margin_list", "must be three numbers")
    else:
        m1, m2, m3 = margins
        if m1 == 1 and m3 == 0:
            arcface = {"Head.name": "dist_arcface", "Head.margin": m2, "Head.gradient": "straight_through"}
            made.to("margin_list", arcface)
        elif m3 > 0:
            why = "" if (m1, m2) == (1, 0) else "its code takes the third margin alone where that is above 0"
            made.to("margin_list", {"Head.name": "dist_cosface", "Head.margin": m3}, why)
        else:
            made.lost("margin_list", "its code refuses it, too")
    rate = made.get("sample_rate")
    why = "" if rate else "0 is the classes of the batch alone; next to nothing more is drawn here"
    made.to("sample_rate", {"Head.sample_rate": rate or 1e-6}, why)
    threshold = made.get("interclass_filtering_threshold")
    if threshold:
        made.to("interclass_filtering_threshold", {"Head.filter_above": threshold})
    else:
        made.same("interclass_filtering_threshold")


def _optimizer(made: Translation) -> None:
    names = {"sgd": "Momentum", "adamw": "AdamW"}
    name = made.get("optimizer")
    made.to(
        "optimizer",
        {"Optimizer.name": names.get(name, str(name))},
        "" if name in names else "its code refuses it, too",
    )
    if name == "adamw":
        made.lost("momentum", "has no meaning with adamw, there and here")
    else:
        why = "" if made.get("momentum") == 0.9 else "its code takes 0.9 whatever the file says"
        made.to("momentum", {"Optimizer.momentum": 0.9}, why)
    made.to("weight_decay", {"Optimizer.weight_decay": made.get("weight_decay")})


def _schedule(made: Translation) -> None:
    made.to("lr", {"LRScheduler.learning_rate": made.get("lr")})
    warmup = made.get("warmup_epoch", 0)
    below = "below 0 there is none" if warmup < 0 else ""
    made.to("warmup_epoch", {"LRScheduler.warmup_epochs": max(0, warmup)}, below)
    if made.get("num_epoch") is not None:
        made.to("num_epoch", {"Global.epochs": made.get("num_epoch")})


def _data(made: Translation) -> None:
    folder, classes, images = (made.get(key) for key in ("rec", "num_classes", "num_image"))
    if folder == "synthetic":
        noise = {
            "name": "Synthetic",
            "image_shape": [3, 112, 112],
            "num_classes": classes,
            "num_samples": images,
        }
        made.to("rec", {"DataLoader.Train.dataset": noise})
    elif folder is not None:
        data = {"name": "RecImages", "path": os.path.join(folder, "train.rec"), "flip": True}
        otherwise = "a folder of images without train.rec is name: ImageFolder, folder: ..."
        made.to("rec", {"DataLoader.Train.dataset": data}, otherwise)
    for key, ours, value in (("num_classes", "num_classes", classes), ("num_image", "num_samples", images)):
        if value is not None:
            made.to(key, {f"DataLoader.Train.{ours}": value})
    made.to("batch_size", {"DataLoader.Train.batch_size": made.get("batch_size")})
    # Their schedule counts single batches, of which so many make one step here: the same curve.
    pieces = made.get("gradient_acc")
    made.to("gradient_acc", {"DataLoader.Train.accumulate": pieces} if pieces != 1 else {})
    made.to("num_workers", {"DataLoader.Train.num_workers": made.get("num_workers")})
    made.same_if("dali", False, "data workers decode the images here: DataLoader.Train.num_workers")
    made.same_if("dali_aug", False, "docs/augmentation.md has what can be done to images here")


def _evaluation(made: Translation) -> None:
    targets, folder = made.get("val_targets", []), made.get("rec", "")
    packs = {
        name: {"name": "BinPairs", "path": os.path.join(folder, f"{name}.bin")} for name in map(str, targets)
    }
    if not packs:
        made.to("val_targets", {"DataLoader.Eval.dataset": None})
        made.lost("verbose", "has no meaning without val_targets, there and here")
        return
    main, *others = packs
    changes = {"DataLoader.Eval.dataset": packs[main], "DataLoader.Eval.flip": True}
    if others:
        changes["DataLoader.Eval.more"] = {name: packs[name] for name in others}
    made.to("val_targets", changes)
    made.to("verbose", {"Global.eval_every": 0, "Global.eval_every_steps": made.get("verbose")})


def _run(made: Translation) -> None:
    if made.get("fp16"):
        made.to("fp16", {"Global.amp": {"dtype": "float16", "level": "O1"}})
    else:
        made.same("fp16")
    made.to("seed", {"Global.seed": made.get("seed")}, "the same seed draws other numbers here")
    made.to("resume", {"Global.resume": made.get("resume")})
    made.to("frequent", {"Global.log_every": made.get("frequent")})
    made.same("save_all_states", "every checkpoint here has all that resuming takes")
    logs = made.get("using_wandb")
    if logs:
        made.to("using_wandb", {"Global.loggers": ["visualdl", "wandb"]})
    else:
        made.same("using_wandb")
    for key in _WANDB:
        if logs:
            made.lost(key, "wandb reads its own settings, such as WANDB_API_KEY and WANDB_PROJECT")
        else:
            made.same(key)
