"""plsc.distributed on 1 to 4 ranks (run_collectives.py holds the checks)."""

from pathlib import Path

import pytest

from tests.helpers.launch import launch


@pytest.mark.parametrize("ranks", [2, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 3, 4))])
def test_collectives(ranks, tmp_path):
    said = launch(Path(__file__).with_name("run_collectives.py"), ranks, tmp_path).stdout
    assert said.count("collectives ok") == ranks


@pytest.mark.slow
def test_rank_0_may_end_right_after_a_barrier(tmp_path):
    said = launch(Path(__file__).with_name("run_last_barrier.py"), 3, tmp_path).stdout
    assert said.count("has passed") == 3
