"""Define a head's properties. softmax.py defines the symbols."""

from dataclasses import dataclass, field

from plsc.heads.margins import Margin
from plsc.heads.memory import default_budget


@dataclass(frozen=True)
class HeadSpec:
    """A head's properties, except its centres, which are in a bank.

    Args:
        margin: margin that works on cosines times `scale`. None means the plain softmax on inner products
            (plus the bank's bias).
        scale: the margin losses' factor s, 1 for the plain softmax.
        sharded: whether each rank's bank holds only some classes (`dist_*`). If False, each bank holds
            all classes. A rank then sees its B samples only, and the centres' gradients are summed over the
            ranks.
        sub_centres: centres per class. The nearest one gives the similarity. More than 1 help with label
            noise. Only with a margin.
        straight_through: whether the margin's slope is taken as 1. InsightFace's published ArcFace does
            this, since it changes the target under no_grad.
        filter_above: limit for other classes' cosines, or None. A larger cosine counts as 0, without
            gradient, because the class is likely the same person under two names (An et al., Partial FC, CVPR
            2022, section 3.3, and the authors' code).
        sample_rate: fraction of classes that is drawn for each step (Partial FC). All the step's
            positives take part as well. 1.0 selects all classes. A lower rate works only with `sharded`.
        seed: seed for the draws.
        budget: bytes for a step's logits, exponentials and other temporaries.
        compute_dtype: "float32" or "bfloat16". A step's three matrix products round their inputs to it
            (`product` in blocks.py). Everything else is float32, and `classify` is entirely float32.
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
        """Whether the head changes other classes' logits, not only the target's."""
        return self.filter_above is not None or bool(self.margin and self.margin.others)

    @property
    def targets_apart(self) -> bool:
        """Whether operators compute the targets' gradients apart from those of the other logits. CPUs use
        operators for these heads, and one path for both gradients would round differently."""
        return self.sub_centres > 1 or self.changes_others
