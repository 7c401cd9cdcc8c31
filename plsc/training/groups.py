"""Decide how each parameter of a backbone is trained: Optimizer.groups and freeze_norms.

    settings_of(cfg.Optimizer, backbone)["conv1.weight"]  # Settings(lr_scale=0.1, weight_decay=5e-4, frozen=False)

Everything that cannot be right is refused here, when the backbone is built: before the first step.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import NamedTuple

import paddle
from paddle import nn

from plsc.config.optimizer import GroupCfg, OptimizerCfg
from plsc.errors import UserError, shown

_BATCH_NORMS = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
_NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)
_MOST_RATES = 4  # that `describe` lists one by one


class Settings(NamedTuple):
    """How a config wants one parameter to be trained."""

    lr_scale: float = 1.0
    weight_decay: float | None = None  # None: what the optimizer's class has by itself
    frozen: bool = False


def settings_of(cfg: OptimizerCfg, backbone: nn.Layer) -> dict[str, Settings]:
    """Return the settings of each parameter by name.

    A bias, a norm's gain and a slope have one dimension and are not decayed, whatever a group says.

    Raises UserError for a group without effect, and for freeze_norms without norm layers.
    """
    parameters = parameters_of(backbone)
    group_of = _group_of_each(cfg.groups, parameters)
    of_norms = _norm_parameters(backbone) if cfg.freeze_norms else set()
    settings = {}
    for name, parameter in parameters.items():
        group = group_of.get(name)
        lr_scale = group.lr_scale if group else 1.0
        decay = cfg.weight_decay
        frozen = name in of_norms or bool(group and group.freeze)
        settings[name] = Settings(lr_scale, decay if parameter.ndim > 1 else 0.0, frozen)
    return settings


def describe(settings: dict[str, Settings], backbone: nn.Layer) -> str:
    """Format what differs: "3 of 60 parameters frozen, learning rate times 0.1 for 20, times 1 for 37"."""
    parameters = parameters_of(backbone)
    # Not those that the network itself has frozen.
    counted = [each for name, each in settings.items() if each.frozen or not parameters[name].stop_gradient]
    scales = Counter(each.lr_scale for each in counted if not each.frozen)
    frozen = sum(each.frozen for each in counted)
    if len(scales) > _MOST_RATES:
        rates = f"times {min(scales):.3g} to {max(scales):.3g} for {sum(scales.values())}"
    else:
        rates = ", ".join(f"times {scale:.3g} for {count}" for scale, count in sorted(scales.items()))
    return f"{frozen} of {len(counted)} parameters frozen, learning rate {rates}"


def freeze(cfg: OptimizerCfg, backbone: nn.Layer, settings: dict[str, Settings]) -> list[nn.Layer]:
    """Freeze the parameters that `settings_of` says, so that they get no gradient.

    Returns the norm layers that must be in evaluation mode while the backbone trains, so that their running
    statistics stand still: with freeze_norms all, else those all of whose parameters groups have frozen.
    """
    frozen = [p for name, p in parameters_of(backbone).items() if settings[name].frozen]
    for parameter in frozen:
        parameter.stop_gradient = True
    ids = {id(parameter) for parameter in frozen}
    return [layer for layer in _norms(backbone) if cfg.freeze_norms or _stands_still(layer, ids)]


def statistics_of(backbone: nn.Layer) -> list[paddle.Tensor]:
    """List what a forward pass may change: running statistics, and whatever else has no gradient.

    To be called before `freeze`: frozen weights have no gradient either, and copies of them would be for
    nothing.
    """
    return [tensor for tensor in backbone.state_dict().values() if tensor.stop_gradient]


def _stands_still(norm: nn.Layer, frozen: set[int]) -> bool:
    own = norm.parameters(include_sublayers=False)
    return all(p.stop_gradient for p in own) and any(id(p) in frozen for p in own)


def parameters_of(backbone: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return all parameters by name, but the running statistics, which Paddle lists as parameters."""
    statistics = {
        id(tensor)
        for layer in _norms(backbone)
        for tensor in (getattr(layer, "_mean", None), getattr(layer, "_variance", None))
    }
    return {name: p for name, p in backbone.named_parameters() if id(p) not in statistics}


def _group_of_each(groups: list[GroupCfg], parameters: dict[str, paddle.Tensor]) -> dict[str, GroupCfg]:
    """Return the group of each parameter that has one."""
    group_of: dict[str, GroupCfg] = {}
    for number, group in enumerate(groups):
        key = f"Optimizer.groups.{number}.match: {shown(group.match)}"
        fitting = [name for name in parameters if re.search(group.match, name)]
        if not fitting:
            near = difflib.get_close_matches(group.match, parameters, n=3, cutoff=0.3) or [*parameters][:3]
            raise UserError(
                f"{key} fits none of the names of the backbone's {len(parameters)} parameters (near ones: {', '.join(near)})"
            )
        own = [name for name in fitting if name not in group_of]
        if not own:
            raise UserError(f"{key} fits only names that groups before it fit; move it up, or leave it out")
        group_of.update(dict.fromkeys(own, group))
    return group_of


def _norms(backbone: nn.Layer) -> list[nn.Layer]:
    """List all norm layers: Paddle's, and others whose class is called a norm."""
    layers = backbone.sublayers(include_self=True)
    return [layer for layer in layers if isinstance(layer, _NORMS) or "Norm" in type(layer).__name__]


def _norm_parameters(backbone: nn.Layer) -> set[str]:
    norms = _norms(backbone)
    if not norms:
        raise UserError(f"Optimizer.freeze_norms: {type(backbone).__name__} has no norm layer; leave it out")
    own = {id(p) for layer in norms for p in layer.parameters(include_sublayers=False)}
    return {name for name, p in parameters_of(backbone).items() if id(p) in own}
