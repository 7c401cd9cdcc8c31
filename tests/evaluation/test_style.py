"""The style of all pictures: the same bytes whatever a user's matplotlib settings are, and those settings left alone."""

import matplotlib
import numpy as np

from plsc.evaluation.report.style import drawable, panels

X = np.linspace(0, 1, 5)
LINES = {"One": {"no margin": (X, X), "squared": (X, X * X)}, "Another": {"no margin": (X, X)}}


def test_a_users_settings_neither_change_a_picture_nor_are_changed():
    plain = panels(LINES, "angle", "cosine")
    assert plain.startswith(b"\x89PNG")
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        assert panels(LINES, "angle", "cosine") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_other_lines_are_another_picture():
    other = {**LINES, "Another": {"no margin": (X, -X)}}
    assert panels(other, "angle", "cosine") != panels(LINES, "angle", "cosine")


def test_what_the_font_cannot_draw_is_spelled_out():
    assert drawable("Ж $x$ 字\x00") == "Ж $x$ U+5B57U+0000"
