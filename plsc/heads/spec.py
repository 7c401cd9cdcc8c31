"""Define what a head computes. Symbols: softmax.py."""

from __future__ import annotations

from dataclasses import dataclass

from plsc.distributed.device import asynchronous
from plsc.heads.margins import Margin

_BUDGET = 256 << 20
_ASYNCHRONOUS_BUDGET = 4096 << 20


def default_budget() -> int:
    """Return the bytes for blocks of classes where nobody names any: a GPU gains from more than a CPU."""
    return _ASYNCHRONOUS_BUDGET if asynchronous() else _BUDGET


@dataclass(frozen=True)
class HeadSpec:
    """What a head computes; its centres are in a bank.

    Args:
        margin: None is the plain softmax on inner products (plus the bank's bias); a `Margin` works on
            cosines times `scale`.
        scale: the s of the margin losses; 1 for the plain softmax.
        sharded: True where the ranks' banks share the classes out (`dist_*`); False where each has all of
            them: a rank then sees its own B samples only, and sums the centres' gradients over the ranks.
        sub_centres: centres of each class, of which the nearest counts; more than 1 help with label noise.
            Only with a margin.
        sample_rate: share of the classes that are drawn anew for each step (Partial FC), to take part
            together with all positives of the step; 1.0 takes all. Only with `sharded`. seed: of the draw.
        budget: bytes for logits, exponentials and the other temporaries of a class block; None:
            `default_budget`.
        compute_dtype: "float32" or "bfloat16", to which a step rounds what its three matrix products multiply
            (`product` in blocks.py); all else is float32, `classify` entirely.
    """

    margin: Margin | None = None
    scale: float = 1.0
    sharded: bool = True
    sub_centres: int = 1
    sample_rate: float = 1.0
    seed: int = 0
    budget: int | None = None
    compute_dtype: str = "float32"

    def __post_init__(self):
        assert self.margin is not None or (self.scale == 1.0 and self.sub_centres == 1), (
            "only a margin has scale and sub-centres"
        )
        assert 0 < self.sample_rate <= 1 and (self.sharded or self.sample_rate == 1), (
            "ranks that share centres must sample the same"
        )

    @property
    def logits_budget(self) -> int:
        """The bytes for blocks of classes."""
        return default_budget() if self.budget is None else self.budget
