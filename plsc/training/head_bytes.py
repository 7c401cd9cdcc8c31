"""Compute the bytes that a head takes on a rank, in memory and in a checkpoint, from the config alone.

For a head of the defaults with 100,000 classes on one rank:

    head_bytes(load(None, []), classes=100_000, selected=100_000, embedding_size=512, samples=256)
"""

from __future__ import annotations

from plsc.config import Config
from plsc.config.run import head_dtype
from plsc.distributed.accelerator import asynchronous
from plsc.heads.backends import by_kernels
from plsc.heads.banks.offloaded import buffer_bytes
from plsc.heads.blocks import bytes_per_class, kept_bytes, plan_blocks
from plsc.heads.config import HeadCfg, rows_bytes
from plsc.heads.optimizer import Frozen
from plsc.native.heads import softmax
from plsc.training.build_head import build_rule, changes_others, logits_budget


def head_bytes(
    cfg: Config,
    classes: int,
    selected: int,
    embedding_size: int,
    samples: int,
    threads: int = 1,
    second: bool = False,
) -> dict[str, int]:
    """Compute the bytes of a head on a rank by part: stored rows, and the needs of a step.

    Args:
        classes: S, of this rank's shard.
        selected: K of them in a step; without sampling all.
        samples: N, which the rank compares with its classes.
        threads: of the rank; with kernels each has blocks of its own.
        second: whether its centres are frozen, and another head uses the memory of its temporaries before and after it.
    """
    moments = Frozen.moments if second else build_rule(cfg.Optimizer).moments
    arrays = 1 + len(moments)
    stored = rows_bytes(cfg.Head, arrays, classes, embedding_size)
    dtype = head_dtype(cfg.Head, cfg.Global.amp)
    cfg = cfg.Head
    width = embedding_size * cfg.sub_centres + cfg.bias
    sampled = selected < classes
    in_memory = stored // arrays if cfg.bank != "disk" else 0
    offloaded = cfg.bank == "disk" or cfg.bank_dtype != "float32"
    copied = sampled and asynchronous() and cfg.bank == "device"
    in_blocks = not by_kernels(dtype) or (offloaded and not sampled)
    return {
        "centres": in_memory,
        **dict.fromkeys(moments, in_memory),
        "gradient": 4 * selected * width,
        **({"copies of selected rows": 4 * arrays * selected * width} if copied else {}),
        **(buffer_bytes(arrays * width, itemsize(cfg), classes, selected) if offloaded else {}),
        "blocks": _blocks(
            cfg,
            selected,
            embedding_size * cfg.sub_centres,
            samples,
            0 if second else threads,
            dtype,
            in_blocks,
        ),
        "embeddings": 6 * 4 * samples * embedding_size,
    }


def itemsize(cfg: HeadCfg) -> int:
    """Return the bytes of a stored number of a centre."""
    return 2 if cfg.bank_dtype == "bfloat16" else 4


def bank_bytes(cfg: Config, classes: int, embedding_size: int) -> int:
    """Return the bytes of `classes` centres and their optimizer's state, stored or in a checkpoint."""
    arrays = 1 + len(build_rule(cfg.Optimizer).moments)
    return rows_bytes(cfg.Head, arrays, classes, embedding_size)


def _blocks(
    cfg: HeadCfg, selected: int, width: int, samples: int, threads: int, dtype: str, in_blocks: bool
) -> int:
    """Compute the bytes of blocks and of what is kept of them for the backward pass; threads 0: the latter
    alone."""
    budget = logits_budget(cfg)
    hooked = changes_others(cfg)
    if not in_blocks and cfg.sub_centres == 1 and not hooked:
        rounded = dtype == "bfloat16"
        exps = softmax.kept_dtype(rounded).itemsize * samples * selected
        block = softmax.block_size(rounded)
        of_thread = 4 * (block * (width + samples) + samples * width)
        return (exps if exps <= budget else 0) + threads * of_thread
    block, kept = plan_blocks(samples, selected, width, cfg.sub_centres, budget, dtype)
    of_all = kept * kept_bytes(samples, selected, width, dtype)
    if threads == 0:
        return of_all
    temporary = block * bytes_per_class(samples, width, cfg.sub_centres, dtype)
    in_one = block == selected  # then what is kept is among them
    return temporary + (0 if in_one else of_all)
