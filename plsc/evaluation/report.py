"""Write the report of a run: report.html, one page without scripts, with its pictures inside.

There is no section for what a run does not have (nothing logged, no pairs, no errors). The page's HTML is
report.html.jinja, which escapes every value.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import jinja2
import markupsafe
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from plsc.evaluation.sets import EvalSet
from plsc.evaluation.verification import Verification, worst_pairs
from plsc.utils.atomic_write import replace_file

WORST_PAIRS = 6  # of each kind
_STYLE = {
    "text.parse_math": False,  # names of sets are not formulas, whatever signs they hold
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "savefig.dpi": 200,
}
# Key of the rows of metrics.jsonl -> title, unit, and by how much the values are multiplied.
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


class Picture(NamedTuple):
    """A section of the report: a PNG and a sentence on how to read it."""

    heading: str
    png: bytes
    text: str


class WorstPair(NamedTuple):
    """Two samples on the wrong side of the threshold: PNGs, None where they are no pictures, and names."""

    kind: str
    similarity: float
    pngs: tuple[bytes | None, bytes | None]
    names: tuple[str, str]


def write_report(
    folder: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    results: Mapping[str, Any],
    sets: Mapping[str, EvalSet],
    config_yaml: str,
    summary: Mapping[str, Any],
    headlines: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write report.html into `folder`; return its path.

    Args:
        rows: of metrics.jsonl.
        results, sets: of plsc.evaluation, by the title of the set, the main one first.
        config_yaml: the resolved config.
        summary: facts of the run, name -> value.
        headlines: label and value of the numbers in large type.
    """
    pairs = {name: result for name, result in results.items() if result.kind == "verification"}
    page = template(Path(__file__).with_name("report.html.jinja")).render(
        title=title,
        headlines=headlines,
        facts=summary.items(),
        tables=tables_of(results),
        notes=[f"{name}: {note}" for name, result in results.items() for note in result.notes],
        pictures=draw(rows, pairs),
        worst={name: worst_of(result, sets[name]) for name, result in pairs.items()},
        config_yaml=config_yaml,
    )
    replace_file(folder / "report.html", page.encode("utf-8", "backslashreplace"))
    return folder / "report.html"


@functools.cache
def template(path: Path) -> jinja2.Template:
    """Load a template, which may include those of this folder; it escapes every value."""
    loader = jinja2.FileSystemLoader([path.parent, Path(__file__).parent])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    # Lines may break after slashes.
    environment.filters["breakable"] = lambda text: markupsafe.Markup("/<wbr>").join(str(text).split("/"))
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return environment.get_template(path.name)


def tables_of(results: Mapping[str, Any]) -> list[list[list[str]]]:
    """Make a table for each kind, headings first: a line for each number, a column for each set."""
    tables = []
    for kind in dict.fromkeys(result.kind for result in results.values()):
        columns = {name: result.results() for name, result in results.items() if result.kind == kind}
        labels = dict.fromkeys(label for column in columns.values() for label in column)
        lines = [[label, *(column.get(label, "-") for column in columns.values())] for label in labels]
        tables.append([[kind, *columns], *lines])
    return tables


def draw(rows: Sequence[Mapping[str, Any]], pairs: Mapping[str, Verification]) -> list[Picture]:
    """Draw the pictures of a report in reading order, the same whatever a user's matplotlib settings are.

    Arguments as of `write_report`, results of pairs only.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figures = [("Training", draw_curves(rows), "What was trained and evaluated, over the steps.")]
        text = "Each point is a threshold: to the right the share of different-class pairs that it accepts, "
        figures.append(("ROC", draw_roc(pairs), f"{text}upwards the share of same-class pairs."))
        text = "Same-class pairs left of the threshold are false rejects, different-class pairs right of it "
        for name, result in pairs.items():
            figures.append((f"Cosines of {name}", draw_histogram(result), f"{text}false accepts."))
        return [Picture(heading, _encode(figure), text) for heading, figure, text in figures if figure]


def _encode(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _drawable(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()  # a font has not all characters


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw what was trained and evaluated over the steps; None where nothing was logged."""
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
    figure = Figure(figsize=(9, 2.8 * lines), layout="constrained")
    for number, (title, unit, curves) in enumerate(panels):
        axes = figure.add_subplot(lines, min(len(panels), 2), number + 1)
        axes.set(title=title, xlabel="step", ylabel=unit)
        for name, curve in curves.items():
            axes.plot(*zip(*curve), "o-" if name else "-", markersize=4, label=_drawable(name))
        if len(curves) > 1:
            axes.legend()
    return figure


def draw_roc(pairs: Mapping[str, Verification]) -> Figure | None:
    """Draw TAR over FAR, FAR on a logarithmic axis from half a false accept on; None without pairs of both
    kinds."""
    curves = {title: result for title, result in pairs.items() if result.roc is not None}
    if not curves:
        return None
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlabel="false accept rate", ylabel="true accept rate (%)")
    for title, result in curves.items():
        far = np.geomspace(0.5 / np.sum(~result.same), 1, 2000)
        # The highest TAR within each FAR.
        tar = result.roc.tar[np.searchsorted(result.roc.far, far, side="right") - 1]
        axes.plot(far, 100 * tar, label=_drawable(title))
    axes.legend(loc="lower right")
    return figure


def draw_histogram(result: Verification) -> Figure:
    """Draw how the cosines of same and of different pairs are spread, each adding up to 100 %."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="cosine similarity", ylabel="share of the pairs (%)")
    edges = np.linspace(result.similarity.min() - 0.01, result.similarity.max() + 0.01, 91)
    for kind, label in ((True, "same class"), (False, "different classes")):
        cosines = result.similarity[result.same == kind]
        share = 100 * np.histogram(cosines, edges)[0] / max(1, len(cosines))
        axes.stairs(share, edges, fill=True, alpha=0.5, label=f"{label} ({len(cosines):,} pairs)")
    if result.threshold is not None:
        axes.axvline(
            result.threshold, color="black", linestyle="--", label=f"threshold {result.threshold:.3f}"
        )
    axes.legend()
    return figure


def worst_of(result: Verification, pairs: EvalSet) -> list[WorstPair]:
    """Collect the worst errors, WORST_PAIRS of each kind, with their pictures; of a template its first
    image."""
    rejects, accepts = worst_pairs(result.similarity, result.same, result.threshold, WORST_PAIRS)
    kinds = [("false reject", index) for index in rejects] + [("false accept", index) for index in accepts]
    found = []
    for kind, index in kinds:
        sides = [pairs.side(int(number)) for number in pairs.pairs[index]]
        pngs = tuple(_png_of(pairs, image) for image, _ in sides)
        found.append(WorstPair(kind, float(result.similarity[index]), pngs, tuple(name for _, name in sides)))
    return found


def _png_of(pairs: EvalSet, image: int) -> bytes | None:
    preprocessing = pairs.preprocessing
    if preprocessing.shape[0] not in (1, 3):
        return None
    pixels = np.moveaxis(pairs.data.image(image), 0, -1)  # RGB or grey
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()
