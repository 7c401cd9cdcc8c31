"""Define the state of a run in a checkpoint beside the arrays: `state` in its manifest.json.

A missing key has the default: folders of plsc import and import-centres have no run. A key that this version
does not know is kept when a checkpoint is rewritten. Imports no Paddle.
"""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt

from plsc.utils.calibration import Calibration


def _refuse_huge(shape: list[int]) -> list[int]:
    if math.prod(shape) > 2**32:
        raise ValueError("a sample must have at most 2**32 numbers")
    return shape


Shape = Annotated[
    list[Annotated[int, Field(ge=1, le=2**32)]],
    Field(min_length=1, max_length=8),
    AfterValidator(_refuse_huge),
]
"""Of a sample of any kind."""


COMPATIBLE = "compatible"
"""The title of the loss that makes a network compatible with another, in `other_networks`."""


class Best(BaseModel):
    """The best evaluation of the main set so far."""

    model_config = ConfigDict(strict=True, frozen=True)
    step: NonNegativeInt
    set: str
    """Title of the main set then."""
    metric: str
    value: FiniteFloat


class SetState(BaseModel):
    """One of several data sets that are trained on together."""

    model_config = ConfigDict(strict=True, frozen=True)
    title: str
    classes: NonNegativeInt
    own: bool
    """Whether its classes are a range of their own."""
    sums: Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)] = [0.0, 0.0, 0.0]
    """Loss, correct samples and samples since the last row of metrics.jsonl."""


class TrainState(BaseModel):
    """The fields of `state`, in the order in which they are written."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    seed: int | None = None
    global_batch: PositiveInt | None = None
    """Samples of a step on all ranks together."""
    steps_per_epoch: PositiveInt | None = None
    margin: dict[str, FiniteFloat] = {}
    """What the margin remembers from step to step."""
    threshold: FiniteFloat | None = None
    """Cosine above which two images are of one class, by the last main evaluation."""
    optimizer: str | None = None
    """Class of the backbone's optimizer."""
    head_optimizer: str | None = None
    """Class of the class centres' optimizer."""
    updates: NonNegativeInt = 0
    """How often the class centres have been updated, which AdamW counts."""
    head: str | None = None
    """Head.name; a head is the same spread over the ranks (dist_) or not."""
    replaced: Annotated[list[NonNegativeInt], Field(min_length=1)] = [0]
    """Of each rank: corrupt images replaced in the epoch."""
    threshold_set: str | None = None
    """Title of the set that a threshold chosen after the training is of (plsc eval --set-threshold)."""
    threshold_step: NonNegativeInt | None = None
    """Step of the checkpoint that it was chosen with."""
    flip: bool = False
    """Whether `threshold` is of embeddings of an image and its mirror image together."""
    calibration: Calibration | None = None
    """What a cosine means, by the last main evaluation or plsc eval --calibrate; null: not of pairs."""
    best: Best | None = None
    skipped: NonNegativeInt = 0
    """Steps that did not count, because something was not finite."""
    in_a_row: NonNegativeInt = 0
    """Of them the last ones, without a good one since."""
    since_good: NonNegativeInt = 0
    """Steps since the last good one, overflows too."""
    loss_scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Scale of the backbone's gradients in float16; null without."""
    good_steps: NonNegativeInt = 0
    """Since that was changed."""
    overflows: NonNegativeInt = 0
    """Steps that did not count, because scaled gradients overflowed; not part of `skipped`."""
    rollbacks: NonNegativeInt = 0
    """How often the run went back to an older checkpoint."""
    sets: list[SetState] = []
    """The sets of a run with several, in their order."""
    other_networks: dict[str, str] = {}
    """Of each loss beside the head's, by title, the identity of the network of another run that it takes."""
    ema_steps: NonNegativeInt = 0
    """Optimizer steps in the averaged weights of ema.safetensors."""

    def to_json(self) -> dict[str, Any]:
        """Return the keys that were given, as plain values."""
        return self.model_dump(exclude_unset=True)
