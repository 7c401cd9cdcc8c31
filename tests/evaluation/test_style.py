"""The style of all pictures: the same bytes whatever a user's matplotlib settings are, and those settings
left alone."""

import matplotlib
import numpy as np

from plsc.evaluation.report.style import COLOURS, drawable, legend_above, new_figure, png_of, styled

X = np.linspace(0, 1, 5)
LINES = {"no margin": X, "squared": X * X}


def draw(lines):
    with styled():
        figure = new_figure(3.6)
        axes = figure.subplots()
        for colour, (label, y) in zip(COLOURS, lines.items()):
            axes.plot(X, y, color=colour, label=label)
        axes.set(title="One", xlabel="angle", ylabel="cosine")
        legend_above(axes)
        return png_of(figure)


def test_a_users_settings_neither_change_a_picture_nor_are_changed():
    plain = draw(LINES)
    assert plain.startswith(b"\x89PNG")
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        assert draw(LINES) == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_other_lines_are_another_picture():
    other = {**LINES, "squared": -X}
    assert draw(other) != draw(LINES)


def test_what_the_font_cannot_draw_is_spelled_out():
    assert drawable("Ж $x$ 字\x00") == "Ж $x$ U+5B57U+0000"
