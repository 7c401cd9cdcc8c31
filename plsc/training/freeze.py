"""Freeze parameters of a backbone, as Optimizer.freeze and freeze_norms ask, and the norm layers that go
along."""

import re

import paddle
from paddle import nn

from plsc.config.optimizer import OptimizerCfg
from plsc.errors import UserError, escape
from plsc.utils.registry import did_you_mean


def freeze(cfg: OptimizerCfg, backbone: nn.Layer) -> list[nn.Layer]:
    """Freeze the parameters that a config names, so that they get no gradient.

    Returns the norm layers that must be in evaluation mode while the backbone trains, so that their running
    statistics stand still: with freeze_norms all, else those all of whose parameters are frozen here.

    Raises UserError for a pattern that fits no parameter, and for freeze_norms without norm layers.
    """
    parameters = parameters_of(backbone)
    norms = _norms(backbone)
    if cfg.freeze_norms and not norms:
        raise UserError(
            f"{type(backbone).__name__} has no norm layer; leave it out", "Optimizer.freeze_norms"
        )
    frozen = {id(p) for layer in norms if cfg.freeze_norms for p in layer.parameters(include_sublayers=False)}
    for number, pattern in enumerate(pattern.pattern for pattern in cfg.freeze):
        fitting = [name for name in parameters if re.search(pattern, name)]
        if not fitting:
            raise UserError(
                f"{escape(pattern)} fits none of the names of the backbone's {len(parameters)} parameters "
                f"({', '.join([*parameters][:3])}, ...){did_you_mean(pattern, parameters)}",
                f"Optimizer.freeze.{number}",
            )
        frozen.update(id(parameters[name]) for name in fitting)
    for parameter in parameters.values():
        if id(parameter) in frozen:
            parameter.stop_gradient = True
    own = {layer: layer.parameters(include_sublayers=False) for layer in norms}
    return [
        layer
        for layer in norms
        if cfg.freeze_norms
        or all(p.stop_gradient for p in own[layer])
        and any(id(p) in frozen for p in own[layer])
    ]


def statistics_of(backbone: nn.Layer) -> list[paddle.Tensor]:
    """List what a forward pass may change: running statistics, and whatever else has no gradient.

    To be called before `freeze`: frozen weights have no gradient either, and copies of them would be for
    nothing.
    """
    return [tensor for tensor in backbone.state_dict().values() if tensor.stop_gradient]


def parameters_of(backbone: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return all parameters by name, but the running statistics, which Paddle lists as parameters."""
    statistics = {
        id(tensor)
        for layer in _norms(backbone)
        for tensor in (getattr(layer, "_mean", None), getattr(layer, "_variance", None))
    }
    return {name: p for name, p in backbone.named_parameters() if id(p) not in statistics}


def _norms(backbone: nn.Layer) -> list[nn.Layer]:
    """List all norm layers: those of a class that is called a norm, or derives from one."""
    return [
        layer
        for layer in backbone.sublayers(include_self=True)
        if any("Norm" in cls.__name__ for cls in type(layer).__mro__)
    ]
