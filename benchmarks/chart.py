"""Draw the result of a benchmark."""

from __future__ import annotations

from plsc.evaluation.figures import COLOURS, new_figure, png_of, styled


def draw_log_log(lines: dict[str, list[tuple[float, float]]], across: str, up: str) -> bytes:
    """Draw lines, label -> points (x, y), on two logarithmic axes, as a PNG."""
    with styled():
        figure = new_figure(4.5)
        axes = figure.add_subplot(xlabel=across, ylabel=up, xscale="log", yscale="log")
        for number, (label, points) in enumerate(lines.items()):
            style = ("-", "--", ":")[number // len(COLOURS) % 3]
            axes.plot(*zip(*sorted(points)), f"o{style}", color=COLOURS[number % len(COLOURS)], label=label)
        axes.legend(loc="upper left", fontsize=8)
        return png_of(figure)
