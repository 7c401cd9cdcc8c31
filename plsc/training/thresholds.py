"""The threshold of a checkpoint: that of its run's last evaluation of the main set. Imports no Paddle."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, FiniteFloat

from plsc.checkpoint.saved import Checkpoint

OWNER = "evaluation"  # of this state in a checkpoint


class Threshold(BaseModel):
    """The cosine above which two samples are of one class."""

    model_config = ConfigDict(strict=True, frozen=True)
    cosine: FiniteFloat | None = None
    """None: not known."""
    flip: bool = False
    """Whether it is of embeddings of an image and its mirror image together."""


def threshold_of(saved: Checkpoint) -> Threshold:
    """Read the threshold of a checkpoint."""
    with saved.loading(OWNER):
        return Threshold.model_validate(saved.plain(OWNER))
