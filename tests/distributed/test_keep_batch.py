"""A run of three ranks goes on with two and then with three again, and keeps its global batch of 24
samples."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed import run_keep_batch
from tests.distributed.run_keep_batch import KINDS
from tests.helpers.bounds import assert_within
from tests.helpers.launch import launch
from tests.helpers.tiny_runs import rounded_run, rows

pytestmark = pytest.mark.slow

STOPS = {"two": 3, "three": 6}  # within an epoch of five steps
END = 9


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """By kind of network and name of the run, the losses of all steps; "cut" is of 3, 2 and 3 ranks, "bound"
    of rounding on one."""
    folder = tmp_path_factory.mktemp("runs")

    def start(ranks, name, last, before="", step=0):
        launch(Path(run_keep_batch.__file__), ranks, folder, folder, name, last, before, step)

    start(3, "whole", END)
    start(2, "two", STOPS["three"], "whole", STOPS["two"])
    start(3, "three", END, "two", STOPS["three"])
    found = {}
    for kind in KINDS:
        train = lambda output, net, kind=kind: run_keep_batch.run(output, kind, END, None, net)
        (one, _), (bound, _) = rounded_run(folder / f"one-{kind}", train, run_keep_batch.net(kind))
        of_run = {name: rows(folder / f"{name}-{kind}") for name in ("whole", "two", "three")}
        of_run["cut"] = of_run["whole"][: STOPS["two"]] + of_run.pop("two") + of_run.pop("three")
        for of_steps in of_run.values():
            assert [row["step"] for row in of_steps] == list(range(1, END + 1))
        found[kind] = {name: [row["loss"] for row in of_steps] for name, of_steps in of_run.items()}
        found[kind].update(one=one["loss"], bound=bound["loss"])
    return found


@pytest.mark.parametrize(
    ("kind", "run"),
    [
        ("linear", "cut"),
        ("linear", "one"),
        ("norm", "one"),  # three micro-batches of the samples of the three ranks
    ],
)
def test_only_rounding_is_left_without_other_micro_batches(losses, kind, run):
    found = losses[kind]
    assert_within(np.array(found[run]), np.array(found["whole"]), found["bound"], paths=2)


def test_statistics_of_other_micro_batches_change_the_losses_a_little(losses):
    """Of 8 samples on three ranks, and of 6 on two; the noise of a network of four channels is large."""
    whole, cut = losses["norm"]["whole"], losses["norm"]["cut"]
    first = STOPS["two"]
    assert cut[:first] == whole[:first] and cut[first] != whole[first]
    assert cut == pytest.approx(whole, rel=0.3)
    assert max(whole[-3:]) < min(whole[:3]) and max(cut[-3:]) < min(cut[:3])
