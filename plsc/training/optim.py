"""Build the backbone's optimizer. The head's bank updates the class centres.

Try it: `build_optimizer(cfg.Optimizer, backbone)`.
"""

from typing import Any, NamedTuple

import paddle
from paddle.incubate.optimizer import LarsMomentumOptimizer

from plsc.config.optimizer import OptimizerCfg
from plsc.distributed import paddle_internals
from plsc.errors import UserError
from plsc.training.part import arrays_on_rank_0


class Slice(NamedTuple):
    """One of Paddle's optimizers, and the parameters that it updates.

    Attributes:
        optimizer: the optimizer, without grad_clip.
        parameters: the parameters that it updates.
        merged: whether it may update all parameters in one launch.
    """

    optimizer: paddle.optimizer.Optimizer
    parameters: list[paddle.Tensor]
    merged: bool = False


class BackboneOptimizer:
    """Updates a backbone with Paddle's optimizers: one for the parameters with weight decay, and one for the
    others.

    It does not use one optimizer with parameter groups, because Paddle would clip each group's gradients
    by that group's own norm.

    Args:
        name: the optimizer's name in the config. A checkpoint records it.
        backbone: the layer that is updated. A checkpoint uses its parameters' names.
        slices: Paddle's optimizers with their parameters.
        clip_norm: upper bound on the norm over all gradients. None does not clip.
    """

    def __init__(
        self, name: str, backbone: paddle.nn.Layer, slices: list[Slice], clip_norm: float | None = None
    ):
        self.name = name
        self._backbone = backbone
        self._slices = slices
        self._clip = paddle.nn.ClipGradByGlobalNorm(clip_norm) if clip_norm else None

    @property
    def parameters(self) -> list[paddle.Tensor]:
        """All parameters that the optimizer updates."""
        return [parameter for each in self._slices for parameter in each.parameters]

    def step(self, rate: float) -> None:
        """Update all parameters that have a gradient, with learning rate `rate`."""
        for each in self._slices:
            each.optimizer.set_lr(rate)
        if self._clip:
            gradients = [(p, p.grad) for p in self.parameters if p.grad is not None]
            for parameter, gradient in self._clip(gradients):
                parameter.grad = gradient
        for each in self._slices:
            if each.merged:  # it matches gradients to parameters by their order, so none may be missing
                paddle_internals.merge_updates(
                    each.optimizer, all(p.grad is not None for p in each.parameters)
                )
            each.optimizer.step()

    def clear_grad(self) -> None:
        """Delete the gradients."""
        for each in self._slices:
            each.optimizer.clear_grad(set_to_zero=False)

    # Paddle names a state after its parameter, with a count over the process: "linear_0.w_0_velocity_0". A
    # checkpoint uses the parameter's name in the backbone: "conv1.weight:velocity_0".

    def state_dict(self) -> dict[str, Any]:
        """Return all parameters' states as arrays by name. A name is "parameter:kind"."""
        ours = {parameter.name: name for name, parameter in self._backbone.named_parameters()}
        tensors = {}
        for each in self._slices:
            for key, value in each.optimizer.state_dict().items():
                owner = max((name for name in ours if key.startswith(f"{name}_")), key=len, default=None)
                if owner is not None:  # otherwise the state belongs to no parameter
                    tensors[f"{ours[owner]}:{key[len(owner) + 1 :]}"] = value
        return {"arrays": arrays_on_rank_0(tensors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the arrays that `state_dict` returned."""
        parameters = dict(self._backbone.named_parameters())
        for each in self._slices:
            own = {parameter.name for parameter in each.parameters}
            found = {}
            for key, array in state.get("arrays", {}).items():
                name, kind = key.rsplit(":", 1)
                if (paddle_name := parameters[name].name) in own:
                    found[f"{paddle_name}_{kind}"] = paddle.to_tensor(array)
            each.optimizer.set_state_dict(found)


def build_optimizer(cfg: OptimizerCfg, backbone: paddle.nn.Layer) -> BackboneOptimizer:
    """Build the optimizer for the parameters that are not frozen. Each step passes its learning rate.

    Parameters with one dimension have no weight decay: biases, norms' gains, and slopes.

    Raises UserError if all parameters are frozen or the backbone has none.
    """
    slices: dict[float, list[paddle.Tensor]] = {}
    for parameter in backbone.parameters():
        if not parameter.stop_gradient:
            slices.setdefault(cfg.weight_decay if parameter.ndim > 1 else 0.0, []).append(parameter)
    if not slices:
        raise UserError(
            f"{type(backbone).__name__} has no parameters to train; give it some, or do not freeze them all",
            key="Model",
        )
    made = []
    for decay, parameters in slices.items():
        merged = cfg.name == "Momentum" and all(p.dtype == paddle.float32 for p in parameters)
        made.append(Slice(_make(cfg, parameters, decay, merged), parameters, merged))
    return BackboneOptimizer(cfg.name, backbone, made, cfg.clip_norm)


def _make(
    cfg: OptimizerCfg, parameters: list[paddle.Tensor], decay: float, merged: bool
) -> paddle.optimizer.Optimizer:
    """Make the Paddle optimizer that a config names.

    Args:
        cfg: the config's section Optimizer.
        parameters: parameters to update.
        decay: these parameters' weight decay.
        merged: whether Momentum updates all parameters in one launch.
    """
    rate = 1.0  # never used: each step sets its own
    if cfg.name == "Momentum":
        return paddle.optimizer.Momentum(
            rate, cfg.momentum, parameters, cfg.nesterov, decay, use_multi_tensor=merged
        )
    if cfg.name == "AdamW":
        return paddle.optimizer.AdamW(
            rate, cfg.beta1, cfg.beta2, cfg.epsilon, parameters=parameters, weight_decay=decay
        )
    if cfg.name != "LARS":
        return cfg.registry.get(cfg.name)(
            learning_rate=rate, parameters=parameters, weight_decay=decay, **cfg.model_extra
        )
    # You et al., "Large batch training of convolutional networks" (2017). Paddle's version uses no trust
    # ratio if the weight decay is 0.
    return LarsMomentumOptimizer(rate, cfg.momentum, cfg.coefficient, decay, parameters, epsilon=cfg.epsilon)
