"""What is left of an evaluation: the table, results.json, the report with all sets; worst pairs of images and
templates."""

import contextlib
import io
import json

import numpy as np
import pytest

from plsc.errors import UserError
from plsc.evaluation import classify, identify, verify, verify_distances
from plsc.evaluation.report.html import tables_of
from plsc.evaluation.results import headlines, overfitting, read_compared, worst_of, write_results
from plsc.evaluation.sets import eval_set
from tests.helpers.pictures import drawn, identification, verification
from tests.helpers.tiny_runs import NoisePairs
from tests.training.test_evaluator import NoiseTemplates


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page, what it is of, and what was printed."""
    pairs = NoisePairs()
    rng = np.random.default_rng(0)
    emb = rng.normal(size=(40, 8))
    found = verify(emb, np.where(pairs.same[:, None], emb, 0.8 * emb) + rng.normal(size=(40, 8)), pairs.same)
    label = np.arange(60) % 3
    results = {
        "people": identification(),
        "pairs": found,
        "clothes": classify(label, label // 2, 3),
    }
    sets = {"pairs": eval_set(pairs), "people": None, "clothes": None}
    facts = {"checkpoint": "step-7", "main": "pairs", "flip": True}
    folder = tmp_path_factory.mktemp("written") / "test"
    with contextlib.redirect_stdout(io.StringIO()) as said, drawn():
        page = write_results(folder, sets, results, [], "a: 1\n", {"verification": "good"}, facts)
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
    assert not list(page.parent.glob("*.tmp"))


def test_the_report_has_the_pictures_of_every_kind(written):
    pictures = {path.name for path in written[0].parent.glob("*.png")}
    of_pairs = {"roc.png", "det.png", "histogram.png", "calibration.png", "worst_pairs.png"}
    assert pictures == of_pairs | {"cmc.png", "confusion.png"}
    for text in ("rank-10", "equal error rate", "worst class"):
        assert text in written[0].read_text()


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
        assert np.array_equal(pair.images[0], pairs.image(first)) and np.array_equal(
            pair.images[1], pairs.image(second)
        )


def test_of_a_template_its_first_image_is_shown():
    pairs = NoiseTemplates()
    same = pairs.same
    found = verify(
        np.eye(len(same)), np.where(same[:, None], np.roll(np.eye(len(same)), 1, 0), np.eye(len(same))), same
    )
    worst = worst_of(found, eval_set(pairs))
    assert worst
    for pair in worst:
        number = int(pair.names[0].split()[1])
        assert pair.names[0] == f"template {number} (3 images): image {3 * number}"
        assert np.array_equal(pair.images[0], pairs.image(3 * number))


def test_results_json_is_the_last(tmp_path, monkeypatch):
    """It is the mark of a finished run."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("plsc.evaluation.results.write_report", killed)
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path, {}, {}, [], "", {}, {})
    assert not list(tmp_path.iterdir())


def test_nothing_evaluated_is_still_written(tmp_path, capsys):
    page = write_results(tmp_path, {}, {}, [], "", {}, {"main": None})
    assert json.loads((tmp_path / "results.json").read_text())["sets"] == {} and page.is_file()
    assert capsys.readouterr().out == ""


def test_numbers_that_cannot_be_computed_are_null_and_said(tmp_path, capsys):
    strangers = identify(np.eye(4), np.array([0, 1]), np.array([2, 3]), np.arange(4))
    write_results(tmp_path, {"s": None}, {"s": strangers}, [], "", {}, {})
    numbers = json.loads((tmp_path / "results.json").read_text())["sets"]["s"]
    assert numbers["rank1"] is None and numbers["cmc"] is None
    assert capsys.readouterr().out.splitlines()[-1] == (
        "s: No probe's identity is in the gallery: no rank can be computed."
    )


def training(accuracy, steps=40):
    return [{"step": step, "loss": 0.1, "accuracy": accuracy} for step in range(steps)]


def test_the_headline_is_the_best_step_and_the_last():
    found = verification()
    best = {"step": 8, "set": "pairs", "metric": "accuracy", "value": 0.9875}
    here = f"accuracy {100 * found.accuracy:.2f} %"
    both = headlines("pairs", {"pairs": found}, {"step": 12, "best": best})
    assert both == [
        ("best step, 8: verification on pairs (chosen on it)", "accuracy 98.75 %"),
        ("last step, 12: verification on pairs", here),
    ]
    one = headlines("pairs", {"pairs": found}, {"step": 8, "best": best})
    assert one == [("best and last step, 8: verification on pairs", here)]
    tested = headlines("pairs", {"pairs": found}, {"step": 8, "checkpoint": "step-8"})
    assert tested == [("verification on pairs, step 8", here)]
    ((label, value),) = headlines("people", {"people": identification()}, {"step": 8, "best": None})
    assert label == "identification on people, step 8" and value.startswith("rank-1 ")


def test_overfitting_is_said_where_training_is_right_and_evaluation_is_not():
    poor, good = verification(), verify(np.eye(20), np.eye(20), np.arange(20) % 2 == 0)
    assert poor.accuracy < 0.97 and good.accuracy <= 0.95
    (said,) = overfitting([*training(0.2), *training(0.999)], good)
    assert "99.90 % of the images it trains on" in said and "accuracy 50.00 %" in said
    assert overfitting(training(0.9), good) == [] == overfitting([], good)
    same = np.arange(40) % 2 == 0
    assert overfitting(training(1.0), verify_distances(np.where(same, 0.2, 2.0), same)) == []


def test_the_tables_of_another_run_are_read_back(written):
    page, results, _ = written
    for path in (page.parent, page.parent / "results.json"):
        name, tables = read_compared(path, ["pairs"])
        assert name == f"{page.parent.parent.name}/test" and tables["pairs"] == results["pairs"].results()


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "no such file; name the folder of a finished run"),
        ("{", "is not JSON"),
        ("[]", "has no 'sets'"),
        (
            '{"sets": {"pairs": {"accuracy": 1}}}',
            "has no tables, an older plsc wrote it; evaluate that run again",
        ),
        ('{"sets": {"pairs": {"table": {"a": 1}}}}', "has no tables"),
        (
            '{"sets": {"lf\\nw": {"table": {"a": "1"}}}}',
            r"has none of these sets, but lf\\nw; evaluate both on the same",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, content, said):
    if content:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match=f"^--compare: .*results.json: {said}"):
        read_compared(tmp_path, ["pairs"])
