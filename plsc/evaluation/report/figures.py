"""Draw the report's pictures: curves of a run, worst pairs, confusion matrix.

A picture that cannot be drawn is replaced by a sentence that says why. Pictures of rates, such as the ROC,
are drawn in rate_figures.py; the style is in style.py. Try it: `pytest tests/evaluation/test_html.py
--basetemp=/tmp/report` and look below that folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from plsc.evaluation.report.rate_figures import (
    draw_calibration,
    draw_cmc,
    draw_det,
    draw_histogram,
    draw_roc,
)
from plsc.evaluation.report.style import (
    COLOURS,
    FAINT,
    INK,
    LINE,
    WIDTH,
    colours,
    drawable,
    new_figure,
    png_of,
    styled,
)
from plsc.utils.timing import PARTS

MAIN = COLOURS[0]


class Result(Protocol):
    """Declares the part of an evaluation's result that the report needs; see plsc.evaluation for the rest."""

    kind: str  # "verification", "identification" or "classification"
    notes: Sequence[str]

    def results(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class WorstPair:
    """Two samples on the wrong side of the threshold: images uint8 [C, H, W], C 1 or 3 (RGB), or None."""

    kind: Literal["false reject", "false accept"]
    similarity: float
    images: tuple[np.ndarray | None, np.ndarray | None]
    names: tuple[str, str]


@dataclass(frozen=True)
class Picture:
    """A section of the report: a PNG and a sentence on how to read it, or on why there is none."""

    heading: str
    file: str
    png: bytes | None
    text: str


def draw(
    rows: Sequence[Mapping[str, Any]],
    results: Mapping[str, Result],
    worst: Mapping[str, Sequence[WorstPair]],
) -> list[Picture]:
    """Draw all pictures of a report in reading order; arguments as of
    plsc.evaluation.report.html.write_report."""
    pairs = {name: result for name, result in results.items() if result.kind == "verification"}
    searches = {n: result for n, result in results.items() if result.kind == "identification"}
    classes = {name: result for name, result in results.items() if result.kind == "classification"}
    with styled():
        drawn = {
            ("Training", "curves.png"): draw_curves(rows),
            ("Confusion", "confusion.png"): draw_confusion(classes),
            ("ROC", "roc.png"): draw_roc(pairs),
            ("Both errors", "det.png"): draw_det(pairs),
            ("Similarities", "histogram.png"): draw_histogram(pairs),
            ("Calibration", "calibration.png"): draw_calibration(pairs),
            ("Worst pairs", "worst_pairs.png"): draw_worst_pairs(pairs, worst),
            ("Ranks", "cmc.png"): draw_cmc(searches),
            ("Time of a step", "steps.png"): draw_steps(rows),
        }
        return [
            Picture(heading, file, png_of(figure) if figure else None, text)
            for (heading, file), (figure, text) in drawn.items()
        ]


# Curves

SMOOTHED = 40  # logged steps from which on a running mean is drawn


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> tuple[Figure | None, str]:
    """Draw loss, accuracy and learning rate of training, and accuracy of the evaluations, over the steps."""
    training = [row for row in rows if "eval" not in row]
    evaluations = [row for row in rows if "eval" in row and row.get("accuracy") is not None]
    of_searches = [
        (title, unit, key, [row for row in rows if "eval" in row and row.get(key) is not None])
        for title, unit, key in (("Identification", "rank-1 (%)", "rank1"),)
    ]
    panels = [
        (title, unit, partial(_plot_series, rows=training, key=key, factor=factor))
        for title, unit, key, factor in (
            ("Training loss", "loss (nats)", "loss", 1),
            ("Training accuracy", "top-1 accuracy (%)", "accuracy", 100),
            ("Learning rate", "learning rate", "lr", 1),
        )
        if any(row.get(key) is not None for row in training)
    ]
    if evaluations:
        plot = partial(_plot_evaluations, rows=evaluations, key="accuracy")
        folds = any("std" in row for row in evaluations)
        of_pairs, of_classes = (
            ("Verification accuracy", "10-fold accuracy (%)"),
            ("Validation accuracy", "top-1 accuracy (%)"),
        )
        panels.insert(1, (*(of_pairs if folds else of_classes), plot))
    for title, unit, key, searches in of_searches:
        if searches:
            panels.insert(1, (title, unit, partial(_plot_evaluations, rows=searches, key=key)))
    if not panels:
        return None, "No curves: the run logged no finite number."
    lines, columns = (len(panels) + 1) // 2, min(len(panels), 2)
    figure = new_figure(2.75 * lines + 0.1)
    last = max(row["step"] for row in rows)
    for k, (title, unit, plot) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, k + 1)
        axes.set(title=title, xlabel="step", ylabel=unit, xlim=(0, 1.03 * max(last, 1)))
        plot(axes)
    text = "Left to right is time in steps"
    smoothed = len(training) >= SMOOTHED and any(row.get("loss") is not None for row in training)
    text += "; pale lines are the logged steps, strong ones their running mean." if smoothed else "."
    if evaluations and folds:
        text += " Bars on the verification accuracy are one standard deviation over the folds."
    lost = [row["step"] for row in training if "loss" in row.get("nonfinite", ())]
    if lost:
        text += f" The loss was not finite at {len(lost)} of the logged steps, first at step {lost[0]}."
    return figure, text


