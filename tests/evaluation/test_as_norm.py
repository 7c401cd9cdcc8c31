"""AS-norm against a slow float64 reference, and in plsc eval."""

import json

import numpy as np
import pytest

from plsc import cli
from plsc.errors import UserError
from plsc.evaluation import verify_pairs
from plsc.evaluation.as_norm import Cohort, as_norm, with_as_norm
from tests.helpers.tiny_runs import TINY, train

RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(40, 8)) + 0.5
PEOPLE = np.repeat(np.arange(20), 2)
PAIRS = np.stack(np.triu_indices(40, 1), axis=1)
SAME = PEOPLE[PAIRS[:, 0]] == PEOPLE[PAIRS[:, 1]]
COHORT = RNG.normal(size=(30, 8)) * RNG.uniform(0.1, 9, (30, 1))


def cosine(a, b):
    return sum(a * b) / (sum(a * a) * sum(b * b)) ** 0.5


def reference(a, b, cohort, top):
    """The score of one pair, as the paper has it."""
    halves = []
    for side in (a, b):
        nearest = sorted((cosine(side, other) for other in cohort), reverse=True)[:top]
        mean = sum(nearest) / top
        deviation = (sum((c - mean) ** 2 for c in nearest) / top) ** 0.5
        halves.append((cosine(a, b) - mean) / deviation)
    return sum(halves) / 2


@pytest.mark.parametrize("top", [2, 7, 30])
def test_scores_equal_the_reference(top, monkeypatch):
    monkeypatch.setattr("plsc.evaluation.as_norm._BLOCK", 7 * len(COHORT))
    similarity = verify_pairs(EMBEDDINGS, PAIRS, SAME).similarity
    got = as_norm(similarity, EMBEDDINGS, PAIRS, Cohort(COHORT, top))
    want = [reference(EMBEDDINGS[i], EMBEDDINGS[j], COHORT, top) for i, j in PAIRS]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_someone_who_is_like_everybody_is_no_longer_confused():
    """Half of the people lie near the mean of all, so that strangers among them are as alike as the others'
    own pictures."""
    rng = np.random.default_rng(1)
    common = np.zeros(32)
    common[0] = 1
    person = rng.normal(size=(40, 32)) / 32**0.5 + 1.5 * common * (np.arange(40) < 20)[:, None]
    people = np.repeat(np.arange(40), 4)
    embeddings = person[people] + 0.15 * rng.normal(size=(160, 32))
    cohort = rng.normal(size=(400, 32)) / 32**0.5 + 1.5 * common * (np.arange(400) < 200)[:, None]
    pairs = np.stack(np.triu_indices(160, 1), axis=1)
    plain = verify_pairs(embeddings, pairs, people[pairs[:, 0]] == people[pairs[:, 1]], identity_of=people)
    both = with_as_norm(plain, embeddings, pairs, Cohort(cohort, 50))
    assert both.eer == plain.eer and both.normalised.eer < plain.eer
    assert both.results()["equal error rate, AS-norm"] != both.results()["equal error rate"]
    numbers = json.loads(json.dumps(both.numbers(), allow_nan=False))["as_norm"]
    assert numbers["eer"] == both.normalised.eer and numbers["threshold"] is None
    assert plain.numbers()["as_norm"] is None


def test_a_zero_embedding_has_a_finite_score():
    embeddings = np.concatenate([EMBEDDINGS[:-1], np.zeros((1, 8))])
    result = verify_pairs(embeddings, PAIRS, SAME)
    assert np.isfinite(as_norm(result.similarity, embeddings, PAIRS, Cohort(COHORT, 5))).all()


@pytest.mark.parametrize("top", [1, 31, -3])
def test_a_cohort_has_enough(top):
    with pytest.raises(
        UserError, match=rf"^--as-norm: must be at least 2, and at most the 30 .* \(got {top}\)$"
    ):
        Cohort(COHORT, top)


def test_plsc_eval_writes_both_numbers(tmp_path, capsys):
    train(tmp_path, "Global.max_steps=2")
    run = ["-c", str(TINY), "-o", f"Global.output_dir={tmp_path}"]
    assert cli.main(["eval", "--as-norm", "3", *run]) == 0
    assert "equal error rate, AS-norm" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "test/results.json").read_text())["sets"].values()
    assert set(row["as_norm"]) >= {"accuracy", "eer", "confidence_95"}
    assert cli.main(["eval", "--as-norm", "100000", *run]) == 2
    assert "--as-norm: must be at least 2" in capsys.readouterr().err
