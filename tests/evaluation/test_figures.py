"""The figures of a report: what they show, and bytes that no user's settings change."""

import matplotlib
import matplotlib.text
import numpy as np
import pytest

from plsc.evaluation.report import draw_curves, draw_histogram, draw_roc
from tests.helpers.pictures import DRAW, verification


def training(steps, **fields):
    return [{"step": step, "epoch": 1, "loss": 5.0, "accuracy": 0.5, "lr": 0.1, **fields} for step in steps]


def test_a_users_settings_neither_change_a_picture_nor_are_changed():
    def picture():
        return DRAW([], {"字": verification()})[0][1]

    plain = picture()
    assert plain.startswith(b"\x89PNG")
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        assert picture() == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_curves_show_what_was_trained_and_evaluated():
    evaluations = [{"eval": title, "step": 20, "accuracy": 0.8, "auc": 0.9} for title in ("a", "b")]
    figure = draw_curves([*training([10, 20]), *evaluations])
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "accuracy (%)", "area under ROC (%)", "loss (nats)", "top-1 accuracy (%)", "learning rate"
    ]  # fmt: skip
    np.testing.assert_allclose(figure.axes[0].lines[1].get_xydata(), [[20, 80]])
    np.testing.assert_allclose(figure.axes[3].lines[0].get_xydata(), [[10, 50], [20, 50]])


def test_a_legend_names_each_set():
    rows = [{"eval": name, "accuracy": 0.5, "step": 1} for name in ("_own", "lfw")]
    legend = draw_curves(rows).axes[0].get_legend()
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_own", "lfw"]


def test_the_roc_is_the_highest_tar_within_each_far():
    result = verification()
    ((far, tar),) = [line.get_data() for line in draw_roc({"pairs": result}).axes[0].lines]
    assert far[0] == pytest.approx(0.5 / 1000) and far[-1] == pytest.approx(1)
    for at in (0, 1000, 1999):
        assert tar[at] == 100 * max(t for f, t in zip(result.roc.far, result.roc.tar) if f <= far[at])
    assert draw_roc({"one": verification(negatives=0)}) is None


def test_no_text_of_a_figure_is_a_formula():
    rows = training([10, 20], loss=1e-7, lr=1e-9)
    result = verification()
    with matplotlib.rc_context({"text.parse_math": False}):
        for figure in (draw_curves(rows), draw_roc({"pairs": result}), draw_histogram(result)):
            figure.draw_without_rendering()
            texts = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
            assert not [text for text in texts if "$" in text or "\\" in text]
        ticks = [tick.get_text() for tick in draw_roc({"pairs": result}).axes[0].get_xticklabels()]
    assert {"0.001", "0.01", "0.1", "1"} <= {*ticks}


def test_each_hill_of_the_histogram_adds_up_to_100_percent():
    for result in (verification(), verification(negatives=0)):
        (axes,) = draw_histogram(result).axes
        hills = [patch.get_data().values for patch in axes.patches]
        assert [sum(hill) for hill in hills] == pytest.approx([100, 100 if not result.same.all() else 0])
        assert [line.get_xdata()[0] for line in axes.lines] == [result.threshold] * (not result.same.all())
