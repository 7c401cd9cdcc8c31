"""A run on 1, 2 or 3 ranks resumes within an epoch on 1, 2 or 3 ranks, with Partial FC and the same samples
in each step: all 9 pairs, in real processes."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed import run_pairs
from tests.distributed.run_pairs import END, STOP, WORLD_SIZES, loss_bound
from tests.helpers.bounds import assert_within
from tests.helpers.launch import launch
from tests.helpers.tiny_runs import arrays, assert_same_arrays, checkpoint, rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each number of ranks has trained and saved, then each has taken over from each: that it holds what was
    saved, bit for bit, and the backbone and the step, is asserted by every rank itself."""
    folder = tmp_path_factory.mktemp("pairs")
    for part in ("save", "load"):
        getattr(run_pairs, part)(folder, 1)
        for ranks in WORLD_SIZES[1:]:
            launch(Path(run_pairs.__file__), ranks, folder, folder, part)
    return folder


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    return loss_bound(tmp_path_factory.mktemp("rounded"))


def losses(output, first):
    found = rows(output)
    assert [row["step"] for row in found] == list(range(first, END + 1))
    return [row["loss"] for row in found]


@pytest.mark.parametrize("saved_by", WORLD_SIZES)
@pytest.mark.parametrize("ranks", WORLD_SIZES)
def test_the_run_continues_with_the_same_losses(folder, bound, saved_by, ranks):
    never_stopped = losses(folder / str(saved_by), 1)[STOP:]
    found = losses(folder / f"{saved_by}-{ranks}", STOP + 1)
    assert_within(np.array(found), np.array(never_stopped), bound[STOP:], paths=2)
    if ranks == saved_by:
        assert [loss.hex() for loss in found] == [loss.hex() for loss in never_stopped]
        assert_same_arrays(
            checkpoint(folder / f"{saved_by}-{ranks}", END), checkpoint(folder / str(saved_by), END)
        )


def test_every_number_of_ranks_samples_the_same_classes(folder, bound):
    """A class without samples moves, by weight decay and its gradient, in the steps that draw it and in no
    others."""
    moments = [arrays(checkpoint(folder / str(ranks), STOP))["head: moment1"] for ranks in WORLD_SIZES]
    moved = [moment.any(axis=1) for moment in moments]
    assert 0.7 < moved[0].mean() < 0.95  # 1 - 0.7 ** 5 is 0.83
    assert all((other == moved[0]).all() for other in moved)
    of_three, of_one = (np.array(losses(folder / ranks, 1)) for ranks in ("3", "1"))
    assert_within(of_three, of_one, bound, paths=2)
