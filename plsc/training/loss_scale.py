"""Scale the gradients of a backbone that computes in float16, so that the small ones do not become 0.

float16 has no number between 0 and 6e-8. The backward pass starts with the embeddings' gradient times a
scale, and the parameters' gradients are divided by it again. Where they overflow, the step is left out on all
ranks and the scale halved; after 2000 steps without it is doubled. These are the constants of
torch.cuda.amp.GradScaler and paddle.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", 2018,
section 3.2), whose scale multiplies the loss: here it would reach the gradients of the class centres, which
are float32 and updated by the head. bfloat16 has float32's range and needs no scale.
"""

from __future__ import annotations

from typing import Any

from plsc.training.part import Part

INITIAL = 65536.0
LOWEST = 1.0  # a gradient that overflows without scaling is none of float16's small numbers
GROWTH_STEPS = 2000


class LossScale(Part):
    """Holds the scale of the backbone's gradients, a power of two, and adapts it.

    Attributes: `scale`; `good_steps`, those since the scale was changed; `overflows`, steps of the run that
    were left out.
    """

    name = "loss_scale"

    def __init__(self):
        self.scale = INITIAL
        self.good_steps = 0
        self.overflows = 0

    def update(self, run: Any) -> None:
        """Count a step whose gradients were finite, and double the scale after the 2000th in a row."""
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale *= 2.0
            self.good_steps = 0

    def halve(self) -> bool:
        """Halve the scale, after a step in which the scaled gradients overflowed; False: it is at its
        lowest."""
        if self.scale / 2.0 < LOWEST:
            return False
        self.scale /= 2.0
        self.good_steps = 0
        self.overflows += 1
        return True

    @property
    def numbers(self) -> dict[str, float]:
        """For the log: the scale, and the steps that were left out."""
        return {"loss_scale": self.scale, "overflows": self.overflows}

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good_steps": self.good_steps, "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the scale; a checkpoint of a run without one leaves it as it is."""
        if state:
            self.scale = state["scale"]
            self.good_steps = state["good_steps"]
            self.overflows = state["overflows"]
