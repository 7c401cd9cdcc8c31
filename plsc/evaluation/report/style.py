"""Style all pictures alike, of reports and of the docs.

They use matplotlib's own font and no pyplot: the same numbers give the same picture, and a user's matplotlib
settings are neither read nor changed.

    with styled():
        figure = new_figure(3.6)
        figure.subplots().plot(x, y)
        png = png_of(figure)
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

WIDTH = 9.0  # inches; the page shows 100 pixels of it an inch, so 9 points are 12.5 pixels
INK = "#1d2129"
FAINT = "#5f6670"
LINE = "#e3e6ea"
# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.parse_math": False,  # names of images and sets are not formulas, whatever signs they hold
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 200,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside the context, and in the user's own outside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the report
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(height: float) -> Figure:
    """Make an empty figure as wide as a page, `height` in inches. Make it inside `styled`, and save it
    there."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    return figure


def colours(count: int) -> list[str]:
    """List `count` colours, repeated after six."""
    return [COLOURS[k % len(COLOURS)] for k in range(count)]


def legend_above(axes: Axes) -> None:
    """Put a legend on the title's line, where it cannot cover data."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.5)


def drawable(text: str) -> str:
    """Replace the characters that DejaVu Sans cannot draw by U+XXXX."""
    charmap = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(char if ord(char) in charmap else f"U+{ord(char):04X}" for char in text)


def png_of(figure: Figure) -> bytes:
    """Encode the figure as PNG, without the name of the software that drew it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