def _plot_series(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, factor: float) -> None:
    steps = np.array([row["step"] for row in rows])
    values = np.array([np.nan if row.get(key) is None else row[key] * factor for row in rows], dtype=float)
    if len(rows) == 1:
        axes.plot(steps, values, "o", color=MAIN)
    elif len(rows) < SMOOTHED or key == "lr":
        axes.plot(steps, values, color=MAIN)
    else:
        width = len(rows) // 20
        mean = np.convolve(values, np.ones(width) / width, mode="valid")
        axes.plot(steps, values, color=MAIN, alpha=0.35, linewidth=0.9)
        axes.plot(steps[width // 2 : width // 2 + len(mean)], mean, color=MAIN)
    of_sets = [name for name in {name: None for row in rows for name in row} if name.startswith(f"{key}/")]
    for name, colour in zip(of_sets, colours(len(of_sets) + 1)[1:]):
        of_set = np.array([np.nan if row.get(name) is None else row[name] * factor for row in rows], float)
        axes.plot(steps, of_set, color=colour, linewidth=0.9, label=name.partition("/")[2])
    if of_sets:
        axes.legend()
    finite = values[np.isfinite(values)]
    if key == "loss" and len(finite) and finite.min() > 0 and finite.max() > 5 * finite.min():
        axes.set(yscale="log", ylabel=f"{axes.get_ylabel()}, logarithmic")  # else the end is a flat line
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


def _plot_evaluations(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    names = list(
        dict.fromkeys(row["eval"] for row in reversed(rows))
    )  # the main set first: its row is the last
    bars = {"marker": "o", "markersize": 4, "capsize": 2.5, "elinewidth": 1}
    for name, colour in zip(names, colours(len(names))):
        chosen = [row for row in rows if row["eval"] == name]
        rates = [100 * row[key] for row in chosen]
        std = [100 * (row.get("std") or 0) for row in chosen]
        axes.errorbar([row["step"] for row in chosen], rates, std, color=colour, label=drawable(name), **bars)
    if len(names) > 1:
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom - 0.12 * len(names) * (top - bottom), top)  # space for the legend
        axes.legend(loc="lower right")


def draw_steps(rows: Sequence[Mapping[str, Any]]) -> tuple[Figure | None, str]:
    """Draw the time of the parts of a training step: medians over the logged steps."""
    profiles = [row["profile"] for row in rows if "profile" in row]
    profiles = profiles[1:] or profiles  # in the first, workers start and memory is allocated
    if not profiles:
        return None, "No times: set Global.profile to measure what the time of a step goes into."
    names = list(reversed(profiles[0]))
    milliseconds = [1e3 * float(np.median([profile[name] for profile in profiles])) for name in names]
    total = sum(milliseconds)
    figure = new_figure(0.32 * len(names) + 0.9)
    axes = figure.add_subplot(
        title="Time of a step", xlabel="milliseconds", xlim=(0, 1.25 * max(milliseconds))
    )
    bars = axes.barh(names, milliseconds, color=MAIN)
    axes.bar_label(bars, [f"{part:.1f} ({part / total:.0%})" for part in milliseconds], padding=4, fontsize=8)
    axes.grid(visible=False, axis="y")
    parts = "; ".join(f"{name}: {PARTS[name]}" for name in reversed(names))
    return (
        figure,
        f"Rank 0, median over the logged steps, {total:.1f} ms in all. {parts[0].upper()}{parts[1:]}.",
    )


# Classification

MOST_CLASSES = 20  # whose confusions are drawn


def draw_confusion(classifications: Mapping[str, Result]) -> tuple[Figure | None, str]:
    """Draw which classes are taken for which, in percent of the true class's images; one panel a set."""
    small = {name: r for name, r in classifications.items() if r.num_classes <= MOST_CLASSES}
    if not small:
        why = f"it is drawn for up to {MOST_CLASSES} classes" if classifications else "nothing was classified"
        return None, f"No confusion matrix: {why}."
    figure = new_figure(6.2 * len(small))
    for axes, (name, result) in zip(figure.subplots(len(small), squeeze=False).flat, small.items()):
        confusion = result.confusion()
        percent = 100 * confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
        decimals = 1 if result.num_classes <= 12 else 0  # as many as fit
        axes.imshow(percent, cmap="Blues", vmin=0, vmax=100)
        for (row, column), share in np.ndenumerate(percent):
            if confusion[row, column]:
                colour = "white" if share > 50 else INK
                axes.text(
                    column, row, f"{share:.{decimals}f}", ha="center", va="center", color=colour, fontsize=7.5
                )
        ticks = range(result.num_classes)
        axes.set(
            title=drawable(name), xlabel="predicted class", ylabel="true class", xticks=ticks, yticks=ticks
        )
        axes.grid(visible=False)
    return (
        figure,
        "Percent of each true class's images that were taken for each class: a line adds up to 100 %.",
    )


# Worst pairs

# inches: side of a picture, width and height of a pair
PICTURE = 1.3
COLUMN = 2.9
CARD = 2.4
PER_LINE = 3


def draw_worst_pairs(
    verifications: Mapping[str, Result], worst: Mapping[str, Sequence[WorstPair]]
) -> tuple[Figure | None, str]:
    """Draw the errors furthest on the wrong side of the threshold, enlarged without smoothing."""
    groups = []
    for name, pairs in worst.items():
        for kind, meaning in (
            ("false reject", "False rejects: one class, taken for two"),
            ("false accept", "False accepts: two classes, taken for one"),
        ):
            chosen = [pair for pair in pairs if pair.kind == kind]
            if chosen:
                groups.append((f"{meaning} ({name})", chosen))
    if not groups:
        why = "no pair is on the wrong side of the threshold" if verifications else "no pairs were verified"
        return None, f"No worst pairs: {why}."
    heights = [0.45 + _card_height(pairs) * -(-len(pairs) // PER_LINE) for _, pairs in groups]
    figure = Figure(figsize=(WIDTH, sum(heights)))
    top = sum(heights)
    for (heading, pairs), height in zip(groups, heights):
        _text(figure, 0.15, top - 0.28, drawable(heading), fontsize=10.5, fontweight="bold")
        card = _card_height(pairs)
        for k, pair in enumerate(pairs):
            _draw_pair(figure, 0.15 + COLUMN * (k % PER_LINE), top - 0.45 - card * (k // PER_LINE), pair)
        top -= height
    text = (
        "The worst errors first: the cosine that the network gives a pair, its images enlarged, their names."
        " Look for wrong labels as well as for weaknesses."
    )
    return figure, text


def _card_height(pairs: Sequence[WorstPair]) -> float:
    """Return the inches of a pair; those of a set all have pictures, or none has."""
    return CARD if pairs[0].images[0] is not None else CARD - PICTURE


def _draw_pair(figure: Figure, left: float, top: float, pair: WorstPair) -> None:
    """Draw two pictures side by side, the cosine above, the names below; `left` and `top` in inches."""
    _text(figure, left, top - 0.2, f"cosine {pair.similarity:.3f}".replace("-", "−"), color=FAINT)
    width, height = figure.get_size_inches()
    for k, (image, name) in enumerate(zip(pair.images, pair.names)):
        x = left + k * (PICTURE + 0.06)
        lines = "\n".join(shorten(drawable(name)))
        if image is None:
            _text(figure, x, top - 0.33, lines, va="top", fontsize=7.5, linespacing=1.25)
            continue
        box = (x / width, (top - 0.28 - PICTURE) / height, PICTURE / width, PICTURE / height)
        axes = figure.add_axes(box, xticks=[], yticks=[])
        pixels = np.moveaxis(image, 0, -1)
        grey = {"cmap": "gray", "vmin": 0, "vmax": 255}  # ignored for RGB
        axes.imshow(pixels.squeeze(-1) if len(image) == 1 else pixels, interpolation="nearest", **grey)
        for spine in axes.spines.values():
            spine.set(visible=True, color=LINE)
        _text(figure, x, top - 0.33 - PICTURE, lines, va="top", fontsize=7.5, linespacing=1.25)


def _text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    width, height = figure.get_size_inches()
    figure.text(x / width, y / height, text, **style)


def shorten(name: str, width: int = 18, lines: int = 4) -> list[str]:
    """Wrap a name into at most `lines` lines of `width` characters, without its middle if it is longer.

    A line breaks after a slash or a space, else after another sign between words, else anywhere.
    """
    name = " ".join(name.split())
    wrapped, kept = _wrap(name, width), min(len(name), width * lines) // 2
    while len(wrapped) > lines:
        wrapped, kept = _wrap(name[:kept] + "…" + name[-kept:], width), kept - 1
    return wrapped


def _wrap(
    name: str, width: int, breaks: Sequence[str] = (r"(?<=[/\\ ])", r"(?<=[-_.,])", r"(?<=.)")
) -> list[str]:
    """Wrap into lines of at most `width` characters; a longer piece is cut at the next kind of break."""
    lines = [""]
    for piece in re.split(breaks[0], name):
        if len(lines[-1]) + len(piece.rstrip()) <= width:
            lines[-1] += piece
        elif len(piece.rstrip()) <= width:
            lines.append(piece)
        else:
            lines += _wrap(piece, width, breaks[1:])
    return [line.rstrip() for line in lines if line.strip()]
