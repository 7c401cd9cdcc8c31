"""Draw the rates of recognition: ROC, DET, histograms of similarities, calibration, and the CMC curve of
identification.

Each function takes results by the title of their set and returns the figure and a sentence on how to read it,
or None and the reason why there is none. Call them inside `plsc.evaluation.report.style.styled`. Try it:
`pytest tests/evaluation/test_rate_figures.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from plsc.evaluation.calibration import BINS
from plsc.evaluation.intervals import percent, wilson
from plsc.evaluation.report.style import COLOURS, FAINT, INK, colours, drawable, legend_above, new_figure

SAME, DIFFERENT = COLOURS[0], COLOURS[1]
Results = Mapping[str, Any]  # title -> plsc.evaluation's result


def draw_roc(verifications: Results) -> tuple[Figure | None, str]:
    """Draw TAR over FAR, FAR on a logarithmic axis from half a false accept to all of them."""
    curves = _with_errors(verifications)
    if not curves:
        return None, f"No ROC: {_why_not(verifications)}."
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.set(title="ROC of verification", ylabel="true accept rate (%)")
    lowest = 100.0
    for name, result, colour, far in _over_far(axes, curves):
        tar = 100 * _tar(result.roc, far)
        lowest = min(lowest, tar[0])
        axes.plot(far, tar, color=colour, label=drawable(name))
        for at, rate in result.tar_at_far.items():
            if rate is None:
                continue
            axes.plot(at, 100 * rate, "o", color=colour, markersize=5, zorder=3)
            if len(curves) == 1:
                label = f"{100 * rate:.2f} %"
                axes.annotate(label, (at, 100 * rate), (6, -6), textcoords="offset points", va="top")
    bottom = max(0.0, lowest - 0.15 * (100 - lowest) - 0.2)
    axes.set(ylim=(bottom, 100 + 0.04 * (100 - bottom)))
    legend_above(axes)
    text = (
        "Each point is a threshold: to the right the share of different-class pairs that it accepts, upwards"
        " the share of same-class pairs. Higher is better; the dots are the rates of the table."
    )
    return figure, text


def draw_det(verifications: Results) -> tuple[Figure | None, str]:
    """Draw FRR over FAR on logarithmic axes (Martin et al. 1997, who have normal deviates instead)."""
    curves = _with_errors(verifications)
    if not curves:
        return None, f"No DET curve: {_why_not(verifications)}."
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.set(title="DET of verification", yscale="log", ylabel="false reject rate (%, logarithmic)")
    lowest = 100.0
    for name, result, colour, far in _over_far(axes, curves):
        frr = 100 * (1 - _tar(result.roc, far))
        least = 50 / np.sum(result.same)  # half a false reject, where there is none
        lowest = min(lowest, least)
        axes.plot(far, np.maximum(frr, least), color=colour, label=drawable(name))
        if result.eer >= axes.get_xlim()[0]:
            axes.plot(result.eer, 100 * result.eer, "o", color=colour, markersize=5, zorder=3)
    equal = np.geomspace(max(axes.get_xlim()[0], lowest / 100), 1, 2)
    axes.plot(equal, 100 * equal, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.set(ylim=(lowest, 100))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    legend_above(axes)
    text = (
        "The two errors that a threshold trades against each other. Lower and further left is better. On the dashed line"
        " both are equal; the dots are the equal error rates."
    )
    return figure, text


def _over_far(axes: Axes, curves: Results) -> Iterator[tuple[str, Any, str, np.ndarray]]:
    """Set up the x axis; yield (title, result, colour, rates [2000]) of each curve, from half a false accept
    on."""
    lowest = {name: 0.5 / np.sum(~result.same) for name, result in curves.items()}
    axes.set(
        xscale="log",
        xlabel="false accept rate (fraction, logarithmic)",
        xlim=(min(lowest.values()), 1),
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for (name, result), colour in zip(curves.items(), colours(len(curves))):
        yield name, result, colour, np.geomspace(lowest[name], 1, 2000)


def _tar(roc: Any, far: np.ndarray) -> np.ndarray:
    """Find the highest TAR within each FAR."""
    return roc.tar[np.searchsorted(roc.far, far, side="right") - 1]


def _with_errors(verifications: Results) -> Results:
    """Choose the results with a curve to show: without a single error it would coincide with the axes."""
    return {
        name: result for name, result in verifications.items() if result.roc is not None and result.auc < 1
    }


def _why_not(verifications: Results) -> str:
    if not verifications:
        return "no pairs were verified"
    if all(result.roc is None for result in verifications.values()):
        return "all pairs are of one kind"
    return "some threshold has no error at all"


def draw_histogram(verifications: Results) -> tuple[Figure | None, str]:
    """Draw histograms of the cosines of pairs of one class and of two, with the threshold; one panel a
    set."""
    if not verifications:
        return None, "No histogram: no pairs were verified."
    figure = new_figure(0.4 + 3.1 * len(verifications))
    for axes, (name, result) in zip(
        figure.subplots(len(verifications), squeeze=False).flat, verifications.items()
    ):
        edges = np.linspace(min(-0.2, result.similarity.min()), max(1.0, result.similarity.max()), 91)
        for kind, label, colour in ((True, "same class", SAME), (False, "different classes", DIFFERENT)):
            cosines = result.similarity[result.same == kind]
            if len(cosines):
                share = 100 * np.histogram(cosines, edges)[0] / len(cosines)
                label = f"{label} ({len(cosines):,} pairs)"
                axes.stairs(share, edges, fill=True, color=colour, alpha=0.35)
                axes.stairs(share, edges, color=colour, linewidth=1.3, zorder=2, label=label)
        axes.set(title=drawable(name), xlabel="cosine similarity", ylabel="share of the pairs (%)")
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
        if result.threshold is not None:
            label = f"threshold {result.threshold:.3f}"
            axes.axvline(result.threshold, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label=label)
        legend_above(axes)
    text = (
        "The further apart the two hills, the better: same-class pairs left of the threshold are false"
        " rejects, different-class pairs right of it false accepts. Each hill adds up to 100 %."
    )
    return figure, text


def draw_calibration(verifications: Results) -> tuple[Figure | None, str]:
    """Draw the reliability diagram: the share of same pairs over P(same), with Wilson's 95 % intervals, one
    panel a set."""
    judged = {name: result.fit.held_out for name, result in verifications.items() if result.fit}
    if not judged:
        why = "the pairs are too few, or of one kind" if verifications else "no pairs were verified"
        return None, f"No calibration: {why}."
    figure = new_figure(0.4 + 3.6 * len(judged))
    for axes, (name, held_out) in zip(figure.subplots(len(judged), squeeze=False).flat, judged.items()):
        kept = held_out.pairs > 0
        predicted, observed, pairs = held_out.predicted[kept], held_out.observed[kept], held_out.pairs[kept]
        bounds = np.array([wilson(share, int(count)) for share, count in zip(observed, pairs)])
        bars = np.abs(bounds - observed[:, None]).T
        style = {"fmt": "o", "color": SAME, "markersize": 5, "capsize": 2.5}
        axes.plot((0, 100), (0, 100), color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        label = f"error {percent(held_out.error)}"
        axes.errorbar(100 * predicted, 100 * observed, 100 * bars, label=label, **style)
        for at, share, count in zip(predicted, observed, pairs):
            at_dot = (100 * at, 100 * share)
            axes.annotate(f"{count:,}", at_dot, (6, -6), textcoords="offset points", va="top")
        axes.set(title=drawable(name), xlabel="P(same) (%)", ylabel="same pairs among them (%)")
        axes.set(xlim=(-2, 107), ylim=(-9, 104))
        legend_above(axes)
    text = (
        f"Each dot is a bin of P(same), {BINS} of equal width, with its number of pairs and the 95 % interval of the share that"
        " is of the same class. P(same) comes from a fit without the pair and others of its classes. Dots on the dashed line: it is right."
    )
    return figure, text


def draw_cmc(searches: Results) -> tuple[Figure | None, str]:
    """Draw how often the right identity is among the k most similar gallery images, over k."""
    curves = {name: result for name, result in searches.items() if result.cmc is not None}
    if not curves:
        why = "no probe's identity is in the gallery" if searches else "nothing was searched for"
        return None, f"No CMC curve: {why}."
    figure = new_figure(4.0)
    axes = figure.subplots()
    axes.set(
        title="Cumulative match characteristic (CMC)",
        xlabel="rank",
        ylabel="right identity within the rank (%)",
    )
    longest, lowest = max(len(result.cmc) for result in curves.values()), 100.0
    for (name, result), colour in zip(curves.items(), colours(len(curves))):
        rates = 100 * result.cmc
        lowest = min(lowest, rates[0])
        axes.plot(np.arange(1, len(rates) + 1), rates, color=colour, label=drawable(name))
        for rank in (1, 5, 10):
            if rank <= len(rates):
                axes.plot(rank, rates[rank - 1], "o", color=colour, markersize=5, zorder=3)
                if len(curves) == 1:
                    label, at = f"{rates[rank - 1]:.2f} %", (rank, rates[rank - 1])
                    axes.annotate(label, at, (6, -6), textcoords="offset points", va="top")
    bottom = max(0.0, lowest - 0.15 * (100 - lowest) - 0.2)
    axes.set(xlim=(1 - 0.02 * longest, longest + 0.5), ylim=(bottom, 100 + 0.04 * (100 - bottom)))
    axes.set_xticks([rank for rank in (1, 5, 10, 20, 30, 40, 50) if rank <= longest])
    legend_above(axes)
    text = (
        "Of the probes or queries whose identity is in the gallery: how often it is among the k most similar images. Higher and"
        " earlier is better; the dots are the ranks of the table."
    )
    return figure, text
