"""Identification, one against many: search for each probe in a gallery.

Rank-k is the share of probes for which one among the k most similar gallery images shows the probe's
identity. It counts only probes whose identity is in the gallery (closed set). TPIR at FPIR is the share of
these probes for which the most similar image is right and its cosine is above a threshold. Only a share FPIR
of the strangers' probes exceeds the threshold (open set, ISO/IEC 19795-1). A tie with another identity's
image is not a hit. A zero embedding matches nothing. Try it:

    identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 0, 1])).results()
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import (
    IN_BRACKETS,
    LEAST_PEOPLE,
    QUANTILES,
    drawn,
    percent,
    resamples,
    wilson,
    with_interval,
)
from plsc.evaluation.roc import needed
from plsc.evaluation.search import finite_unit_rows, search

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)
_NOTHING = -1.0  # cosine for a probe that matches nothing. No threshold is lower


@dataclass(frozen=True)
class Identification:
    """The result of `identify`. A rate is a fraction in [0, 1], or None if the probes do not allow it.

    Attributes:
        probes: how many probes show an identity that is in the gallery.
        strangers: how many probes show one that is not in the gallery.
        gallery: how many images the gallery contains.
        ranks: identification rate by rank k. If the gallery is smaller than k, the rate over the whole
            gallery.
        tpir_at_fpir: TPIR by FPIR.
        threshold_at_fpir: cosine by FPIR.
        place: int64 [probes], rank of the most similar right image, from 1. A place beyond the largest rank
            is not exact.
        score: float32 [probes], cosine of the most similar image.
        person: int64 [probes], the identity's number. `person` and `stranger` share the numbers, from 0.
        stranger_score: float32 [strangers], cosine of the most similar image.
        stranger: int64 [strangers], the identity's number.
        notes: sentences for the report.
    """

    kind: ClassVar[str] = "identification"
    metric: ClassVar[str] = "rank1"
    probes: int
    strangers: int
    gallery: int
    ranks: dict[int, float | None]
    tpir_at_fpir: dict[float, float | None]
    threshold_at_fpir: dict[float, float | None]
    place: np.ndarray
    score: np.ndarray
    person: np.ndarray
    stranger_score: np.ndarray
    stranger: np.ndarray
    notes: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The result in a few words."""
        return f"rank-1 {percent(self.ranks[1])}" if self.probes else "rank-1 cannot be computed"

    @property
    def people(self) -> int:
        """How many people the probes show whose identity is in the gallery."""
        return len(np.unique(self.person))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval by the bootstrap over identities.

        If all resamples agree, the interval is Wilson's, with one trial per person. The dict is empty if
        there are fewer than LEAST_PEOPLE people. It is computed at the first use.
        """
        rates = {key: rate for key, rate in self._rates().items() if rate is not None}
        if not rates or self.people < LEAST_PEOPLE:
            return {}
        bounds = np.nanquantile(self._resampled_rates(), QUANTILES, axis=0).T
        return {
            key: (float(low), float(high)) if low < high else wilson(rate, self.people)
            for (key, rate), (low, high) in zip(rates.items(), bounds)
        }

    def _resampled_rates(self) -> list[list[float]]:
        """Compute the rates that are not None for each resample. They are NaN if it has nobody from the
        gallery."""
        count = 1 + int(max(self.person.max(), self.stranger.max(initial=-1)))
        descending = np.argsort(-self.stranger_score, kind="stable")
        strangers, limits = self.stranger[descending], self.stranger_score[descending]
        accepted = [fpir for fpir, rate in self.tpir_at_fpir.items() if rate is not None]
        draws = []
        for times in drawn(count, resamples(self.probes)):
            weight = times[self.person]
            total = weight.sum() or np.nan
            rates = [weight[self.place <= k].sum() / total for k in self.ranks]
            weights = np.cumsum(times[strangers])
            for fpir in accepted:
                # The first stranger that must not exceed the threshold, see `identify`.
                first = np.searchsorted(weights, int(weights[-1] * fpir + 1e-9), side="right")
                limit = limits[min(first, len(limits) - 1)]
                rates.append(weight[(self.place == 1) & (self.score > limit)].sum() / total)
            draws.append(rates)
        return draws

    def _rates(self) -> dict[str, float | None]:
        rates = {f"rank{k}": rate for k, rate in self.ranks.items()}
        return {**rates, **{f"tpir@fpir={fpir:g}": tpir for fpir, tpir in self.tpir_at_fpir.items()}}

    def row(self) -> dict[str, float | None]:
        """Return the row for metrics.jsonl: {"rank1", "rank5", "rank10", "tpir@fpir=0.01", ..., "probes",
        "strangers", "gallery"}."""
        return {**self._rates(), **{name: getattr(self, name) for name in ("probes", "strangers", "gallery")}}

    def numbers(self) -> dict:
        """Return the numbers for results.json: `row`, the intervals and the thresholds."""
        thresholds = {f"{fpir:g}": value for fpir, value in self.threshold_at_fpir.items()}
        return {**self.row(), "confidence_95": self.intervals, "threshold@fpir": thresholds}

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or the reason why it is missing."""
        intervals, none = self.intervals, "needs probes of identities in the gallery"
        probes = f"({self.probes:,} in the gallery, {self.strangers:,} not)"
        labels = {
            "probes": f"{self.probes + self.strangers:,} {probes}",
            "gallery": f"{self.gallery:,} images",
        }
        for k, rate in self.ranks.items():
            labels[f"rank-{k}"] = none if rate is None else with_interval(rate, intervals.get(f"rank{k}"))
        for fpir, rate in self.tpir_at_fpir.items():
            if rate is not None:
                shown = with_interval(rate, intervals.get(f"tpir@fpir={fpir:g}"))
                threshold = self.threshold_at_fpir[fpir]
                labels[f"TPIR at FPIR {fpir:g}"] = f"{shown}, above a cosine of {threshold:.4f}"
            elif self.probes:
                labels[f"TPIR at FPIR {fpir:g}"] = (
                    f"needs at least {needed(fpir):,} probes outside the gallery"
                )
        if intervals:
            how = f"{resamples(self.probes):,} resamples of {self.people:,} identities"
            labels[IN_BRACKETS] = f"95 % confidence, {how}"
        elif self.probes:
            labels["intervals"] = f"need at least {LEAST_PEOPLE} identities, these are {self.people}"
        return labels


