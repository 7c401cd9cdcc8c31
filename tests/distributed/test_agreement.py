"""What all ranks must share before the first step (run_agreement.py holds the checks)."""

from pathlib import Path

import pytest

from plsc.training.agreement import refuse_differences
from tests.helpers.launch import launch
from tests.helpers.refusals import refusal


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_that_differ_are_refused_on_all(ranks, tmp_path):
    said = launch(Path(__file__).with_name("run_agreement.py"), ranks, tmp_path, tmp_path).stdout
    assert said.count("agreement ok") == ranks


def test_the_first_difference_is_reported_with_its_values_and_the_others_are_named():
    facts = [{"a": 1, "b": value, "c": value, "d": None} for value in (1, 2, 1)]
    assert refusal(refuse_differences, facts) == (
        "the ranks differ in b (so do c): ranks 0, 2 have 1, rank 1 has 2; start all ranks with the same"
    )


def test_what_a_rank_cannot_know_is_not_compared():
    refuse_differences([{"a": 1, "the b": 2}, {"a": 1}, {"a": 1, "the b": None}])


def test_a_key_that_one_rank_has_not_set_differs():
    text = "the ranks differ in a.key: rank 0 has 2, rank 1 has its default; start all ranks with the same"
    assert refusal(refuse_differences, [{"a.key": 2}, {}]) == text


def test_another_number_of_threads_and_another_processor_are_warnings(caplog):
    refuse_differences([{"threads": 1, "processor": "A 1"}, {"threads": 2, "processor": "B 2"}])
    assert "rank 0 has A 1, rank 1 has B 2 as its processor: the last bits of sums" in caplog.text
    assert "rank 0 has 1, rank 1 has 2 threads: the last bits of sums depend on their number" in caplog.text
