"""Freeze the backbone parameters that Optimizer.freeze and Optimizer.freeze_norms name, and find the
norm layers to keep in evaluation mode.

Try it: `plsc train -c configs/ -o 'Optimizer.freeze=[^conv1]'`.
"""

import re

import paddle
from paddle import nn

from plsc.config.optimizer import OptimizerCfg
from plsc.errors import UserError, escape
from plsc.utils.registry import did_you_mean


def freeze(cfg: OptimizerCfg, backbone: nn.Layer) -> list[nn.Layer]:
    """Freeze the parameters that a config names, so that they get no gradient.

    Args:
        cfg: the config's section Optimizer.
        backbone: the layer whose parameters are frozen.

    Returns the norm layers that must stay in evaluation mode during training, so that their running
    statistics do not change. With freeze_norms these are all norm layers. Otherwise they are the norm layers
    whose parameters are all frozen, at least one by the config.

    Raises UserError if a pattern matches no parameter, and if freeze_norms is set but the backbone has no
    norm layers.
    """
    parameters = parameters_of(backbone)
    norms = _norms(backbone)
    if cfg.freeze_norms and not norms:
        raise UserError(
            f"{type(backbone).__name__} has no norm layer; remove the key", "Optimizer.freeze_norms"
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
    """List the tensors that a forward pass may change: running statistics, and others without a gradient.

    Call it before `freeze`. Frozen weights have no gradient either, but do not need to be copied.
    """
    return [tensor for tensor in backbone.state_dict().values() if tensor.stop_gradient]


def parameters_of(backbone: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return all parameters by name, except running statistics, which Paddle also lists as parameters."""
    statistics = {
        id(tensor)
        for layer in _norms(backbone)
        for tensor in (getattr(layer, "_mean", None), getattr(layer, "_variance", None))
    }
    return {name: p for name, p in backbone.named_parameters() if id(p) not in statistics}


def _norms(backbone: nn.Layer) -> list[nn.Layer]:
    """List all norm layers: those with "Norm" in the name of their class or a base class."""
    return [
        layer
        for layer in backbone.sublayers(include_self=True)
        if any("Norm" in cls.__name__ for cls in type(layer).__mro__)
    ]
