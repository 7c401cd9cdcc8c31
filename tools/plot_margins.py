"""Draw the picture of docs/training.md: python tools/plot_margins.py docs/pictures/margins.png"""

import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
import paddle

from plsc.evaluation.report.style import COLOURS, FAINT, new_figure, png_of, styled
from plsc.utils.registry import MARGINS

DEGREES = np.linspace(0, 180, 361)
COS = paddle.to_tensor(np.cos(np.deg2rad(DEGREES)), dtype="float32").unsqueeze(1)


def curve(name: str, norm: float = 20.0, t: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the own class's cosine after the margin; with t, another class's, the own one at 60 degrees."""
    margin, own = MARGINS.build(name), paddle.full_like(COS, 0.5)
    margin.t = t
    margin.mean = 20.0
    margin.deviation = 1.0
    cosine = margin.others(COS, own, own)[0] if t else margin(COS, paddle.full_like(COS, norm)).cosine
    return DEGREES, cosine.numpy()


def panels(titles: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], across: str, up: str) -> bytes:
    """Draw line charts beside each other as PNG: title -> {label: (x, y)}; the first line of each is the grey
    one.

    Args:
        across, up: labels of the x and y axes, for all charts.
    """
    with styled():
        figure = new_figure(3.6)
        for axes, (title, lines) in zip(
            np.ravel(figure.subplots(1, len(titles), sharey=True)), titles.items()
        ):
            for colour, (label, (x, y)) in zip((FAINT, *COLOURS), lines.items()):
                axes.plot(x, y, color=colour, label=label, linestyle="--" if colour == FAINT else "-")
            axes.set(
                title=title, xlabel=across, xlim=(x.min(), x.max()), xticks=np.linspace(x.min(), x.max(), 5)
            )
            axes.legend(loc="lower left", fontsize=8)
        figure.axes[0].set_ylabel(up)
        matplotlib.rcParams["savefig.dpi"] = 110  # a page's width, and a small file in the repository
        return png_of(figure)


same = {name: curve(name) for name in ("arcface", "cosface", "sphereface", "combined")}
norms = {f"{name}, norm {norm}": curve(name, norm) for name in ("adaface", "magface") for norm in (10, 110)}
others = {f"curricularface, t = {t}": curve("curricularface", t=t) for t in (0.1, 0.5)}
titles = {"Same for every sample": same, "By the norm": norms, "Another class, own at 60°": others}
drawn = {title: {"no margin": (DEGREES, COS.numpy()), **lines} for title, lines in titles.items()}
Path(sys.argv[1]).write_bytes(panels(drawn, "angle in degrees", "cosine"))
