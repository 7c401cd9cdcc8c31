"""The report's pictures: they show the numbers that they are given, and nothing in them collides."""

import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from plsc.evaluation import classify
from plsc.evaluation.report.figures import (
    WorstPair,
    draw,
    draw_confusion,
    draw_curves,
    draw_steps,
    draw_worst_pairs,
    shorten,
)
from plsc.evaluation.report.rate_figures import draw_cmc, draw_det, draw_histogram, draw_roc
from plsc.utils.timing import PARTS
from tests.helpers.pictures import identification, panels, style, verification  # noqa: F401 (style is a fixture)


def training(steps, **extra):
    return [
        {"step": s, "epoch": 1, "loss": 10 / s, "lr": 0.1, "images_per_second": 9.0, **extra} for s in steps
    ]


def evaluation(step, name="pairs", accuracy=0.9):
    return {"eval": name, "step": step, "accuracy": accuracy, "std": 0.01, "threshold": 0.3}


def worst_pair(
    kind, k=0, names=("U+0416 CYRILLIC CAPITAL LETTER ZHE, Sans Bold", "x" * 60), channels=1, size=32
):
    images = np.random.default_rng(k).integers(0, 256, (2, channels, size, size), dtype=np.uint8)
    return WorstPair(kind, 0.25 - 0.1 * k, (images[0], images[1]), names)


def test_curves_show_the_rows():
    rows = [*training(range(10, 110, 10), accuracy=0.25), evaluation(50, accuracy=0.8), evaluation(100)]
    figure, text = draw_curves(rows)
    shown = panels(figure)
    assert list(shown) == ["Training loss", "Verification accuracy", "Training accuracy", "Learning rate"]
    np.testing.assert_allclose(
        shown["Training loss"].lines[0].get_xydata()[:, 1], [10 / s for s in range(10, 110, 10)]
    )
    np.testing.assert_allclose(shown["Training accuracy"].lines[0].get_ydata(), 25)
    np.testing.assert_allclose(shown["Verification accuracy"].lines[0].get_xydata(), [[50, 80], [100, 90]])
    assert all(axes.get_xlabel() == "step" and axes.get_ylabel() for axes in shown.values())
    assert shown["Training loss"].get_ylabel() == "loss (nats), logarithmic"
    assert (
        shown["Training loss"].get_yscale() == "log" and shown["Training accuracy"].get_yscale() == "linear"
    )
    assert "one standard deviation" in text


def test_a_loss_that_hardly_falls_starts_at_zero_and_one_of_zero_can_be_drawn():
    for losses in ([2.0, 1.5], [3.0, 0.0]):
        rows = [{**row, "loss": loss} for row, loss in zip(training([10, 20]), losses)]
        axes = panels(draw_curves(rows)[0])["Training loss"]
        assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0


def test_curves_of_a_classification():
    rows = [*training([10, 20]), {"eval": "clothes", "step": 20, "epoch": 1, "accuracy": 0.8, "images": 10}]
    figure, text = draw_curves(rows)
    shown = panels(figure)["Validation accuracy"]
    assert shown.get_ylabel() == "top-1 accuracy (%)" and "deviation" not in text
    np.testing.assert_allclose(shown.lines[0].get_xydata(), [[20, 80]])


def test_curves_of_a_search():
    rows = [*training([10, 20]), {"eval": "people", "step": 20, "epoch": 1, "rank1": 0.7, "gallery": 9}]
    shown = panels(draw_curves(rows)[0])["Identification"]
    assert shown.get_ylabel() == "rank-1 (%)"
    np.testing.assert_allclose(shown.lines[0].get_xydata(), [[20, 70]])


def profile(**milliseconds):
    return {name: milliseconds.get(name, 0) / 1e3 for name in PARTS}


def test_the_time_of_a_step_is_the_median_without_the_first_row():
    first, *later = profile(data=900, head=900), *(profile(head=ms, forward=60) for ms in (10, 20, 90))
    rows = [row for p in (first, *later) for row in training([10], profile=p)] + [evaluation(10)]
    figure, text = draw_steps(rows)
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    shown = dict(zip(names, (bar.get_width() for bar in axes.patches)))
    assert names == list(reversed(PARTS)) and shown == pytest.approx({**profile(), "head": 20, "forward": 60})
    assert {label.get_text() for label in axes.texts} == {"20.0 (25%)", "60.0 (75%)", "0.0 (0%)"}
    assert "80.0 ms in all" in text and all(meaning in text for meaning in list(PARTS.values())[1:])
    assert draw_steps([*training([10], profile=first)])[0] is not None
    assert draw_steps(training([10]))[0] is None


def confused(classes, images=50):
    rng = np.random.default_rng(classes)
    label = np.repeat(np.arange(classes), images)
    return classify(label, np.where(rng.random(len(label)) < 0.7, label, rng.permutation(label)), classes)


@pytest.mark.parametrize("classes", [2, 10, 12, 13, 20])
def test_confusion_shows_the_share_of_each_true_class(classes):
    found = confused(classes)
    figure, text = draw_confusion({"clothes": found})
    axes = panels(figure)["clothes"]
    percent = 100 * found.confusion() / 50
    np.testing.assert_allclose(axes.images[0].get_array(), percent)
    shown = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}
    assert shown.keys() == set(zip(*np.nonzero(percent)))
    assert all(abs(float(said) - percent[cell]) <= 0.5 for cell, said in shown.items())
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    for a, b in itertools.combinations(boxes, 2):
        assert min(a.x1, b.x1) <= max(a.x0, b.x0) or min(a.y1, b.y1) <= max(a.y0, b.y0)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class") and "100 %" in text


