"""The head by its config: `x` keeps all classes on every rank, `dist_x` and a user's own class shard them over the ranks."""

from __future__ import annotations

from plsc import distributed
from plsc.config.schema import HeadCfg, OptimizerCfg, is_softmax
from plsc.heads.adaptive import InterClassFilter
from plsc.heads.margins import Margin, StraightThrough
from plsc.heads.offloaded_bank import build_bank
from plsc.heads.optimizer import Momentum
from plsc.heads.softmax import SoftmaxHead
from plsc.utils.registry import MARGINS
from plsc.utils.sharding import ClassShard


def build_margin(cfg: HeadCfg) -> Margin | None:
    """Build the margin that the config asks for; None for the plain softmax. Raises UserError for a class that is no margin."""
    if is_softmax(cfg.name):
        return None
    given = {} if cfg.margin is None else {"margin": cfg.margin}
    margin = MARGINS.build(cfg.kind, **given, **cfg.options)
    if cfg.gradient == "straight_through":
        margin = StraightThrough(margin)
    return margin if cfg.filter_above is None else InterClassFilter(margin, cfg.filter_above)


def changes_others(cfg: HeadCfg) -> bool:
    """Say whether the margin changes the logits of the other classes, too."""
    if is_softmax(cfg.name):
        return False
    return cfg.filter_above is not None or MARGINS.get(cfg.kind).has_others


def build_head(
    cfg: HeadCfg,
    optimizer: OptimizerCfg,
    num_classes: int,
    embedding_size: int,
    seed: int,
    folder: str = ".",
) -> SoftmaxHead:
    """The head that the config asks for, with its centres initialised from `seed`. `folder`: where a bank on disk has its file
    if Head.bank_folder does not say."""
    margin = build_margin(cfg)
    return make_head(
        num_classes,
        embedding_size,
        margin,
        scale=cfg.scale if margin else 1.0,
        sharded=cfg.sharded,
        bias=cfg.bias,
        sub_centres=cfg.sub_centres,
        sample_rate=cfg.sample_rate,
        bank=cfg.bank,
        bank_dtype=cfg.bank_dtype,
        bank_folder=cfg.bank_folder or folder,
        budget=int(cfg.logits_budget_mb * 2**20),
        compute_dtype=cfg.compute_dtype,
        init_std=cfg.init_std,
        seed=seed,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
    )


def make_head(
    num_classes: int,
    embedding_size: int,
    margin: Margin | None = None,
    *,
    sharded: bool = True,
    sub_centres: int = 1,
    bias: bool = False,
    bank: str = "device",
    bank_dtype: str = "float32",
    bank_folder: str = ".",
    init_std: float | None = None,
    seed: int = 0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    **options,
) -> SoftmaxHead:
    """Make a head with a new bank of class centres. Every rank calls it.

    Args:
        bias: one number per class added to the logit. Only without a margin.
        bank, bank_dtype, bank_folder: as of `build_bank`.
        init_std: standard deviation of the initial centres; None: sqrt(2 / (D + C)) for the plain softmax, 0.01 with a margin.
        seed: of the initial centres and of the sampling.
        momentum, weight_decay: of the centres' momentum SGD.
        options: the further arguments of `SoftmaxHead`, as are margin, sharded and sub_centres.
    """
    if sharded:
        shard = ClassShard.of_rank(num_classes, distributed.world_size(), distributed.rank())
    else:
        shard = ClassShard.whole(num_classes)
    if init_std is None:
        init_std = 0.01 if margin else (2.0 / (embedding_size + num_classes)) ** 0.5
    made = build_bank(
        bank,
        bank_dtype,
        bank_folder,
        shard,
        embedding_size * sub_centres,
        bias=bias,
        rule=Momentum(momentum, weight_decay),
        std=init_std,
        seed=seed,
    )
    return SoftmaxHead(made, margin, sharded=sharded, sub_centres=sub_centres, seed=seed, **options)
