"""Results: results.json whole and last, tables, the page, and safe against what names hold."""

import base64
import contextlib
import html
import io
import json
import re
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from plsc.evaluation import classify, identify, report, verify
from plsc.evaluation.report import worst_of
from plsc.evaluation.results import headlines, tables_of, write_results
from plsc.evaluation.sets import eval_set
from plsc.evaluation.verification import verify_distances
from tests.helpers.pictures import drawn, identification, verification
from tests.helpers.tiny_runs import NoisePairs

ROWS = [{"step": step, "epoch": 1, "loss": 5.0, "lr": 0.1} for step in (10, 20)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page, what it is of, and what was printed."""
    pairs = NoisePairs()
    rng = np.random.default_rng(0)
    emb = rng.normal(size=(40, 8))
    found = verify(emb, np.where(pairs.same[:, None], emb, 0.8 * emb) + rng.normal(size=(40, 8)), pairs.same)
    label = np.arange(60) % 3
    results = {"people": identification(), "pairs": found, "clothes": classify(label, label // 2)}
    sets = {"pairs": eval_set(pairs), "people": None, "clothes": None}
    facts = {"checkpoint": "step-7", "step": 7, "main": "pairs", "flip": True}
    folder = tmp_path_factory.mktemp("written") / "test"
    with contextlib.redirect_stdout(io.StringIO()) as said, drawn():
        page = write_results(folder, sets, results, ROWS, "a: 1  # b\n", {"run": "<run>"}, facts)
    return page, results, said.getvalue()


def test_results_json_has_all_numbers(written):
    page, results, _ = written
    content = json.loads((page.parent / "results.json").read_text())
    assert (content["checkpoint"], content["main"], content["flip"]) == ("step-7", "pairs", True)
    assert list(content["sets"]) == ["pairs", "people", "clothes"], "the main set first"
    for title, found in results.items():
        numbers = content["sets"][title]
        assert numbers["kind"] == found.kind and numbers["notes"] == list(found.notes)
        assert found.row().items() <= numbers.items()
        assert numbers["confidence_95"].keys() == found.intervals.keys()
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "results.json"]


def test_the_page_shows_everything_and_needs_nothing_else(written):
    page, results, _ = written
    text = page.read_text()
    headings = re.findall("<h2>(.*)</h2>", text)
    assert headings == ["Evaluation", "Training", "ROC", "Cosines of pairs", "Worst pairs of pairs"]
    worst = worst_of(results["pairs"], eval_set(NoisePairs()))
    embedded = re.findall('src="data:image/png;base64,([^"]*)"', text)
    assert len(embedded) == 3 + 2 * len(worst)
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in embedded)
    assert not re.search(r"https?:|url\(|@import|<script|<link", text)
    assert results["pairs"].headline in text and "a: 1  # b" in text
    for label in ("rank-10", "equal error rate", "accuracy (top-1)"):
        assert f"<th>{label}</th>" in text


def test_names_are_escaped(tmp_path):
    pairs = NoisePairs()
    pairs.image_name = lambda index: f"<b>{index}/a"
    result = verify_distances(np.linspace(0.1, 1.9, 40), pairs.same)
    sets, results, summary = {"<s>": eval_set(pairs)}, {"<s>": result}, {"run": "<r>"}
    page = write_results(tmp_path, sets, results, [], "<c>", summary, {"step": 1})
    text = page.read_text()
    assert not re.search("<(b|s|c|r)>", text) and html.escape("<b>") in text


def test_the_tables_stand_by_kind_with_a_column_a_set(written):
    said = written[2]
    kinds = ("verification ", "identification ", "classification ")
    assert sorted(kinds, key=said.index) == [*kinds]
    (two,) = tables_of({"a": verification(), "b": verification(seed=1, negatives=0)})
    assert two[0] == ["verification", "a", "b"]
    (eer,) = [line for line in two if line[0].startswith("equal error rate")]
    assert eer[2] == "needs positive and negative pairs" and " % (" in eer[1]


def test_worst_pairs_have_their_pictures_and_names(written):
    pairs, found = NoisePairs(), written[1]["pairs"]
    worst = worst_of(found, eval_set(pairs))
    assert {pair.kind for pair in worst} == {"false reject", "false accept"}
    for pair in worst:
        (index,) = np.flatnonzero(found.similarity == pair.similarity)
        first, second = pairs.pairs[index]
        assert pair.names == (f"image {first}", f"image {second}")
        for png, number in zip(pair.pngs, (first, second)):
            pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_GRAYSCALE)
            assert np.array_equal(pixels, pairs.image(number)[0])


def test_worst_pairs_are_the_extreme_errors_only(monkeypatch):
    similarity = np.array([0.9, 0.1, -0.3, 0.8, 0.2, 0.6, 0.4])
    same = np.array([True, True, True, False, False, False, True])
    pairs = eval_set(NoisePairs(7))

    def worst(threshold, most):
        monkeypatch.setattr(report, "WORST_PAIRS", most)
        found = SimpleNamespace(similarity=similarity, same=same, threshold=threshold)
        return [(pair.kind.split()[1], pair.similarity) for pair in worst_of(found, pairs)]

    rejects, accepts = (
        [("reject", -0.3), ("reject", 0.1), ("reject", 0.4)],
        [("accept", 0.8), ("accept", 0.6)],
    )
    assert worst(0.4, 8) == rejects + accepts  # 0.4 itself is not accepted
    assert worst(0.4, 1) == rejects[:1] + accepts[:1]
    assert worst(None, 4) == [*rejects, ("reject", 0.9), *accepts, ("accept", 0.2)]


def test_results_json_is_the_last(tmp_path, monkeypatch):
    """It is the mark of a finished run."""
    monkeypatch.setattr("plsc.evaluation.report.render", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path, {}, {}, [], "", {}, {})
    assert not list(tmp_path.iterdir())


def test_nothing_evaluated_is_still_written(tmp_path, capsys):
    page = write_results(tmp_path, {}, {}, [], "", {}, {"main": None})
    assert json.loads((tmp_path / "results.json").read_text())["sets"] == {}
    assert "No evaluation" in page.read_text() and capsys.readouterr().out == ""


def test_numbers_that_cannot_be_computed_are_null_and_reported(tmp_path, capsys):
    strangers = identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.arange(4))
    write_results(tmp_path, {"s": None}, {"s": strangers}, [], "", {}, {"step": 1})
    numbers = json.loads((tmp_path / "results.json").read_text())["sets"]["s"]
    assert numbers["rank1"] is None and numbers["confidence_95"] == {}
    assert strangers.headline == "rank-1 cannot be computed"
    assert "rank-1          needs probes of identities in the gallery" in capsys.readouterr().out


def test_the_headline_is_the_best_step_and_the_last():
    found = {"pairs": verification()}
    here = found["pairs"].headline
    best = {"step": 8, "set": "pairs", "metric": "accuracy", "value": 0.9875}
    assert headlines(found, {"step": 12, "best": best}) == [
        ("best step 8: verification on pairs (chosen on it)", "accuracy 98.75 %"),
        ("step 12: verification on pairs", here),
    ]
    one = headlines(found, {"step": 8, "best": best})
    assert one == [("step 8: verification on pairs", here)]
    tested = headlines(found, {"step": 8, "checkpoint": "step-8"})
    assert tested == [("step 8: verification on pairs", here)] and " ± " in here
    ((label, value),) = headlines({"people": identification()}, {"step": 8, "best": None})
    assert label == "step 8: identification on people" and value.startswith("rank-1 ")
    assert headlines({}, {}) == []
