"""The head on real ranks: loss, gradients and parameters of 10 steps against dense float64 (run_head.py holds
the cases)."""

from pathlib import Path

import pytest

from tests.helpers.launch import launch


@pytest.mark.parametrize(
    "ranks,every,cases",
    [
        (2, 7, 45),
        pytest.param(3, 1, 113, marks=pytest.mark.slow),
        pytest.param(4, 7, 45, marks=pytest.mark.slow),
    ],
)
def test_equals_the_dense_reference(ranks, every, cases, tmp_path):
    """All cases on three ranks, which divide none of the class counts. On four ranks the GPUs' way."""
    kernels = "0" if ranks == 4 else "1"
    said = launch(
        Path(__file__).with_name("run_head.py"), ranks, tmp_path, str(every), PLSC_KERNELS=kernels
    ).stdout
    assert said.count(f": {cases} cases, worst relative errors") == ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_margin_equals_dense_autograd(ranks, tmp_path):
    kernels = "0" if ranks == 3 else "1"
    said = launch(Path(__file__).with_name("run_margins.py"), ranks, tmp_path, PLSC_KERNELS=kernels).stdout
    assert said.count(": 24 margins, 48 cases classified\n") == ranks


def test_a_centre_that_is_not_finite_is_found_by_every_rank(tmp_path):
    said = launch(Path(__file__).with_name("run_broken_centres.py"), 2, tmp_path).stdout
    assert said.count("48 cases\n") == 2
