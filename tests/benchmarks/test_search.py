"""The search's benchmark: it compares the answers itself, and leaves nothing."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks.search import _differences
from plsc.apps.serving.gallery import search

pytestmark = pytest.mark.slow


def measured(folder):
    words = ["--rows", "300", "--size", "8", "--runs", "1", "--queries", "35", "--compared", "200"]
    assert benchmark.main(["search", *words, "--folder", str(folder), "--json", str(folder / "numbers")]) == 0
    assert [path.name for path in folder.iterdir()] == ["numbers"]
    return json.loads((folder / "numbers").read_text())


def test_no_answer_differs(tmp_path, capsys):
    numbers = measured(tmp_path)
    assert [(kind["queries"], kind["differ"]) for kind in numbers["compared"].values()] == [(7, 0)] * 5
    assert min(numbers[f"{what}_seconds"] for what in ("index", "batch", "batch_float32", "single")) > 0
    assert "0 of 7 answers differ from float64 brute force" in capsys.readouterr().out


def test_answers_that_differ_are_counted(monkeypatch):
    """One cosine in its last digit, and two people in the wrong order."""
    nearest = search.nearest

    def wrong(parts, queries, people):
        answers = nearest(parts, queries, people)
        answers[1] = {owner: np.nextafter(cosine, 2) for owner, cosine in answers[1].items()}
        answers[3] = dict(reversed(answers[3].items()))
        return answers

    monkeypatch.setattr(search, "nearest", wrong)
    rows = np.random.default_rng(0).standard_normal((50, 8), np.float32)
    assert _differences(rows, np.arange(50), rows[:6])["differ"] == 2
