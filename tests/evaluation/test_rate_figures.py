"""ROC, DET, histogram and CMC: they show the numbers that they are given."""

import numpy as np
import pytest

from plsc.evaluation import identify, verify_distances
from plsc.evaluation.report.rate_figures import draw_calibration, draw_cmc, draw_det, draw_histogram, draw_roc
from tests.helpers.pictures import identification, panels, style, verification  # noqa: F401 (style is a fixture)


def test_roc_shows_the_tar_at_each_far():
    result = verification()
    figure, _ = draw_roc({"pairs": result})
    axes = figure.axes[0]
    far, tar = axes.lines[0].get_xydata().T
    positive, negative = result.similarity[result.same], result.similarity[~result.same]
    for k in range(0, 2000, 97):
        allowed = int(far[k] * len(negative) + 1e-9)  # false accepts within this rate
        limit = np.sort(negative)[::-1][allowed] if allowed < len(negative) else -np.inf
        assert tar[k] == pytest.approx(100 * np.mean(positive > limit))
    assert [text.get_text() for text in axes.texts] == [
        f"{100 * t:.2f} %" for t in result.tar_at_far.values() if t is not None
    ]
    assert axes.get_xscale() == "log" and axes.get_xlim()[0] == pytest.approx(0.5 / 1000)


def test_histogram_adds_up_to_all_pairs_and_marks_the_threshold():
    result = verification()
    figure, _ = draw_histogram({"pairs": result, "again": result})
    assert list(panels(figure)) == ["pairs", "again"]
    axes = figure.axes[0]
    assert [round(patch.get_data().values.sum(), 6) for patch in axes.patches] == [100, 100, 100, 100]
    assert axes.lines[0].get_xdata()[0] == result.threshold
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "same class (300 pairs)", "different classes (1,000 pairs)", f"threshold {result.threshold:.3f}"
    ]  # fmt: skip


def test_det_shows_the_errors_and_where_they_are_equal():
    result = verification()
    axes = draw_det({"pairs": result})[0].axes[0]
    far, frr = axes.lines[0].get_xydata().T
    roc_far, tar = draw_roc({"pairs": result})[0].axes[0].lines[0].get_xydata().T
    np.testing.assert_array_equal(far, roc_far)
    np.testing.assert_allclose(
        frr, np.maximum(100 - tar, 50 / 300)
    )  # half a false reject, on a logarithmic axis
    assert axes.lines[1].get_xydata()[0] == pytest.approx([result.eer, 100 * result.eer])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_a_set_without_errors_has_no_curves():
    same = np.arange(40) % 2 == 0
    perfect, usual = verify_distances(np.where(same, 0.2, 2.0), same), verification()
    for draw, what in ((draw_roc, "ROC"), (draw_det, "DET curve")):
        assert draw({"pairs": perfect}) == (None, f"No {what}: some threshold has no error at all.")
        axes = draw({"pairs": perfect, "others": usual})[0].axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["others"]


def test_cmc_shows_every_rank_and_names_those_of_the_table():
    result = identification()
    axes = draw_cmc({"people": result})[0].axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), list(zip(range(1, 51), 100 * result.cmc)))
    assert [text.get_text() for text in axes.texts] == [f"{100 * result.rank(k):.2f} %" for k in (1, 5, 10)]
    two = draw_cmc({"people": result, "fewer": identification(4)})[0].axes[0]
    assert [text.get_text() for text in two.get_legend().get_texts()] == ["people", "fewer"] and not two.texts


def test_sets_without_negatives_or_none_at_all_are_sentences():
    only = {"pairs": verification(negatives=0)}
    assert draw_roc(only) == (None, "No ROC: all pairs are of one kind.")
    assert draw_det(only) == (None, "No DET curve: all pairs are of one kind.")
    assert draw_histogram(only)[0] is not None
    for drawn, what in ((draw_roc({}), "ROC"), (draw_det({}), "DET"), (draw_histogram({}), "histogram")):
        assert drawn[0] is None and what in drawn[1] and "no pairs were verified" in drawn[1]
    assert draw_cmc({}) == (None, "No CMC curve: nothing was searched for.")
    strangers = identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.arange(4))
    assert draw_cmc({"people": strangers}) == (None, "No CMC curve: no probe's identity is in the gallery.")


def test_the_reliability_diagram_shows_the_bins():
    result = verification()
    figure, text = draw_calibration({"pairs": result, "one kind": verification(negatives=0)})
    assert list(panels(figure)) == ["pairs"] and "15 of equal width" in text
    held_out = result.fit.held_out
    (dots,) = figure.axes[0].containers
    np.testing.assert_allclose(
        dots.lines[0].get_xydata(),
        100 * np.stack([held_out.predicted, held_out.observed], 1)[held_out.pairs > 0],
    )
    assert sum(int(t.get_text().replace(",", "")) for t in figure.axes[0].texts) == 1300
    assert draw_calibration({}) == (None, "No calibration: no pairs were verified.")