def test_confusion_of_many_classes_or_of_none_is_a_sentence():
    many = {"faces": confused(21, images=2)}
    assert draw_confusion(many) == (None, "No confusion matrix: it is drawn for up to 20 classes.")
    assert draw_confusion({}) == (None, "No confusion matrix: nothing was classified.")


def test_many_rows_get_a_running_mean():
    figure, _ = draw_curves(training(range(1, 101)))
    raw, mean = panels(figure)["Training loss"].lines
    loss = raw.get_ydata()
    assert len(loss) == 100
    x, y = mean.get_xydata()[10]
    assert x == 13 and y == pytest.approx(np.mean(loss[10:15]))  # five rows around step 13


def test_a_loss_that_was_not_finite_is_a_gap_and_is_said():
    rows = [*training(range(1, 6)), {**training([6])[0], "loss": None, "nonfinite": ["loss"]}]
    figure, text = draw_curves(rows)
    assert np.isnan(panels(figure)["Training loss"].lines[0].get_ydata()[-1])
    assert text.endswith("The loss was not finite at 1 of the logged steps, first at step 6.")


def test_one_row_is_a_dot_and_no_row_is_a_sentence():
    figure, _ = draw_curves(training([10]))
    assert [line.get_marker() for line in figure.axes[0].lines] == ["o"]
    assert draw_curves([]) == (None, "No curves: the run logged no finite number.")


def test_worst_pairs_that_are_none_are_a_sentence():
    only = {"pairs": verification(negatives=0)}
    none = "No worst pairs: no pair is on the wrong side of the threshold."
    assert draw_worst_pairs(only, {}) == (None, none)
    assert draw_worst_pairs({}, {}) == (None, "No worst pairs: no pairs were verified.")


def test_worst_pairs_show_images_names_and_cosines():
    pairs = [
        worst_pair("false accept", 3, names=("a.jpg", "b.jpg"), channels=3, size=112),
        worst_pair("false reject"),
    ]
    figure, _ = draw_worst_pairs({}, {"pairs": pairs})
    shown = [axes.images[0] for axes in figure.axes]
    np.testing.assert_array_equal(shown[0].get_array(), pairs[1].images[0][0])
    np.testing.assert_array_equal(shown[3].get_array(), np.moveaxis(pairs[0].images[1], 0, -1))
    assert {image.get_interpolation() for image in shown} == {"nearest"}
    texts = [text.get_text() for text in figure.texts]
    assert texts[:2] == ["False rejects: one class, taken for two (pairs)", "cosine 0.250"]
    assert texts[4:] == [
        "False accepts: two classes, taken for one (pairs)",
        "cosine −0.050",
        "a.jpg",
        "b.jpg",
    ]


def test_no_text_collides_or_leaves_the_picture(monkeypatch):
    name = "U+2516 BOX DRAWINGS UP HEAVY AND RIGHT LIGHT, Serif Bold Italic"
    pairs = [worst_pair(kind, k, (name, name)) for kind in ("false reject", "false accept") for k in range(5)]
    rows = [
        *training(range(1, 200), accuracy=0.5),
        evaluation(100),
        evaluation(100, "other"),
        evaluation(199),
    ]
    figures = [
        draw_curves(rows)[0],
        draw_roc({"pairs": verification()})[0],
        draw_det({"pairs": verification(), "other": verification(seed=1)})[0],
        draw_cmc({"people": identification()})[0],
        draw_histogram({"pairs": verification(), "other": verification(seed=1)})[0],
        draw_worst_pairs({}, {"pairs": pairs})[0],
    ]
    drawn = []
    draw_text = Text.draw
    monkeypatch.setattr(Text, "draw", lambda self, *args: (drawn.append(self), draw_text(self, *args))[1])
    for figure in figures:
        drawn.clear()
        FigureCanvasAgg(figure).draw()
        texts = [text for text in dict.fromkeys(drawn) if text.get_text()]
        assert len(texts) > 10
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
        for text, box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text
        boxes += [("image", axes.get_window_extent()) for axes in figure.axes if axes.images]
        for (one, a), (two, b) in itertools.combinations(boxes, 2):
            apart = min(a.x1, b.x1) - max(a.x0, b.x0) <= 1 or min(a.y1, b.y1) - max(a.y0, b.y0) <= 1
            assert apart, (one, two)


def test_the_users_matplotlib_settings_are_neither_read_nor_changed():
    rows = training(range(1, 9))
    first = draw(rows, {}, {})
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert draw(rows, {}, {}) == first
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize(
    "name, lines",
    [
        ("short", ["short"]),
        (
            "faces/George_W_Bush/George_W_Bush_0001.jpg",
            ["faces/", "George_W_Bush/", "George_W_Bush_", "0001.jpg"],
        ),
        ("U+2207 NABLA, Sans\nBold Oblique", ["U+2207 NABLA, Sans", "Bold Oblique"]),
        ("a" * 25 + "m" * 200 + "z" * 25, ["a" * 18, "a" * 7 + "m" * 10 + "…", "m" * 10 + "z" * 8, "z" * 17]),
    ],
)
def test_long_names_lose_their_middle(name, lines):
    assert shorten(name) == lines
