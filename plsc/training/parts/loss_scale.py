"""Scale the gradients of a backbone that computes in float16, so that the small ones do not become 0.

float16 has no number between 0 and 6e-8. The backward pass starts with the embeddings' gradient times a scale,
and the parameters' gradients are divided by it again. Where they overflow, the step is left out on all ranks
and the scale halved; after 2000 steps without it is doubled. These are the constants of
torch.cuda.amp.GradScaler and paddle.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", 2018,
section 3.2), whose scale multiplies the loss: here it would reach the gradients of the class centres, which
are float32 and updated by the head. bfloat16 has float32's range and needs no scale.

Try it: `pytest tests/training/parts/test_loss_scale.py`; what a user sees is in docs/mixed_precision.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import paddle

from plsc.checkpoint.train_state import TrainState
from plsc.training.flags import unscale

INITIAL = 65536.0
LOWEST = 1.0  # a gradient that overflows without scaling is none of float16's small numbers
GROWTH_STEPS = 2000


class LossScaler:
    """Holds the scale of the backbone's gradients, a power of two, and adapts it. Every rank makes one, and
    all take the same calls.

    Attributes: `scale`; `good_steps`, those since the scale was changed; `overflows`, steps of the run that
    were left out.
    """

    def __init__(self):
        self.scale = INITIAL
        self.good_steps = 0
        self.overflows = 0

    def unscale(self, parameters: Iterable[paddle.Tensor]) -> None:
        """Divide the parameters' gradients by the scale, in place."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for dtype in {grad.dtype for grad in gradients}:
            unscale([grad for grad in gradients if grad.dtype == dtype], self.scale)

    def grow(self) -> None:
        """Count a step whose gradients were finite, and double the scale after the 2000th in a row."""
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale *= 2.0
            self.good_steps = 0

    @property
    def can_shrink(self) -> bool:
        return self.scale / 2.0 >= LOWEST

    def shrink(self) -> None:
        """Count a step whose gradients have overflowed, and halve the scale."""
        assert self.can_shrink
        self.scale /= 2.0
        self.good_steps = 0
        self.overflows += 1

    def load(self, state: TrainState) -> None:
        """Restore the state from a checkpoint; one of a run without a scale leaves it as it is."""
        if state.loss_scale is not None:
            self.scale = state.loss_scale
            self.good_steps = state.good_steps
            self.overflows = state.overflows

    def state(self) -> dict[str, float | int]:
        """Return the fields of TrainState."""
        return {"loss_scale": self.scale, "good_steps": self.good_steps, "overflows": self.overflows}
