"""The heads by their config names: `x` keeps all classes on every rank, `dist_x` spreads them over the ranks."""

from __future__ import annotations

from plsc.config_sections import HeadCfg, OptimizerCfg
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.softmax import SoftmaxHead

_MARGINS = {"softmax": None, "arcface": ArcFace, "cosface": CosFace}


def build_head(
    cfg: HeadCfg, optimizer: OptimizerCfg, num_classes: int, embedding_size: int, seed: int
) -> SoftmaxHead:
    """The head that the config asks for, with its centres initialised from `seed`."""
    margin_class = _MARGINS[cfg.name.removeprefix("dist_")]
    margin = None
    if margin_class is not None:
        margin = margin_class() if cfg.margin is None else margin_class(cfg.margin)
    return SoftmaxHead(
        num_classes,
        embedding_size,
        margin,
        scale=cfg.scale if margin else 1.0,
        sharded=cfg.name.startswith("dist_"),
        bias=cfg.bias,
        sample_rate=cfg.sample_rate,
        budget=int(cfg.logits_budget_mb * 2**20),
        init_std=cfg.init_std,
        seed=seed,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
    )
