"""Identification, one against many: search for each probe in a gallery.

Rank-k: how often one of the k most similar gallery images shows the probe's identity (closed set: of the
probes whose identity is in the gallery). TPIR at FPIR: how often the most similar one is the right one and
its cosine is above a threshold that only a share FPIR of the probes of strangers exceeds (open set; ISO/IEC
19795-1). Try it:

    identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.array([0, 1, 0, 1])).results()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plsc.errors import UserError
from plsc.evaluation.intervals import IN_BRACKETS, percent, wilson, with_interval
from plsc.evaluation.roc import needed
from plsc.evaluation.search import finite_unit_rows, search

RANKS = (1, 5, 10)
FPIRS = (0.01, 0.1)
CMC_RANKS = 50


@dataclass(frozen=True)
class Identification:
    """The result of `identify`. Rates are fractions in [0, 1]; None where the probes do not allow one."""

    kind: ClassVar[str] = "identification"
    metrics: ClassVar[tuple[str, ...]] = ("rank1",)
    probes: int  # of identities in the gallery
    strangers: int  # probes of identities that are not
    gallery: int  # images
    cmc: np.ndarray | None  # [<= 50] float64: rank-1, rank-2, ...; higher ranks are not computed
    tpir_at_fpir: dict[float, float | None]
    threshold_at_fpir: dict[float, float | None]  # cosines
    notes: tuple[str, ...] = ()

    def rank(self, k: int) -> float | None:
        """Return the rank-k identification rate; with a gallery smaller than k, that of the whole gallery."""
        return None if self.cmc is None else float(self.cmc[min(k, len(self.cmc)) - 1])

    @property
    def headline(self) -> str:
        """The result in a few words."""
        return "rank-1 cannot be computed" if self.cmc is None else f"rank-1 {percent(self.rank(1))}"

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Key of `row` -> its 95 % confidence interval: Wilson's over the probes, thresholds taken as
        given."""
        rates = {key: rate for key, rate in self._rates().items() if rate is not None}
        return {key: wilson(rate, self.probes) for key, rate in rates.items()}

    def _rates(self) -> dict[str, float | None]:
        rates = {f"rank{k}": self.rank(k) for k in RANKS}
        return {**rates, **{f"tpir@fpir={fpir:g}": tpir for fpir, tpir in self.tpir_at_fpir.items()}}

    def row(self) -> dict[str, float | None]:
        """Return the row of metrics.jsonl: {"rank1", "rank5", "rank10", "tpir@fpir=0.01", ..., "probes",
        "strangers", "gallery"}."""
        counts = {"probes": self.probes, "strangers": self.strangers, "gallery": self.gallery}
        return {**self._rates(), **counts}

    def numbers(self) -> dict:
        """Return the numbers of results.json: `row`, the intervals, the CMC curve and the thresholds."""
        return {
            **self.row(),
            "confidence_95": self.intervals,
            "cmc": None if self.cmc is None else self.cmc.tolist(),
            "threshold@fpir": {f"{fpir:g}": value for fpir, value in self.threshold_at_fpir.items()},
        }

    def results(self) -> dict[str, str]:
        """Format the numbers for people: label -> value with its unit, or why there is none."""
        intervals, none = self.intervals, "needs probes of identities in the gallery"
        labels = {
            "probes": f"{self.probes + self.strangers:,} ({self.probes:,} in the gallery, {self.strangers:,} not)",
            "gallery": f"{self.gallery:,} images",
        }
        for k in RANKS:
            rate = self.rank(k)
            labels[f"rank-{k}"] = none if rate is None else with_interval(rate, intervals[f"rank{k}"])
        for fpir, rate in self.tpir_at_fpir.items():
            label = f"TPIR at FPIR {fpir:g}"
            if rate is not None:
                labels[label] = with_interval(rate, intervals[f"tpir@fpir={fpir:g}"])
                labels[f"threshold at FPIR {fpir:g}"] = f"{self.threshold_at_fpir[fpir]:.4f} (cosine)"
        lacking = [fpir for fpir, rate in self.tpir_at_fpir.items() if rate is None]
        if lacking and self.cmc is None:
            labels["TPIR at FPIR"] = none
        elif lacking:  # the highest of them is the easiest
            lower = "TPIR at lower FPIR" if len(lacking) < len(self.tpir_at_fpir) else "TPIR at FPIR"
            labels[lower] = f"{lacking[-1]:g} needs at least {needed(lacking[-1]):,} probes not in it"
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

    UserError: an empty gallery, no probes, an image in both, an embedding that is not finite.
    """
    _check(gallery, probe)
    probes, others = (finite_unit_rows(embeddings, rows, "identification") for rows in (probe, gallery))
    score, index = search(probes, others, CMC_RANKS)
    right = identities[gallery][index] == identities[probe][:, None]  # [Q, k]
    mated = np.isin(identities[probe], identities[gallery])
    cmc = np.mean(np.maximum.accumulate(right[mated], axis=1), axis=0) if mated.any() else None
    strangers = np.sort(score[~mated, 0])[::-1]
    rates = {}
    thresholds = {}
    notes = []
    for fpir in FPIRS:
        rates[fpir] = thresholds[fpir] = None
        limit = threshold_at_fpir(strangers, fpir)
        if limit is not None and mated.any():
            thresholds[fpir] = limit
            rates[fpir] = float(np.mean(right[mated, 0] & (score[mated, 0] > limit)))
    if not len(strangers):
        notes.append("The identities of all probes are in the gallery: no TPIR at FPIR.")
    if not mated.any():
        notes.append("No probe's identity is in the gallery: no rank can be computed.")
    return Identification(
        int(mated.sum()), len(strangers), len(gallery), cmc, rates, thresholds, tuple(notes)
    )


def threshold_at_fpir(strangers: np.ndarray, fpir: float) -> float | None:
    """Return the cosine that at most the share `fpir` of the strangers exceeds; None if they are too few to
    tell.

    strangers: the highest cosine of each with anybody in the gallery, in descending order.
    """
    if len(strangers) < needed(fpir):
        return None
    return float(strangers[int(len(strangers) * fpir + 1e-9)])  # the first that must not exceed it


def _check(gallery: np.ndarray, probe: np.ndarray) -> None:
    for name, rows in (("gallery", gallery), ("probe", probe)):
        if not len(rows):
            raise UserError(f"identification: there are 0 {name} images, give at least one")
    both = np.intersect1d(gallery, probe)
    if len(both):
        raise UserError(
            f"identification: image {both[0]} is in the gallery and a probe ({len(both):,} such images);"
            " it would find itself, leave it out of one of them"
        )
