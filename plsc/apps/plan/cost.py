"""Run a head on noise, for timing: `plsc plan` and `python -m benchmarks head` do."""

from __future__ import annotations

import time

import numpy as np
import paddle

from plsc import distributed
from plsc.config import Config
from plsc.heads.config import HeadCfg
from plsc.heads.optimizer import Frozen, Rule
from plsc.heads.softmax import SoftmaxHead
from plsc.training.build_head import build_head, build_rule
from plsc.training.parts.compatible import head_of_old_classes

_ROWS_AT_ONCE = 8192  # rows of one read


class Trial:
    """Runs steps of a config's head with `classes` classes on random embeddings and labels, and of the head
    of Global.compatible_with. Every rank makes one.

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
        sampled = self.head.spec.sample_rate < 1
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
