"""A bad step on one rank of two."""

from pathlib import Path

import pytest

from tests.helpers.launch import launch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_all_ranks_skip_what_one_cannot_use(tmp_path, kernels):
    """run_divergence.py holds the checks, which every rank makes for itself."""
    script = Path(__file__).with_name("run_divergence.py")
    said = launch(script, 2, tmp_path, tmp_path / "runs", PLSC_KERNELS=kernels).stdout
    assert said.count("divergence ok") == 2
