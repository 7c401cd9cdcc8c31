"""Define what a head computes. Symbols: softmax.py."""

from dataclasses import dataclass, field

from plsc.heads.margins import Margin
from plsc.heads.memory import default_budget


@dataclass(frozen=True)
class HeadSpec:
    """What a head computes; its centres are in a bank.

    Args:
        margin: None is the plain softmax on inner products (plus the bank's bias); a `Margin` works on
            cosines times `scale`.
        scale: the s of the margin losses; 1 for the plain softmax.
        sharded: True where the ranks' banks share the classes out (`dist_*`); False where each has all of
            them: a rank then sees its B samples only, and sums the centres' gradients over the ranks.
        sub_centres: centres of each class, of which the nearest counts; more than 1 help with label noise.
            Only with a margin.
        straight_through: take the slope of the margin as 1, as InsightFace's published ArcFace, which changes
            the target under no_grad.
        filter_above: cosines of other classes above it count as 0, without gradient: they are likely the same
            person under two names (An et al., Partial FC, CVPR 2022, section 3.3, and the authors' code).
        sample_rate: share of the classes that are drawn anew for each step (Partial FC), to take part
            together with all positives of the step; 1.0 takes all. Only with `sharded`. seed: of the draw.
        budget: bytes for logits, exponentials and the other temporaries of a step.
        compute_dtype: "float32" or "bfloat16", to which a step rounds what its three matrix products multiply
            (`product` in blocks.py); all else is float32, `classify` entirely.
    """

    margin: Margin | None = None
    scale: float = 1.0
    sharded: bool = True
    sub_centres: int = 1
    straight_through: bool = False
    filter_above: float | None = None
    sample_rate: float = 1.0
    seed: int = 0
    budget: int = field(default_factory=default_budget)
    compute_dtype: str = "float32"

    @property
    def changes_others(self) -> bool:
        """Whether logits of other classes than the target are changed."""
        return self.filter_above is not None or bool(self.margin and self.margin.others)
