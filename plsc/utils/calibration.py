"""Turn a cosine into P(same), the probability that two images are of one class, and a wanted FAR into a
threshold.

The numbers are fitted by plsc.evaluation.calibration, and stored with a checkpoint and its exports. Imports
no Paddle. Try it:

    Calibration(method="logistic", set="demo", step=0, pairs=100, prior=0.5, cosine=[-1, 1], log_odds=[-9, 9]).probability(0.3)
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from plsc.errors import UserError, shown
from plsc.utils.messages import first_problem

Cosine = Annotated[FiniteFloat, Field(ge=-1, le=1)]
Share = Annotated[FiniteFloat, Field(gt=0, lt=1)]
MOST_ODDS = 700  # above, exp() overflows
LogOdds = Annotated[FiniteFloat, Field(ge=-MOST_ODDS, le=MOST_ODDS)]
MOST_GROUPS = 10_000
_LEAST_STEP = 1e-12  # between cosines; less is rounding


class Threshold(BaseModel):
    """The cosine above which at most the share `far` of different pairs is accepted, and its 95 % confidence
    interval."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    far: Share
    cosine: Cosine
    low: Cosine | None = None
    """null: the pairs are too few to tell."""
    high: Cosine | None = None
    """null: the pairs are too few to tell."""


Thresholds = Annotated[list[Threshold], Field(max_length=100)]


class Calibration(BaseModel):
    """What a cosine of one network's embeddings means."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    method: str
    """How it was fitted, for people."""
    set: str
    """Title of the pairs that it was fitted on."""
    step: NonNegativeInt
    """Step of the checkpoint whose embeddings they were."""
    flip: bool = False
    """Whether they were of an image and its mirror image together."""
    pairs: PositiveInt
    prior: Share
    """The share of same pairs among them."""
    cosine: Annotated[list[Cosine], Field(min_length=2, max_length=10_000)]
    """Increasing."""
    log_odds: Annotated[list[LogOdds], Field(min_length=2, max_length=10_000)]
    """log(P(same) / (1 - P(same))) at each of `cosine`, never decreasing; between them a straight line,
    outside constant."""
    error: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    """Expected calibration error on pairs that were not fitted; null: of an older version, which stored it
    where they were too few."""
    thresholds: Thresholds = []
    """For the FARs that the pairs allow."""
    """The same of the pairs within a group of identities."""

    @model_validator(mode="after")
    def _check_order(self) -> "Calibration":
        if len(self.cosine) != len(self.log_odds):
            raise ValueError("cosine and log_odds must be equally long")
        if np.any(np.diff(self.cosine) < _LEAST_STEP) or np.any(np.diff(self.log_odds) < 0):
            raise ValueError("cosine must increase, and log_odds must not decrease")
        return self

    def probability(self, cosine: ArrayLike, prior: float | None = None) -> np.ndarray:
        """Compute P(same) of cosines of any shape, float64.

        Args:
            prior: the share of same pairs where the question is asked, in (0, 1); None: as in the pairs that were fitted.

        UserError: a prior outside (0, 1).
        """
        odds = np.interp(cosine, self.cosine, self.log_odds)
        if prior is not None:
            if not 0 < prior < 1:
                raise UserError(f"prior: must be between 0 and 1, both excluded, got {prior:g}")
            odds = odds + _logit(prior) - _logit(self.prior)
        return 1 / (1 + np.exp(-np.clip(odds, -MOST_ODDS, MOST_ODDS)))

    def threshold(self, far: float, group: str | None = None) -> float:
        """Return the cosine above which at most the share `far` of different pairs is accepted.

        Args:
            group: for two images of this group; None: for any two.

        UserError: no such group, or no threshold for this FAR.
        """
        if group is not None and group not in self.groups:
            known = ", ".join(map(shown, self.groups)) or "none"
            raise UserError(f"group '{shown(group)}': has no thresholds; those that have are: {known}")
        given = self.thresholds if group is None else self.groups[group]
        for point in given:
            if np.isclose(point.far, far, rtol=1e-6, atol=0):
                return point.cosine
        known = ", ".join(f"{point.far:g}" for point in given) or "none, the pairs were too few"
        raise UserError(
            f"FAR {far:g}: '{shown(self.set)}' gave no threshold for it; it gave those for: {known}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return self.model_dump()

    @classmethod
    def from_json(cls, content: Any, where: str) -> "Calibration":
        """Read what `to_json` returned.

        Args:
            where: the file (and key) that it comes from, for the error.

        UserError: it is something else.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            key, message = first_problem(error)
        why = shown(f"{key}: {message}" if key else message)
        raise UserError(
            f"{where}: is not what plsc eval --calibrate writes ({why}); delete it, or write it anew"
        )


def _logit(share: float) -> float:
    return float(np.log(share) - np.log1p(-share))
