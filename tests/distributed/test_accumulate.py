"""Accumulated steps are those of the whole batch, and recomputed ones have the same bits, on one rank and on
two."""

from pathlib import Path

import numpy as np
import paddle
import pytest

from tests.distributed import run_accumulate
from tests.distributed.run_accumulate import HEADS, run
from tests.helpers.bounds import assert_within
from tests.helpers.launch import launch
from tests.helpers.tiny_runs import arrays, assert_same_arrays, checkpoint, columns, rounded_run, rows
from tests.training.test_network import Dropping

pytestmark = pytest.mark.slow

SCRIPT = Path(run_accumulate.__file__)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return for each world size the folder with run_accumulate.py's runs."""
    folders = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        said = launch(SCRIPT, ranks, folder, folder / "runs").stdout
        assert said.count("accumulation ok") == ranks
        folders[ranks] = folder / "runs"
    return folders


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_accumulated_steps_equal_those_of_the_whole_batch(runs, tmp_path, head):
    """All parameters, momenta and losses of 7 steps with dropout are the same except for rounding, on any
    number of ranks."""
    paddle.seed(0)
    net = Dropping()
    want, bound = rounded_run(tmp_path, lambda output, net: run(output, net, 1, *HEADS[head]), net)
    assert {name.split(":")[0] for name in want[1]} == {"backbone", "optimizer", "head"}
    assert np.abs(want[1]["head: momentum"]).max() > 0.1, "it has hardly learned"
    for ranks, accumulate in ((1, 1), (1, 4), (2, 1), (2, 4)):
        folder = runs[ranks] / f"{head}-{accumulate}"
        assert_within([columns(rows(folder)), arrays(checkpoint(folder, 7))], want, bound, paths=2)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_recomputed_runs_have_the_same_bits(runs, ranks, accumulate):
    plain, recomputed = (runs[ranks] / f"norm-{accumulate}-{asked}" for asked in (False, True))
    assert rows(plain) == rows(recomputed)
    assert_same_arrays(checkpoint(plain, 7), checkpoint(recomputed, 7))
