"""Identification, one against many: search for each probe in a gallery.

Rank-k: how often one of the k most similar gallery images shows the probe's identity (closed set: of the
probes whose identity is in the gallery). TPIR at FPIR: how often the most similar one is the right one and
its cosine is above a threshold that only a share FPIR of the probes of strangers exceeds (open set; ISO/IEC
19795-1). Try it:

    identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 0, 1])).results()
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import IN_BRACKETS, percent, wilson, with_interval
from plsc.evaluation.roc import needed
from plsc.evaluation.search import finite_unit_rows, search

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)


@dataclass(frozen=True)
class Identification:
    """The result of `identify`. Rates are in [0, 1]; None where the probes do not allow one.

    Attributes:
        probes: of identities in the gallery. strangers: probes of identities that are not. gallery: images.
        ranks: the identification rate at each rank k; with a smaller gallery, that of the whole gallery.
        threshold_at_fpir: cosines.
    """

    kind: ClassVar[str] = "identification"
    metric: ClassVar[str] = "rank1"
    notes: ClassVar[tuple[str, ...]] = ()
    probes: int
    strangers: int
    gallery: int
    ranks: dict[int, float | None]
    tpir_at_fpir: dict[float, float | None]
    threshold_at_fpir: dict[float, float | None]

    @property
    def headline(self) -> str:
        """The result in a few words."""
        return f"rank-1 {percent(self.ranks[1])}" if self.probes else "rank-1 cannot be computed"

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval: Wilson's over the probes."""
        return {key: wilson(rate, self.probes) for key, rate in self._rates().items() if rate is not None}

    def _rates(self) -> dict[str, float | None]:
        rates = {f"rank{k}": rate for k, rate in self.ranks.items()}
        return {**rates, **{f"tpir@fpir={fpir:g}": tpir for fpir, tpir in self.tpir_at_fpir.items()}}

    def row(self) -> dict[str, float | None]:
        """Return the row of metrics.jsonl: {"rank1", "rank5", "rank10", "tpir@fpir=0.01", ..., "probes",
        "strangers", "gallery"}."""
        return {**self._rates(), **{name: getattr(self, name) for name in ("probes", "strangers", "gallery")}}

    def numbers(self) -> dict:
        """Return the numbers of results.json: `row`, the intervals and the thresholds."""
        thresholds = {f"{fpir:g}": value for fpir, value in self.threshold_at_fpir.items()}
        return {**self.row(), "confidence_95": self.intervals, "threshold@fpir": thresholds}

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or why there is none."""
        intervals, none = self.intervals, "needs probes of identities in the gallery"
        probes = f"({self.probes:,} in the gallery, {self.strangers:,} not)"
        labels = {
            "probes": f"{self.probes + self.strangers:,} {probes}",
            "gallery": f"{self.gallery:,} images",
        }
        for k, rate in self.ranks.items():
            labels[f"rank-{k}"] = none if rate is None else with_interval(rate, intervals[f"rank{k}"])
        for fpir, rate in self.tpir_at_fpir.items():
            if rate is not None:
                shown = with_interval(rate, intervals[f"tpir@fpir={fpir:g}"])
                threshold = self.threshold_at_fpir[fpir]
                labels[f"TPIR at FPIR {fpir:g}"] = f"{shown}, above a cosine of {threshold:.4f}"
            elif self.probes:
                labels[f"TPIR at FPIR {fpir:g}"] = f"needs at least {needed(fpir):,} probes not in it"
        labels[IN_BRACKETS] = "95 % confidence interval (Wilson)"
        return labels


def identify(
    embeddings: np.ndarray, gallery: np.ndarray, probe: np.ndarray, identities: np.ndarray
) -> Identification:
    """Search every probe in the gallery.

    Args:
        embeddings: [N, D] of any float type (need not be normalised); a zero one resembles nothing.
        gallery, probe: int64 indices of images, disjoint; an identity may have several images in either.
        identities: int64 [N].

    UserError: an image in both, an embedding that is not finite.
    """
    both = np.intersect1d(gallery, probe)
    if len(both):
        raise UserError(
            f"identification: image {both[0]} is in the gallery and a probe ({len(both):,} such images);"
            " it would find itself, leave it out of one of them"
        )
    probes, others = (finite_unit_rows(embeddings, rows, "identification") for rows in (probe, gallery))
    score, index = search(probes, others, max(RANKS))
    right = identities[gallery][index] == identities[probe][:, None]  # [Q, k]
    mated = np.isin(identities[probe], identities[gallery])
    strangers = np.sort(score[~mated, 0])[::-1]
    rates, thresholds = dict.fromkeys(FPIRS), dict.fromkeys(FPIRS)
    for fpir in FPIRS:
        if mated.any() and len(strangers) >= needed(fpir):
            # The first stranger that must not exceed it.
            limit = thresholds[fpir] = float(strangers[int(len(strangers) * fpir + 1e-9)])
            rates[fpir] = float(np.mean(right[mated, 0] & (score[mated, 0] > limit)))
    return Identification(
        probes=int(mated.sum()),
        strangers=len(strangers),
        gallery=len(gallery),
        ranks={k: float(right[mated, :k].any(axis=1).mean()) if mated.any() else None for k in RANKS},
        tpir_at_fpir=rates,
        threshold_at_fpir=thresholds,
    )
