"""Accumulated steps are those of the whole batch, and recomputed ones have the same bits, on one rank and on two."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.launch import launch
from tests.tiny_runs import arrays, assert_same_arrays, checkpoint, rows

SCRIPT = Path(__file__).with_name("run_accumulate.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the number of ranks the folder of the runs of run_accumulate.py."""
    folders = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        done: subprocess.CompletedProcess = launch(SCRIPT, ranks, folder, folder / "runs")
        assert done.stdout.count("accumulation ok") == ranks
        folders[ranks] = folder / "runs"
    return folders


def end(folder):
    return arrays(checkpoint(folder, 7))


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_accumulated_steps_equal_those_of_the_whole_batch(runs, head):
    """All parameters and centres after 7 steps with dropout by 1e-6, on any number of ranks.

    Momenta, which are sums of gradients, by 1e-5 of their largest number.
    """
    expected, losses = end(runs[1] / f"{head}-1"), [row["loss"] for row in rows(runs[1] / f"{head}-1")]
    assert {name.split(":")[0] for name in expected} == {"backbone", "optimizer", "head"}
    for ranks, accumulate in ((1, 4), (2, 1), (2, 4)):
        found = end(runs[ranks] / f"{head}-{accumulate}")
        assert found.keys() == expected.keys()
        assert np.abs(expected["head: momentum"]).max() > 0.1, "it has hardly learned"
        for name, array in expected.items():
            weights = name.startswith("backbone") or name == "head: centres"
            most = 1e-6 if weights else 1e-5 * max(1, np.abs(array).max())
            assert np.abs(found[name] - array).max() <= most, (ranks, accumulate, name)
        assert [row["loss"] for row in rows(runs[ranks] / f"{head}-{accumulate}")] == pytest.approx(
            losses, rel=1e-5
        )


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_recomputed_runs_have_the_same_bits(runs, ranks, accumulate):
    plain, recomputed = (runs[ranks] / f"norm-{accumulate}-{asked}" for asked in (False, True))
    assert rows(plain) == rows(recomputed)
    assert_same_arrays(checkpoint(plain, 7), checkpoint(recomputed, 7))
