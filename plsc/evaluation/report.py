"""Make a run's report: one page without scripts, which contains its pictures.

A section is omitted if the run has no data for it, such as log rows, pairs or errors.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import jinja2
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from plsc.evaluation.sets import EvalSet
from plsc.evaluation.verification import Verification

WORST_PAIRS = 6  # most pairs per kind
_WIDTH = 7.5  # inches. On a phone a picture must be readable when it is three times smaller
_STYLE = {
    "text.parse_math": False,  # set names are not formulas, whatever characters they contain
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "savefig.dpi": 200,
}
# Key of the rows in metrics.jsonl -> the plot's title, its axis's label, and factor on the values.
_EVALUATED = {
    "accuracy": ("Evaluation", "accuracy (%)", 100),
    "auc": ("Evaluation", "area under ROC (%)", 100),
    "rank1": ("Evaluation", "rank-1 (%)", 100),
}
_TRAINED = {
    "loss": ("Training loss", "loss (nats)", 1),
    "accuracy": ("Training accuracy", "top-1 accuracy (%)", 100),
    "lr": ("Learning rate", "learning rate", 1),
}


class WorstPair(NamedTuple):
    """A pair on the wrong side of the threshold.

    Attributes:
        kind: "false reject" or "false accept".
        similarity: the pair's cosine.
        pngs: both pictures as PNG files.
        names: both pictures' names.
    """

    kind: str
    similarity: float
    pngs: tuple[bytes, ...]
    names: tuple[str, ...]


def render(**content: Any) -> str:
    """Fill report.html.jinja with `content`, and return the page. Every value is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    jinja.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return jinja.get_template("report.html.jinja").render(**content)


def draw(
    rows: Sequence[Mapping[str, Any]], pairs: Mapping[str, Verification]
) -> list[tuple[str, bytes, str]]:
    """Draw a report's pictures, independently of the user's matplotlib settings.

    Args:
        rows: the rows in metrics.jsonl.
        pairs: results of verification, by the set's title.

    Returns for each picture its heading, its PNG, and a sentence that explains it.
    """
    with matplotlib.style.context(_STYLE, after_reset=True):
        figures = [("Training", draw_curves(rows), "What was trained and evaluated, over the steps.")]
        text = "Each point is a threshold: to the right the share of different-class pairs that it accepts, "
        figures.append(("ROC", draw_roc(pairs), f"{text}upwards the share of same-class pairs."))
        text = "Same-class pairs left of the threshold are false rejects, different-class pairs right of it "
        for name, result in pairs.items():
            figures.append((f"Cosines of {name}", draw_histogram(result), f"{text}false accepts."))
        return [(heading, _encode(figure), text) for heading, figure, text in figures if figure]


def _encode(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _drawable(name: str) -> str:
    text = name.encode("ascii", "backslashreplace").decode()  # no font has all characters
    return f" {text}" if text.startswith("_") else text  # legends omit labels that begin with an underscore


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw the logged numbers over the steps. Return None if nothing was logged."""
    panels = []
    for kinds, evaluated in ((_EVALUATED, True), (_TRAINED, False)):
        for key, (title, unit, factor) in kinds.items():
            curves: dict[str, list] = {}
            for row in rows:
                if ("eval" in row) == evaluated and row.get(key) is not None:
                    curves.setdefault(row.get("eval", ""), []).append((row["step"], factor * row[key]))
            if curves:
                panels.append((title, unit, curves))
    if not panels:
        return None
    lines = -(-len(panels) // 2)
    figure = Figure(figsize=(_WIDTH, 2.6 * lines), layout="constrained")
    for number, (title, unit, curves) in enumerate(panels):
        axes = figure.add_subplot(lines, min(len(panels), 2), number + 1)
        axes.set(title=title, xlabel="step", ylabel=unit)
        for name, curve in curves.items():
            axes.plot(*zip(*curve), "o-" if name else "-", markersize=4, label=_drawable(name))
        if len(curves) > 1:
            axes.legend()
    return figure


def draw_roc(pairs: Mapping[str, Verification]) -> Figure | None:
    """Draw TAR over FAR. The FAR axis is logarithmic, and starts at half a false accept.

    Return None if no set has both kinds of pairs.
    """
    curves = {title: result for title, result in pairs.items() if result.roc is not None}
    if not curves:
        return None
    figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlabel="false accept rate", ylabel="true accept rate (%)")
    # A logarithmic axis's default formatter writes formulas, which _STYLE does not parse.
    axes.xaxis.set_major_formatter(lambda far, _: f"{far:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    for title, result in curves.items():
        far = np.geomspace(0.5 / np.sum(~result.same), 1, 2000)
        # The highest TAR at or below each FAR.
        tar = result.roc.tar[np.searchsorted(result.roc.far, far, side="right") - 1]
        axes.plot(far, 100 * tar, label=_drawable(title))
    axes.legend(loc="lower right")
    return figure


def draw_histogram(result: Verification) -> Figure:
    """Draw cosine histograms for same and different pairs. Each adds up to 100 %."""
    figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="cosine similarity", ylabel="share of the pairs (%)")
    edges = np.linspace(result.similarity.min() - 0.01, result.similarity.max() + 0.01, 91)
    for kind, label in ((True, "same class"), (False, "different classes")):
        cosines = result.similarity[result.same == kind]
        share = 100 * np.histogram(cosines, edges)[0] / max(1, len(cosines))
        axes.stairs(share, edges, fill=True, alpha=0.5, label=f"{label} ({len(cosines):,} pairs)")
    if result.threshold is not None:
        label = f"threshold {result.threshold:.3f}"
        axes.axvline(result.threshold, color="black", linestyle="--", label=label)
    axes.legend()
    return figure


def worst_of(result: Verification, pairs: EvalSet) -> list[WorstPair]:
    """Collect the worst errors with their pictures, at most WORST_PAIRS of each kind, the worst first.

    They are the same pairs with the lowest cosines, and the different pairs with the highest. A template's
    first image stands for it.

    Args:
        result: the verification result.
        pairs: its set.
    """
    cosine, same = result.similarity, result.same
    # Without a threshold, the hardest pairs are collected even if they are not errors.
    low, high = (np.inf, -np.inf) if result.threshold is None else (result.threshold, result.threshold)
    rejects, accepts = np.flatnonzero(same & (cosine <= low)), np.flatnonzero(~same & (cosine > high))
    rejects = rejects[np.argsort(cosine[rejects], kind="stable")]
    accepts = accepts[np.argsort(-cosine[accepts], kind="stable")]
    found = []
    for kind, indices in (("false reject", rejects), ("false accept", accepts)):
        for index in indices[:WORST_PAIRS].tolist():
            images, names = zip(*(pairs.side(int(side)) for side in pairs.pairs[index]))
            pixels = [np.moveaxis(pairs.data.image(image), 0, -1) for image in images]  # RGB or grey
            pngs = tuple(cv2.imencode(".png", each[..., ::-1])[1].tobytes() for each in pixels)
            found.append(WorstPair(kind, float(result.similarity[index]), pngs, names))
    return found
