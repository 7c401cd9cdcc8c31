"""Define the section Optimizer: a section for each rule, and one for a user's own optimizer."""

import re
from typing import Any, Literal

from pydantic import Field

from plsc.utils.registry import Registry
from plsc.utils.section import ClassSection, Section, one_of

RULES = Registry(
    "optimizer of the class centres",
    {name: f"plsc.heads.optimizer:{name}" for name in ("Momentum", "AdamW", "LARS")},
    bases=("plsc.heads.optimizer:Rule",),
)


class MomentumCfg(Section):
    """SGD with momentum, usual for convolutional networks."""

    name: Literal["Momentum"] = "Momentum"
    momentum: float = Field(0.9, ge=0, lt=1)
    """How much of the last step's velocity is kept. 0 is plain SGD."""
    nesterov: bool = False
    """Take the gradient at the point that the velocity leads to (Nesterov's momentum)."""
    weight_decay: float = Field(5e-4, ge=0, le=10)
    """L2 coefficient on weights and class centres. Biases, norms and slopes get none."""


class AdamWCfg(Section):
    """AdamW, usual for transformers, at a learning rate near 0.001."""

    name: Literal["AdamW"]
    beta1: float = Field(0.9, ge=0, lt=1)
    """How much of the mean gradient is kept from step to step."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """How much of the mean squared gradient is kept. Try 0.95 to 0.98 if a transformer's loss
    jumps."""
    epsilon: float = Field(1e-8, gt=0)
    """Added to the mean squared gradient's root."""
    weight_decay: float = Field(0.1, ge=0, le=10)
    """Decoupled decay, a share of the learning rate, on weights and class centres. Biases, norms and slopes
    get none."""


class LARSCfg(Section):
    """LARS, for batches with many thousand samples (You et al., "Large batch training of convolutional
    networks", 2017)."""

    name: Literal["LARS"]
    momentum: float = Field(0.9, ge=0, lt=1)
    """How much of the last step's velocity is kept."""
    coefficient: float = Field(0.001, gt=0, le=1)
    """The trust coefficient: a layer's step length over its weights' length, at learning rate 1."""
    epsilon: float = Field(0.0, ge=0)
    """Added to the gradient's norm."""
    weight_decay: float = Field(5e-4, gt=0, le=10)
    """L2 coefficient on weights and class centres. Biases, norms and slopes get none. Without decay the rate
    would not follow the norms."""


class OwnRuleCfg(ClassSection):
    """Your own rule for the class centres. Further keys are its class's keyword arguments."""

    registry = RULES
    name: str


AnyRule = one_of(MomentumCfg, AdamWCfg, LARSCfg, OwnRuleCfg)


class OptimizerCfg(Section):
    """The optimizer for the backbone and the class centres."""

    name: str = "Momentum"
    """`Momentum`, `AdamW`, `LARS`, or your own as `package.module:Class`, which updates the backbone only
    (docs/extend.md)."""
    clip_norm: float | None = Field(None, gt=0)
    """Upper bound on the global norm of the backbone's gradient. null does not clip. Try 5 if the loss
    jumps."""
    head: AnyRule | None = None
    """The class centres' optimizer, such as `{name: Momentum, momentum: 0.9}`, or your own as
    `package.module:Class` (docs/extend.md). null means the backbone's optimizer."""
    head_lr_scale: float = Field(1.0, gt=0, le=1000)
    """Factor on the class centres' learning rate."""
    freeze: list[re.Pattern] = []
    """Regular expressions, such as `[^conv1, layer1]`. The backbone's parameters are frozen if one of
    these is found in their names. If all of a batch norm's parameters are frozen, its running statistics
    are frozen, too. An expression that is found in no name is refused."""
    freeze_norms: bool = False
    """Freeze all norm layers: gain, bias, and the batch norms' running statistics. It helps in fine-tuning
    with small batches."""

    def build_rule(self) -> Any:
        """Build the class centres' optimizer, a `plsc.heads.optimizer.Rule`."""
        section = self.head or self
        others = ["name"] if self.head else OptimizerCfg.model_fields
        return RULES.get(section.name)(**{key: value for key, value in section if key not in others})


class MomentumOptimizerCfg(MomentumCfg, OptimizerCfg):
    """SGD with momentum."""


class AdamWOptimizerCfg(AdamWCfg, OptimizerCfg):
    """AdamW."""


class LARSOptimizerCfg(LARSCfg, OptimizerCfg):
    """LARS."""


class OwnOptimizerCfg(OptimizerCfg, ClassSection):
    """Your own optimizer for the backbone. Further keys are its class's keyword arguments."""

    registry = Registry("optimizer", {}, bases=("paddle.optimizer:Optimizer",))
    supplied = ("learning_rate", "parameters", "weight_decay", "grad_clip")
    name: str
    head: AnyRule = Field(...)
    """The class centres' optimizer."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """The class's `weight_decay` on weights and class centres. Biases, norms and slopes get none."""


AnyOptimizer = one_of(MomentumOptimizerCfg, AdamWOptimizerCfg, LARSOptimizerCfg, OwnOptimizerCfg)
