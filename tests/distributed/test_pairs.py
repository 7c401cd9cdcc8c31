"""Any of 1, 2, 3 ranks goes on from any, within an epoch, with Partial FC: all 9 pairs, in real processes."""

from pathlib import Path

import pytest

from tests.distributed import run_pairs
from tests.distributed.run_pairs import END, STOP, WORLD_SIZES
from tests.launch import launch
from tests.tiny_runs import arrays, assert_same_arrays, checkpoint, rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each number of ranks has trained and saved, then each has taken over from each: that it holds what was saved, bit for
    bit, and the backbone and the step, is asserted by every rank itself."""
    folder = tmp_path_factory.mktemp("pairs")
    for part in ("save", "load"):
        getattr(run_pairs, part)(folder, 1)
        for ranks in WORLD_SIZES[1:]:
            launch(Path(run_pairs.__file__), ranks, folder, folder, part)
    return folder


def losses(output, first):
    found = rows(output)
    assert [row["step"] for row in found] == list(range(first, END + 1))
    return [row["loss"] for row in found]


@pytest.mark.parametrize("saved_by", WORLD_SIZES)
@pytest.mark.parametrize("ranks", WORLD_SIZES)
def test_the_run_goes_on_with_the_same_losses(folder, saved_by, ranks):
    never_stopped = losses(folder / str(saved_by), 1)[STOP:]
    found = losses(folder / f"{saved_by}-{ranks}", STOP + 1)
    assert found == pytest.approx(never_stopped, rel=1e-6)
    if ranks == saved_by:
        assert [loss.hex() for loss in found] == [loss.hex() for loss in never_stopped]
        assert_same_arrays(
            checkpoint(folder / f"{saved_by}-{ranks}", END), checkpoint(folder / str(saved_by), END)
        )


def test_every_number_of_ranks_samples_the_same_classes(folder):
    """A class without samples moves, by weight decay and its gradient, in the steps that draw it and in no others."""
    moments = [arrays(checkpoint(folder / str(ranks), STOP))["head: moment1"] for ranks in WORLD_SIZES]
    moved = [moment.any(axis=1) for moment in moments]
    assert 0.7 < moved[0].mean() < 0.95  # 1 - 0.7 ** 5 is 0.83
    assert all((other == moved[0]).all() for other in moved)
    assert losses(folder / "3", 1) == pytest.approx(losses(folder / "1", 1), rel=1e-5)
