"""Build the head of a config: `x` has all classes on every rank, `dist_x` and a user's own margin shard
them."""

import math

from plsc import distributed
from plsc.config.optimizer import AdamWCfg, MomentumCfg, OptimizerCfg
from plsc.config.run import AmpCfg, head_dtype
from plsc.distributed.device import on_device
from plsc.errors import UserError
from plsc.heads.build import make_head
from plsc.heads.config import MARGINS, HeadCfg, MarginCfg, SoftmaxCfg, rows_bytes
from plsc.heads.margins import Margin, check_slopes
from plsc.heads.optimizer import LARS, AdamW, Momentum, Rule
from plsc.heads.softmax import SoftmaxHead
from plsc.utils.registry import is_import_path
from plsc.utils.room import available_bytes


def build_margin(cfg: HeadCfg) -> Margin | None:
    """Build the margin that the config asks for; None for the plain softmax. Raises UserError for a class
    that is no margin."""
    if not isinstance(cfg, MarginCfg):
        return None
    margin = MARGINS.get(cfg.kind)(**cfg.constants)
    if is_import_path(cfg.name):
        check_slopes(margin)
    return margin


def build_rule(cfg: OptimizerCfg) -> Rule:
    """Build the class centres' optimizer that the config asks for."""
    rule = cfg.rule_of_head
    if isinstance(rule, MomentumCfg):
        return Momentum(rule.momentum, rule.weight_decay, rule.nesterov)
    if isinstance(rule, AdamWCfg):
        return AdamW(rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay)
    return LARS(rule.momentum, rule.weight_decay, rule.coefficient, rule.epsilon)


def build_head(
    cfg: HeadCfg,
    rule: Rule,
    num_classes: int,
    embedding_size: int,
    seed: int,
    folder: str = ".",
    amp: AmpCfg | None = None,
) -> SoftmaxHead:
    """Build the head that the config asks for, with its centres initialised from `seed`. `rule`: the centres'
    optimizer. `folder`: for the file of a bank on disk without Head.bank_folder. `amp`: of the training, for
    the dtype of the head's products."""
    margin = build_margin(cfg)
    if cfg.bank != "disk" and not on_device():
        classes = math.ceil(num_classes / distributed.world_size()) if cfg.sharded else num_classes
        need, free = rows_bytes(cfg, 1, classes, embedding_size), available_bytes()
        if need > free:
            raise UserError(
                f"Head: the centres of {classes:,} classes on a rank would take {need / 1e9:,.3g} GB of "
                f"memory, this machine has {free / 1e9:.3g} GB free; take more ranks, a lower "
                "Model.embedding_size, or Head.bank=disk"
            )
    of_kind = {}
    if cfg.logits_budget_mb:
        of_kind["budget"] = int(cfg.logits_budget_mb * 2**20)
    if isinstance(cfg, SoftmaxCfg):
        of_kind["bias"] = cfg.bias
    elif isinstance(cfg, MarginCfg):
        of_kind["scale"] = cfg.scale
        of_kind["sub_centres"] = cfg.sub_centres
        of_kind["straight_through"] = cfg.gradient == "straight_through"
        of_kind["filter_above"] = cfg.filter_above
    return make_head(
        num_classes,
        embedding_size,
        margin,
        sharded=cfg.sharded,
        sample_rate=cfg.sample_rate,
        bank=cfg.bank,
        bank_dtype=cfg.bank_dtype,
        bank_folder=cfg.bank_folder or folder,
        compute_dtype=head_dtype(cfg, amp),
        init_std=cfg.init_std,
        seed=seed,
        rule=rule,
        **of_kind,
    )
