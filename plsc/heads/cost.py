"""What a head costs: its memory by part, computed, and a head at work on noise, to be timed.

`plsc-plan` and `tools/benchmark.py head` use both. For a head of the defaults with 100,000 classes on one rank:

    memory(HeadCfg(), classes=100_000, selected=100_000, embedding_size=512, samples=256)
"""

from __future__ import annotations

import numpy as np
import paddle

from plsc import distributed, kernels
from plsc.config import Config
from plsc.config_sections import HeadCfg
from plsc.heads import build_head
from plsc.heads.blocks import plan_blocks
from plsc.kernels import softmax


def memory(
    cfg: HeadCfg, classes: int, selected: int, embedding_size: int, samples: int, threads: int = 1
) -> dict[str, int]:
    """Bytes on a rank by part: what rests there, and what a step needs besides.

    Args:
        classes: S, of this rank's shard. selected: K, of them in a step. samples: N, that the rank judges.
        threads: of the rank; with kernels each has blocks of its own.
    """
    row = 4 * (embedding_size * cfg.sub_centres + cfg.bias)
    return {
        "centres": classes * row,
        "momentum": classes * row,
        "gradient": selected * row,
        "blocks": _blocks(cfg, selected, embedding_size * cfg.sub_centres, samples, threads),
        "embeddings": 6 * 4 * samples * embedding_size,
    }


def _blocks(cfg: HeadCfg, selected: int, width: int, samples: int, threads: int) -> int:
    budget = int(cfg.logits_budget_mb * 2**20)
    hooked = cfg.name.endswith("curricularface") or cfg.filter_above is not None
    if kernels.multiplies() and cfg.sub_centres == 1 and not hooked:
        exps = 4 * samples * selected
        of_thread = 4 * (softmax.BLOCK * (width + samples) + samples * width)
        return (exps if exps <= budget else 0) + threads * of_thread
    block, kept = plan_blocks(samples, selected, width, cfg.sub_centres, budget)
    return 4 * block * (3 * samples * cfg.sub_centres + 4 * width) + kept * 4 * samples * selected


class Trial:
    """A config's head with `classes` classes, and steps of it on random embeddings and labels. Every rank makes one.

    Args:
        samples: of this rank.
    """

    def __init__(self, cfg: Config, classes: int, samples: int):
        self.head = build_head(cfg.Head, cfg.Optimizer, classes, cfg.Model.embedding_size, seed=0)
        rng = np.random.default_rng(distributed.rank())
        noise = rng.standard_normal((samples, cfg.Model.embedding_size), np.float32)
        self.emb = paddle.to_tensor(noise, stop_gradient=False)
        self.label = paddle.to_tensor(rng.integers(0, classes, samples))
        self.number = 0

    def step(self) -> None:
        """Forward, backward, update."""
        self.head(self.emb, self.label, self.number).loss.backward()
        self.head.step(0.1)
        self.emb.clear_grad()
        self.number += 1
