"""Draw a plan on paper: the time of a step by part and images/s, over the number of machines."""

from __future__ import annotations

from typing import Any

from plsc.apps.plan.sizes import OLD_CLASSES
from plsc.evaluation.report.style import COLOURS, FAINT, new_figure, png_of, styled

# parts of a step -> the label they are drawn under
_DRAWN = {
    "forward": "network",
    "backward": "network",
    "launches": "network",
    "network of another run": "network",
    "head": "head",
    OLD_CLASSES: "head",
    "bank": "bank",
    "gather": "gather",
    "reduce": "reduce",
    "optimizer": "optimizer",
    "data": "data",
}


def draw(planned: dict[str, Any]) -> bytes:
    """Draw the result of on_paper.plan as a PNG."""
    rows = planned["scaling"]
    places = range(len(rows))
    nodes = [row["nodes"] for row in rows]
    with styled():
        figure = new_figure(3.8)
        bars, lines = figure.subplots(1, 2)
        below = [0.0] * len(rows)
        colours = (*COLOURS, FAINT)
        for colour, label in zip(colours, dict.fromkeys(_DRAWN.values())):
            values = [
                1e3 * sum(row["seconds"].get(part, 0) for part in _DRAWN if _DRAWN[part] == label)
                for row in rows
            ]
            if any(values):
                bars.bar(places, values, 0.6, below, color=colour, label=label)
            below = [low + value for low, value in zip(below, values)]
        bars.set(title="Time of a step", xlabel="machines", ylabel="ms", ylim=(0, 1.35 * max(below)))
        bars.set_xticks(places, nodes)
        bars.grid(axis="x", visible=False)
        bars.legend(loc="upper left", ncols=3, fontsize=8)
        speeds = [row["images_per_second"] for row in rows]
        lines.plot(
            nodes, [speeds[0] * count for count in nodes], "--", color=FAINT, label="n times one machine"
        )
        lines.plot(nodes, speeds, "o-", color=COLOURS[0], label="planned")
        apart = [count for count in nodes if count >= nodes[-1] / 8]  # whose labels do not overlap
        lines.set(title="Scaling", xlabel="machines", ylabel="images/s", xticks=apart)
        lines.set(xlim=(0, None), ylim=(0, None))
        lines.legend(loc="upper left", fontsize=8)
        return png_of(figure)
