"""Draw the figures of a report: curves of a run, ROC, and histogram of the cosines.

They use matplotlib's own font and no pyplot: the same numbers give the same picture, and a user's matplotlib
settings are neither read nor changed.

    with styled():
        figure = draw_roc({"lfw": verify(...)})
        png = png_of(figure)
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from plsc.evaluation.verification import Verification

INK, FAINT, LINE = "#1d2129", "#5f6670", "#e3e6ea"
# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.parse_math": False,  # names of sets are not formulas, whatever signs they hold
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "grid.color": LINE,
    "legend.frameon": False,
    "savefig.dpi": 200,
}
# Key of the rows of metrics.jsonl -> title, unit, and by how much the values are multiplied.
_TRAINING = {
    "loss": ("Training loss", "loss (nats)", 1),
    "accuracy": ("Training accuracy", "top-1 accuracy (%)", 100),
    "lr": ("Learning rate", "learning rate", 1),
}
_EVALUATIONS = {"accuracy": "accuracy (%)", "auc": "area under ROC (%)", "rank1": "rank-1 (%)"}
_SMOOTHED = 40  # logged steps from which on a running mean is drawn


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside the context, and in the user's own outside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the report
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(height: float) -> Figure:
    """Make an empty figure as wide as a page, `height` in inches."""
    return Figure(figsize=(9.0, height), layout="constrained")


def drawable(text: str) -> str:
    """Replace the characters that DejaVu Sans cannot draw by U+XXXX."""
    charmap = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(char if ord(char) in charmap else f"U+{ord(char):04X}" for char in text)


def png_of(figure: Figure) -> bytes:
    """Encode the figure as PNG, without the name of the software that drew it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw what was trained and evaluated over the steps; None where nothing was logged.

    rows: of metrics.jsonl.
    """
    training = [row for row in rows if "eval" not in row]
    panels = []
    for key, unit in _EVALUATIONS.items():
        evaluated = [row for row in rows if "eval" in row and row.get(key) is not None]
        curves = {title: [] for title in dict.fromkeys(row["eval"] for row in evaluated)}
        for row in evaluated:
            curves[row["eval"]].append((row["step"], 100 * row[key]))
        if curves:
            panels.append(("Evaluation", unit, curves))
    for key, (title, unit, factor) in _TRAINING.items():
        curve = [(row["step"], factor * row[key]) for row in training if row.get(key) is not None]
        if curve:
            panels.append((title, unit, {"": curve}))
    if not panels:
        return None
    figure = new_figure(2.8 * -(-len(panels) // 2))
    for number, (title, unit, curves) in enumerate(panels):
        axes = figure.add_subplot(-(-len(panels) // 2), min(len(panels), 2), number + 1)
        axes.set(title=title, xlabel="step", ylabel=unit)
        for name, curve in curves.items():
            steps, values = np.array(curve).T
            if name or len(curve) < _SMOOTHED:
                axes.plot(steps, values, "o-" if name else "-", markersize=4, label=drawable(name))
                continue
            width = len(curve) // 20
            mean = np.convolve(values, np.ones(width) / width, mode="valid")
            axes.plot(steps, values, color=COLOURS[0], alpha=0.35, linewidth=0.9)
            axes.plot(steps[width // 2 : width // 2 + len(mean)], mean, color=COLOURS[0])
        if len(curves) > 1:
            axes.legend()
    return figure


def draw_roc(verifications: Mapping[str, Verification]) -> Figure | None:
    """Draw TAR over FAR, FAR on a logarithmic axis from half a false accept on; None without pairs of both
    kinds."""
    curves = {title: result for title, result in verifications.items() if result.roc is not None}
    if not curves:
        return None
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.set(xscale="log", xlabel="false accept rate", ylabel="true accept rate (%)")
    for title, result in curves.items():
        far = np.geomspace(0.5 / np.sum(~result.same), 1, 2000)
        # The highest TAR within each FAR.
        tar = result.roc.tar[np.searchsorted(result.roc.far, far, side="right") - 1]
        axes.plot(far, 100 * tar, label=drawable(title))
    axes.legend(loc="lower right")
    return figure


def draw_histogram(result: Verification) -> Figure:
    """Draw how the cosines of same and of different pairs are spread, each adding up to 100 %."""
    figure = new_figure(3.4)
    axes = figure.subplots()
    axes.set(xlabel="cosine similarity", ylabel="share of the pairs (%)")
    edges = np.linspace(result.similarity.min() - 0.01, result.similarity.max() + 0.01, 91)
    for kind, label in ((True, "same class"), (False, "different classes")):
        cosines = result.similarity[result.same == kind]
        share = 100 * np.histogram(cosines, edges)[0] / max(1, len(cosines))
        axes.stairs(share, edges, fill=True, alpha=0.5, label=f"{label} ({len(cosines):,} pairs)")
    if result.threshold is not None:
        axes.axvline(result.threshold, color=INK, linestyle="--", label=f"threshold {result.threshold:.3f}")
    axes.legend()
    return figure
