"""Build the schedule of the learning rate and the backbone's optimizer.

A schedule is a function step -> learning rate, with no state, so a resumed run needs nothing but its step.
The class centres are updated by the head's bank at the same rate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import paddle

from plsc.config.schema import LRSchedulerCfg, OptimizerCfg
from plsc.errors import UserError
from plsc.utils.logging import warn


def build_schedule(cfg: LRSchedulerCfg, steps_per_epoch: int, total_steps: int) -> Callable[[int], float]:
    """Build the function step -> learning rate, for steps 0 to total_steps - 1.

    Warm-up rises linearly to the full rate, which the step after it takes: (step + 1) / (warmup + 1). The
    rest of the schedule spans the remaining steps; `progress` runs from 0 at the first of them towards 1 at
    the end of the run.
    """
    warmup = warmup_steps(cfg, steps_per_epoch)
    drops = cfg.boundaries or [round(epoch * steps_per_epoch) for epoch in cfg.milestones]
    late = [drop for drop in drops if drop >= total_steps] if cfg.name == "step" else []
    if late:
        warn(
            f"LRScheduler: {len(late)} of {len(drops)} drops of the learning rate come at or after the run's end (step {late[0]:,} of "
            f"{total_steps:,})"
        )
    shapes = {
        "constant": lambda step, progress: 1.0,
        "step": lambda step, progress: cfg.gamma ** bisect_right(drops, step),
        "poly": lambda step, progress: cfg.min_factor + (1 - cfg.min_factor) * (1 - progress) ** cfg.power,
        "cosine": lambda step, progress: (
            cfg.min_factor + (1 - cfg.min_factor) * 0.5 * (1 + math.cos(math.pi * progress))
        ),
    }
    shape = shapes[cfg.name]

    def learning_rate(step: int) -> float:
        if step < warmup:
            return cfg.learning_rate * (step + 1) / (warmup + 1)
        return cfg.learning_rate * shape(step, (step - warmup) / max(1, total_steps - warmup))

    return learning_rate


def warmup_steps(cfg: LRSchedulerCfg, steps_per_epoch: int) -> int:
    """Count the steps of the warm-up."""
    return cfg.warmup_steps if cfg.warmup_steps is not None else round(cfg.warmup_epochs * steps_per_epoch)


def build_optimizer(cfg: OptimizerCfg, backbone: paddle.nn.Layer) -> paddle.optimizer.Momentum:
    """Build momentum SGD on the backbone; set its rate with `set_lr` before each step.

    Weight decay falls on matrices and kernels only: a bias, a norm's gain and a slope have one dimension and
    get none.
    """
    parameters = [p for p in backbone.parameters() if not p.stop_gradient]
    if not parameters:
        raise UserError(
            f"Model: {type(backbone).__name__} has no parameters that are trained; give it some, or leave them unfrozen"
        )
    for parameter in parameters:
        # Not by parameter groups: Paddle clips the gradients of each group by that group's norm alone.
        if parameter.ndim <= 1 and parameter.regularizer is None:
            parameter.regularizer = paddle.regularizer.L2Decay(0.0)
    return paddle.optimizer.Momentum(
        learning_rate=0.0,
        momentum=cfg.momentum,
        parameters=parameters,
        weight_decay=cfg.weight_decay,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(cfg.clip_norm) if cfg.clip_norm else None,
    )


def check_optimizer(optimizer: object, rate: float) -> None:
    """Refuse by UserError a user's optimizer whose learning rate cannot be set; warn if its own rate is not
    `rate`, which replaces it."""
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise UserError(
            f"set_optimizer: the function must return a paddle.optimizer.Optimizer, it returned {type(optimizer).__name__}"
        )
    if isinstance(optimizer._learning_rate, paddle.optimizer.lr.LRScheduler):
        raise UserError(
            f"set_optimizer: its learning rate is a {type(optimizer._learning_rate).__name__}; make it with a number, and set the "
            "schedule in the section LRScheduler, which the class centres follow too"
        )
    if optimizer.get_lr() != rate:
        warn(
            f"set_optimizer: its learning rate {optimizer.get_lr():g} is not used; LRScheduler.learning_rate, {rate:g}, is, for "
            "backbone and class centres"
        )


# Paddle names an optimizer's state after parameters whose names count up over the process; ours follow the layer's.


def optimizer_arrays(
    optimizer: paddle.optimizer.Optimizer, backbone: paddle.nn.Layer
) -> dict[str, np.ndarray]:
    """Collect the optimizer's state by "parameter:kind"."""
    ours = {parameter.name: name for name, parameter in backbone.named_parameters()}
    arrays = {}
    for key, value in optimizer.state_dict().items():
        owner = max((name for name in ours if key.startswith(f"{name}_")), key=len, default=None)
        if owner is not None:
            arrays[f"{ours[owner]}:{key[len(owner) + 1 :]}"] = value.numpy()
    return arrays


def load_optimizer(
    optimizer: paddle.optimizer.Optimizer, backbone: paddle.nn.Layer, arrays: dict[str, np.ndarray]
) -> None:
    """Load the state that `optimizer_arrays` has collected into the optimizer."""
    theirs = {name: parameter.name for name, parameter in backbone.named_parameters()}
    state = {}
    for key, array in arrays.items():
        owner, kind = key.rsplit(":", 1)
        state[f"{theirs[owner]}_{kind}"] = paddle.to_tensor(array)
    optimizer.set_state_dict(state)
