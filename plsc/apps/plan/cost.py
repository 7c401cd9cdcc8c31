"""Compute the memory and disk space of a head, and run one on noise for timing.

`plsc plan` and `python -m benchmarks head` use both. For a head of the defaults with 100,000 classes on one
rank:

    memory(load(None, []), classes=100_000, selected=100_000, embedding_size=512, samples=256)
"""

from __future__ import annotations

import time

import numpy as np
import paddle

from plsc import distributed
from plsc.config import Config
from plsc.config.run import head_dtype
from plsc.heads.backends import by_kernels
from plsc.heads.banks.offloaded import buffer_bytes
from plsc.heads.blocks import bytes_per_class, kept_bytes, plan_blocks
from plsc.heads.config import HeadCfg, rows_bytes
from plsc.heads.optimizer import Frozen, Rule
from plsc.heads.softmax import SoftmaxHead
from plsc.native.heads import softmax
from plsc.training.build_head import build_head, build_rule, changes_others, logits_budget
from plsc.training.parts.compatible import head_of_old_classes
from plsc.utils.device import asynchronous

_ROWS_AT_ONCE = 8192  # rows of one read


def memory(
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
    """Compute the bytes of blocks and of what is kept of them for the backward pass; threads 0: the latter alone."""
    budget = logits_budget(cfg)
    hooked = changes_others(cfg)
    if not in_blocks and cfg.sub_centres == 1 and not hooked:
        exps = 4 * samples * selected
        block = softmax.block_size(dtype == "bfloat16")
        of_thread = 4 * (block * (width + samples) + samples * width)
        return (exps if exps <= budget else 0) + threads * of_thread
    block, kept = plan_blocks(samples, selected, width, cfg.sub_centres, budget, dtype)
    of_all = kept * kept_bytes(samples, selected, width, dtype)
    if threads == 0:
        return of_all
    temporary = block * bytes_per_class(samples, width, cfg.sub_centres, dtype)
    in_one = block == selected  # then what is kept is among them
    return temporary + (0 if in_one else of_all)


class Trial:
    """Runs steps of a config's head with `classes` classes on random embeddings and labels, and of the head of
    Global.compatible_with. Every rank makes one.

    Args:
        samples: of this rank.
    """

    def __init__(self, cfg: Config, classes: int, samples: int):
        def build(head: HeadCfg, rule: Rule) -> SoftmaxHead:
            return build_head(head, rule, classes, cfg.Model.embedding_size, seed=0, amp=cfg.Global.amp)

        self.head = build(cfg.Head, build_rule(cfg.Optimizer))
        compatible = cfg.Global.compatible_with is not None
        self.of_old_classes = build(head_of_old_classes(cfg.Head), Frozen()) if compatible else None
        rng = np.random.default_rng(distributed.rank())
        noise = rng.standard_normal((samples, cfg.Model.embedding_size), np.float32)
        self.emb = paddle.to_tensor(noise, stop_gradient=False)
        self.label = paddle.to_tensor(rng.integers(0, classes, samples))
        self.number = 0

    def step(self) -> None:
        """Run forward, backward and update, and wait for the bank."""
        heads = [self.head, self.of_old_classes] if self.of_old_classes else [self.head]
        sum(head(self.emb, self.label, self.number).loss for head in heads).backward()
        self.head.step(0.1, self.number)
        self.head.bank.finish()
        self.emb.clear_grad()
        self.number += 1

    def seconds_on_disk(self) -> tuple[float, float]:
        """Time a step that reads its rows from the disk, not the page cache, and the writing of its changes.

        Only with a bank on disk. The rows of a step are read in the step before, and their pages must still
        be in memory when they are written, as in training: so the timed step follows one that is not timed.
        Without sampling a step reads the shard three times, the second and third time from the page cache:
        these are timed separately.
        """
        bank = self.head.bank
        sampled = self.head.sample_rate < 1
        bank.sync(drop=True)
        if sampled:
            self.step()
            bank.sync()
        began = time.perf_counter()
        self.step()
        writing = bank.sync(drop=not sampled)
        seconds = time.perf_counter() - began - writing
        began = time.perf_counter()
        if sampled:
            return seconds, writing
        for start in range(0, bank.shard.size, _ROWS_AT_ONCE):
            bank.read_rows(slice(start, min(start + _ROWS_AT_ONCE, bank.shard.size)))
        return seconds + 2 * (time.perf_counter() - began), writing
