"""Build a head with a new bank of class centres, from a config or from arguments."""

import math

from plsc import distributed
from plsc.distributed.device import on_device
from plsc.distributed.environment import available_bytes
from plsc.errors import UserError
from plsc.heads.banks import build_bank
from plsc.heads.config import MARGINS, HeadCfg, MarginCfg
from plsc.heads.margins import Margin, check_slopes
from plsc.heads.memory import rows_bytes
from plsc.heads.optimizer import Momentum, Rule, check_rule
from plsc.heads.sampling import ClassShard
from plsc.heads.softmax import SoftmaxHead
from plsc.heads.spec import HeadSpec
from plsc.utils.registry import is_import_path
from plsc.utils.sharding import split
from plsc.utils.text import gigabytes


def build_margin(cfg: HeadCfg) -> Margin | None:
    """Build the config's margin, or return None for the plain softmax. Raises UserError if the named class is
    not a Margin."""
    if not isinstance(cfg, MarginCfg):
        return None
    margin = MARGINS.get(cfg.kind)(**cfg.constants)
    if is_import_path(cfg.name):
        check_slopes(margin)
    return margin


def build_head(
    cfg: HeadCfg,
    rule: Rule,
    num_classes: int,
    embedding_size: int,
    seed: int,
    folder: str = ".",
    amp: str | None = None,
) -> SoftmaxHead:
    """Build the head that the config describes. Every rank calls it.

    Args:
        cfg: the section Head.
        rule: the centres' optimizer.
        num_classes: class count C.
        embedding_size: embedding size D.
        seed: seed for the initial centres and the sampling.
        folder: folder for the file of a bank on disk if Head.bank_folder is not set.
        amp: Global.amp's value. It sets the dtype of the head's products if Head.compute_dtype is not set.

    Raises UserError if the centres do not fit into the free memory, or if the margin or the rule is not
    valid.
    """
    margin = build_margin(cfg)
    check_rule(rule)
    if cfg.bank != "disk" and not on_device():
        classes = math.ceil(num_classes / distributed.world_size()) if cfg.sharded else num_classes
        need, free = rows_bytes(cfg, 1, classes, embedding_size), available_bytes()
        if need > free:
            raise UserError(
                f"the centres of {classes:,} classes on a rank would take {gigabytes(need)} of "
                f"memory, this machine has {gigabytes(free)} free; use more ranks, a lower "
                "Model.embedding_size, or Head.bank=disk",
                key="Head",
            )
    options = {"budget": int(cfg.logits_budget_mb * 10**6)} if cfg.logits_budget_mb else {}
    if isinstance(cfg, MarginCfg):
        options["scale"] = cfg.scale
        options["sub_centres"] = cfg.sub_centres
        options["straight_through"] = cfg.gradient == "straight_through"
        options["filter_above"] = cfg.filter_above
    else:
        options["bias"] = cfg.bias
    return make_head(
        num_classes,
        embedding_size,
        margin,
        sharded=cfg.sharded,
        sample_rate=cfg.sample_rate,
        bank=cfg.bank,
        bank_dtype=cfg.bank_dtype,
        bank_folder=cfg.bank_folder or folder,
        compute_dtype=cfg.compute_dtype or ("bfloat16" if amp == "bfloat16" else "float32"),
        init_std=cfg.init_std,
        seed=seed,
        rule=rule,
        **options,
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
    rule: Rule | None = None,
    **options,
) -> SoftmaxHead:
    """Make a head from arguments. Every rank calls it.

    Args:
        num_classes: class count C.
        embedding_size: embedding size D.
        margin: passed to `HeadSpec`.
        sharded: whether each rank holds only some classes, see `HeadSpec`.
        sub_centres: centres per class, see `HeadSpec`.
        bias: whether each class has a number that is added to its logit. Only without a margin.
        bank: "device", "host" or "disk", passed to `build_bank`.
        bank_dtype: passed to `build_bank`.
        bank_folder: passed to `build_bank`.
        init_std: the initial centres' standard deviation. If None, it is sqrt(2 / (D + C)) for the plain
            softmax, and 0.01 with a margin.
        seed: seed for the initial centres and the sampling.
        rule: the centres' optimizer. If None, it is momentum SGD without weight decay.
        options: further `HeadSpec` fields.

    Raises UserError if the margin is not a `Margin`, or if arguments contradict each other.
    """
    if margin is not None and not isinstance(margin, Margin):
        raise UserError(f"the margin must be an object such as ArcFace(0.5), not {margin!r}")
    spec = HeadSpec(margin, sharded=sharded, sub_centres=sub_centres, seed=seed, **options)
    _refuse_contradictions(spec, bias)
    start, stop = split(num_classes, distributed.world_size())[distributed.rank()]
    shard = ClassShard(num_classes, start, stop) if sharded else ClassShard(num_classes, 0, num_classes)
    if init_std is None:
        init_std = 0.01 if margin else (2.0 / (embedding_size + num_classes)) ** 0.5
    rows = {"bias": bias, "rule": rule or Momentum(), "std": init_std, "seed": seed}
    made = build_bank(bank, bank_dtype, bank_folder, shard, embedding_size * sub_centres, **rows)
    return SoftmaxHead(made, spec)


def _refuse_contradictions(spec: HeadSpec, bias: bool) -> None:
    """Raise UserError if a head with these properties would compute wrong numbers, or ignore a property.

    A config cannot ask for such a head. Its sections check the same.
    """
    if not 0 < spec.sample_rate <= 1:
        raise UserError(f"sample_rate={spec.sample_rate:g}: it must be above 0 and at most 1")
    if spec.sample_rate < 1 and not spec.sharded:
        raise UserError(
            f"sample_rate={spec.sample_rate:g} with sharded=False: only a sharded head can sample classes; "
            "set sharded=True or sample_rate=1.0"
        )
    if spec.margin and bias:
        raise UserError("bias=True with a margin: a margin works on cosines, which have no bias; omit one")
    if spec.margin is None:
        for name in ("scale", "sub_centres", "straight_through", "filter_above"):
            value = getattr(spec, name)
            if value != HeadSpec.__dataclass_fields__[name].default:
                raise UserError(f"{name}={value} without a margin: only a margin uses it; pass a margin")
