"""Define the file that holds a checkpoint's evaluation, evaluation.json.

The numbers come from plsc.evaluation, which knows no checkpoint. plsc.training writes them here.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from plsc.errors import escape
from plsc.utils.atomic_write import replace_file
from plsc.utils.logging import get_logger
from plsc.utils.section import first_problem

EVALUATION = "evaluation.json"


class VerificationThreshold(BaseModel):
    """The cosine above which two samples count as one class. Verification of the main set determines it."""

    model_config = ConfigDict(strict=True, frozen=True)
    cosine: FiniteFloat | None = None
    """None if no evaluation has found one."""
    flip: bool = False
    """Whether the embeddings were sums over an image and its mirror image."""


class Evaluation(BaseModel):
    """The main set's evaluation of one checkpoint, in its folder's evaluation.json.

    A checkpoint is saved before it is evaluated, so this file is written after the manifest, which does not
    list it. A checkpoint without the file has not been evaluated.

    Attributes:
        set: the main set's title and size.
        metric: name of the number that decides which checkpoint is the best.
        value: that number, or None if it could not be computed.
        threshold: the threshold that this evaluation found.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    set: str
    metric: str
    value: FiniteFloat | None
    threshold: VerificationThreshold

    def is_like(self, other: Evaluation) -> bool:
        """Return whether the values can be compared: the same set, metric and use of mirror images."""
        mine, theirs = ((each.set, each.metric, each.threshold.flip) for each in (self, other))
        return mine == theirs

    def write(self, folder: Path) -> None:
        """Write the file into a checkpoint's folder. Raises OSError."""
        replace_file(folder / EVALUATION, self.model_dump_json(indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Evaluation | None:
        """Read the file in a checkpoint's folder. Return None if it does not exist or is damaged."""
        path = folder / EVALUATION
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = first_problem(error)[1] if isinstance(error, ValidationError) else error.strerror
            get_logger().warning(f"{path}: cannot be read ({escape(reason)}); it counts as not evaluated")
            return None
