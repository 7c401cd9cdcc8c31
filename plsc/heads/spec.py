"""Define the properties of a head. softmax.py defines the symbols."""

from dataclasses import dataclass, field

from plsc.heads.margins import Margin
from plsc.heads.memory import default_budget


@dataclass(frozen=True)
class HeadSpec:
    """Properties of a head, except its centres, which are in a bank.

    Args:
        margin: margin that works on cosines times `scale`. None means the plain softmax on inner products
            (plus the bank's bias).
        scale: factor s of the margin losses, 1 for the plain softmax.
        sharded: whether each rank's bank holds a part of the classes (`dist_*`). If False, each bank holds
            all classes. A rank then sees its B samples only, and the centres' gradients are summed over the
            ranks.
        sub_centres: centres per class. The nearest one gives the similarity. More than 1 help with label
            noise. Only with a margin.
        straight_through: whether the slope of the margin is taken as 1. InsightFace's published ArcFace does
            this, since it changes the target under no_grad.
        filter_above: limit for the cosines of other classes, or None. A larger cosine counts as 0, without
            gradient, because the class is likely the same person under two names (An et al., Partial FC, CVPR
            2022, section 3.3, and the authors' code).
        sample_rate: fraction of the classes that is drawn for each step (Partial FC). All positives of the
            step take part as well. 1.0 selects all classes. A lower rate works only with `sharded`.
        seed: seed of the draws.
        budget: bytes for logits, exponentials and other temporaries of a step.
        compute_dtype: "float32" or "bfloat16". The three matrix products of a step round their inputs to it
            (`product` in blocks.py). Everything else is float32, and so is all of `classify`.
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
        """Whether the head changes logits of classes other than the target."""
        return self.filter_above is not None or bool(self.margin and self.margin.others)