def identify(
    embeddings: np.ndarray, gallery: np.ndarray, probe: np.ndarray, identities: np.ndarray
) -> Identification:
    """Search every probe in the gallery.

    Args:
        embeddings: float [N, D], of any length. A zero embedding matches nothing.
        gallery: int64 [G], image indices. An identity may have several.
        probe: int64 [Q], other images' indices. An identity may have several.
        identities: int64 [N], each image's identity.

    Raises UserError if an image is in the gallery and a probe, or if an embedding is not finite.
    """
    both = np.intersect1d(gallery, probe)
    if len(both):
        raise UserError(
            f"identification: image {both[0]} is in the gallery and a probe ({len(both):,} such images); "
            "it would find itself, so remove it from one of the two"
        )
    probes, others = (finite_unit_rows(embeddings, rows, "identification") for rows in (probe, gallery))
    best, place = _search(probes, others, identities[probe], identities[gallery])
    mated = np.isin(identities[probe], identities[gallery])
    person = np.unique(identities[probe], return_inverse=True)[1]
    strangers = np.sort(best[~mated])[::-1]
    rates, thresholds = dict.fromkeys(FPIRS), dict.fromkeys(FPIRS)
    for fpir in FPIRS:
        if mated.any() and len(strangers) >= needed(fpir):
            # The first stranger that must not exceed the threshold.
            limit = thresholds[fpir] = float(strangers[int(len(strangers) * fpir + 1e-9)])
            rates[fpir] = float(np.mean((place[mated] == 1) & (best[mated] > limit)))
    return Identification(
        probes=int(mated.sum()),
        strangers=len(strangers),
        gallery=len(gallery),
        ranks={k: float(np.mean(place[mated] <= k)) if mated.any() else None for k in RANKS},
        tpir_at_fpir=rates,
        threshold_at_fpir=thresholds,
        place=place[mated],
        score=best[mated],
        person=person[mated],
        stranger_score=best[~mated],
        stranger=person[~mated],
    )


def _search(
    probes: np.ndarray, gallery: np.ndarray, who: np.ndarray, whose: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Search for the probes in the gallery.

    Args:
        probes, gallery: float32 [Q, D] and [G, D], unit or zero rows.
        who, whose: int64 [Q] and [G], identities of the probes and the gallery's images.

    Returns the cosine [Q] of the most similar image, and the place [Q] of the most similar right image. The
    place is 1 plus the number of other people's images that are at least as similar. It is beyond the largest
    rank if the most similar images contain no right one.
    """
    used = gallery.any(axis=1)
    gallery, whose = (gallery, whose) if used.all() else (gallery[used], whose[used])
    best, place = np.full(len(probes), _NOTHING, np.float32), np.full(len(probes), 1 + max(RANKS))
    seeing = probes.any(axis=1)
    if not len(gallery) or not seeing.any():
        return best, place
    rows = np.arange(len(probes))
    count = max(RANKS) + 1  # one image more than the ranks need, to show whether the last one has a tie
    while len(rows):
        score, index = search(probes[rows], gallery, count)
        right = whose[index] == who[rows, None]
        first = np.where(right, score, -np.inf).max(axis=1)
        others = ((score >= first[:, None]) & ~right).sum(axis=1)
        found = seeing[rows] & right.any(axis=1)
        best[rows] = np.where(seeing[rows], score[:, 0], _NOTHING)
        place[rows[found]] = 1 + others[found]
        # Images beyond the list may be as similar as its last one. A longer list shows whose they are.
        unclear = found & (others < max(RANKS)) & (first == score[:, -1]) & (count < len(gallery))
        rows, count = rows[unclear], 2 * count
    return best, place
