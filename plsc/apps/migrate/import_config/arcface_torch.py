"""Translate a config of InsightFace's arcface_torch, a Python file of assignments, without running it.

Its train_v2.py takes configs/base.py for what a file leaves out; DEFAULTS are the values there. Read at
commit 7fadd420 of deepinsight/insightface.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plsc.apps.migrate.import_config.translation import (
    NO_SUCH_NETWORK,
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
# No attribute of a config has these names: the code itself, and the folder that it writes to unless the file
# names one.
_CODE, _RUN = "its code", "its folder"
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

    A value is a literal, an earlier `config.key`, arithmetic of these, or a list of them, of a size that a
    config has. The second result is the beginning of all else that the file does, by key or "line N". Raises
    UserError for a file that is not Python.
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
    """Compute a value. Raises ValueError for what is none, or too large for one: lines that multiply the one
    before would take for ever."""
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


def _margin(theirs: Theirs, key: str) -> Outcome:
    margins = theirs[key]
    if len(margins) != 3 or not all(isinstance(margin, (int, float)) for margin in margins):
        return lost("must be three numbers")
    m1, m2, m3 = margins
    if m1 == 1 and m3 == 0:
        return to({"Head.name": "dist_arcface", "Head.margin": m2, "Head.gradient": "straight_through"})
    if m3 > 0:
        why = "" if (m1, m2) == (1, 0) else "its code takes the third margin alone where that is above 0"
        return to({"Head.name": "dist_cosface", "Head.margin": m3}, why)
    return lost("its code refuses it, too")


def _momentum(theirs: Theirs, key: str) -> Outcome:
    if theirs["optimizer"] == "adamw":
        return lost("has no meaning with adamw, there and here")
    why = "" if theirs[key] == 0.9 else "its code takes 0.9 whatever the file says"
    return to({"Optimizer.momentum": 0.9}, why)


def _warmup(theirs: Theirs, key: str) -> Outcome:
    epochs = theirs[key]
    return to({"LRScheduler.warmup_epochs": max(0, epochs)}, "below 0 there is none" if epochs < 0 else "")


def _images(theirs: Theirs, key: str) -> Outcome:
    folder = theirs[key]
    if folder == "synthetic":
        noise = {
            "name": "Synthetic",
            "image_shape": [3, 112, 112],
            "num_classes": theirs.get("num_classes"),
            "num_samples": theirs.get("num_image"),
        }
        return to({"DataLoader.Train.dataset": noise})
    data = {"name": "RecImages", "path": os.path.join(folder, "train.rec"), "flip": True}
    otherwise = "a folder of images without train.rec is name: ImageFolder, folder: ..."
    return to({"DataLoader.Train.dataset": data}, otherwise)


def _packs(theirs: Theirs, key: str) -> Outcome:
    folder = theirs.get("rec", "")
    packs = {
        name: {"name": "BinPairs", "path": os.path.join(folder, f"{name}.bin")}
        for name in map(str, theirs[key])
    }
    if not packs:
        return to({"DataLoader.Eval.dataset": None})
    main, *others = packs
    changes = {"DataLoader.Eval.dataset": packs[main], "DataLoader.Eval.flip": True}
    more = {"DataLoader.Eval.more": {name: packs[name] for name in others}} if others else {}
    return to({**changes, **more})


NOTHING = (None, False, 0)
_OF_WANDB = when(
    lambda theirs: theirs["using_wandb"],
    lost("wandb reads its own settings, such as WANDB_API_KEY and WANDB_PROJECT"),
    same(),
)

TABLE: dict[str, Rule] = {
    # What train_v2.py, losses.py and dataset.py do whatever the config says.
    _CODE: to(
        {
            "Head.scale": 64.0,
            "Optimizer.clip_norm": 5.0,
            "LRScheduler.name": "poly",
            "LRScheduler.power": 1.0,
        }
    ),
    "network": named("Model", NETWORKS, NO_SUCH_NETWORK),
    "embedding_size": "Model.embedding_size",
    "margin_list": _margin,
    "sample_rate": one_of(
        NOTHING,
        to(
            {"Head.sample_rate": 1e-6},
            "0 is the classes of the batch alone; next to nothing more is drawn here",
        ),
        "Head.sample_rate",
    ),
    "interclass_filtering_threshold": one_of(NOTHING, same(), "Head.filter_above"),
    "optimizer": named(
        "Optimizer", {"sgd": {"name": "Momentum"}, "adamw": {"name": "AdamW"}}, "its code refuses it, too"
    ),
    "momentum": _momentum,
    "weight_decay": "Optimizer.weight_decay",
    "lr": "LRScheduler.learning_rate",
    "warmup_epoch": _warmup,
    "num_epoch": "Global.epochs",
    "rec": _images,
    "num_classes": "DataLoader.Train.num_classes",
    "num_image": "DataLoader.Train.num_samples",
    "batch_size": count("DataLoader.Train.batch_size"),
    # Their schedule counts single batches, of which so many make one step here: the same curve.
    "gradient_acc": one_of((1,), same(), count("DataLoader.Train.accumulate")),
    "num_workers": "DataLoader.Train.num_workers",
    "dali": only(False, "data workers decode the images here: DataLoader.Train.num_workers"),
    "dali_aug": only(False, "docs/training.md#augmentation has what can be done to images here"),
    "val_targets": _packs,
    "verbose": when(
        lambda theirs: theirs["val_targets"],
        lambda theirs, key: to({"Global.eval_every": 0, "Global.eval_every_steps": theirs[key]}),
        lost("has no meaning without val_targets, there and here"),
    ),
    "fp16": one_of(NOTHING, same(), to({"Global.amp": {"dtype": "float16", "level": "O1"}})),
    "seed": lambda theirs, key: to({"Global.seed": theirs[key]}, "the same seed draws other numbers here"),
    "resume": "Global.resume",
    "frequent": "Global.log_every",
    "save_all_states": same("every checkpoint here has all that resuming takes"),
    "using_wandb": one_of(NOTHING, same(), to({"Global.loggers": ["visualdl", "wandb"]})),
    "wandb_*": _OF_WANDB,
    "suffix_run_name": _OF_WANDB,
    "save_artifacts": _OF_WANDB,
    "notes": _OF_WANDB,
    "output": lambda theirs, key: to({"Global.output_dir": theirs[key] or theirs[_RUN]}),
}


def translate(text: str, path: str) -> Translation:
    """Translate the text of a config file; `path` is for messages, and its name is that of the run."""
    values, unread = read(text, path)
    if "wandb_key" in values:
        values["wandb_key"] = "(not copied)"  # it is a password
    left_out = {"warmup_epoch": 0, "val_targets": [], _CODE: None, _RUN: f"work_dirs/{Path(path).stem}"}
    made = Translation(values, unread, {**DEFAULTS, **left_out}, TABLE)
    absent = [f"{key} {value}" for key, value in DEFAULTS.items() if key not in values]
    made.facts = [
        "Not in the file, from arcface_torch's configs/base.py: " + ", ".join(absent) if absent else "",
        "Not in the file, from arcface_torch's code: s 64, clipping at 5, a schedule to 0 along a line, mirrored images. Its weight",
        "decay falls on biases, norms and slopes, too; here they have none.",
    ]
    return made
