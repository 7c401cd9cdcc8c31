"""The calibration: cases by hand, and what new processes are asked to make; tests/apps/plan/test_plan.py runs
it."""

import json

import pytest

from plsc.apps.plan import calibration
from plsc.apps.plan.calibration import Case, calibrate
from plsc.config import load
from plsc.errors import UserError


def case(classes=1001, ranks=2, batch=8, *overrides):
    return Case(load(None, ["Model.embedding_size=16", *overrides]), classes, ranks, batch)


def test_a_spread_head_and_one_on_every_rank():
    spread, whole = case(), case(1001, 2, 8, "Head.name=arcface")
    assert (spread.shard, spread.samples) == (501, 16)
    assert (whole.shard, whole.samples) == (1001, 8)
    assert spread.selected(1.0) == 501
    assert spread.selected(0.5) == 250 + 4  # half of the 8 positives of this shard were drawn anyhow
    assert case(8, 2).selected(0.1) == 4  # no more than there are
    more = case(1001, 2, 8, "DataLoader.Train.accumulate=3")
    assert (more.batch, more.samples, more.selected(0.5)) == (8, 48, 250 + 12)
    keep = (
        f"DataLoader.Train.{key}" for key in ("batch_size=32", "global_batch=96", "keep_global_batch=true")
    )
    kept = case(1001, 2, 24, *keep)
    assert (kept.accumulate, kept.samples) == (2, 96)


def test_the_sizes_that_are_measured_do_not_depend_on_how_busy_the_machine_is():
    """Twice the same command: the same points, so that the lines through them are the same."""
    sizes = calibration.head_sizes(3.3, 128, 512, 200_000, disk=False)
    assert sizes == [1024, 4096, 16384] and calibration.head_sizes(3.3, 128, 512, 3000, False) == [1024, 3000]
    assert calibration.head_sizes(3.3, 128, 512, 500, True) == [500]
    assert len(calibration.head_sizes(30, 128, 512, 200_000, disk=False)) > len(sizes)
    assert calibration.head_sizes(3.3, 4096, 512, 200_000, disk=False) == [256, 1024]
    assert calibration.backbone_batches(3.3, 6_310_000_000, 128) == [2, 4]
    assert calibration.backbone_batches(3.3, 1_000_000, 128) == [4, 16, 64, 128]
    assert calibration.backbone_batches(3.3, 1, 1) == [1] and calibration.backbone_batches(3.3, 1, 2) == [2]


def test_the_median_counts_and_how_far_the_times_scatter_is_kept(monkeypatch):
    clock, now = iter([0, 1, 0, 1, 0, 1, 0, 1, 0, 9]), calibration.time
    monkeypatch.setattr(now, "perf_counter", lambda: next(clock))
    times, calls = calibration.Times(), []
    assert times.median(lambda: calls.append(1)) == 1 and len(calls) == 6
    assert times.scatter == 2  # the middle half of 1, 1, 1, 1, 9 reaches from 1 to 5


class Asked(Exception):
    pass


@pytest.mark.parametrize(
    "classes, rate, expected",
    [(10_000_000, 0.002, 0.1), (1_000_000, 0.01, 0.05), (1000, 0.01, 0.01), (1000, 1.0, 0.1)],
)
def test_the_step_is_asked_for_as_many_classes_as_the_run_has_in_one(monkeypatch, classes, rate, expected):
    """Of few classes that are made; a lower rate than the run's is not worth it."""

    def ask(arguments, ranks, logs, device):
        raise Asked(arguments[-2])

    monkeypatch.setattr(calibration.launcher, "run_ranks", ask)
    with pytest.raises(Asked) as asked:
        calibrate(case(classes, 1, 0, f"Head.sample_rate={rate}"), 1.0, None, None)
    assert f'"rate": {expected}' in str(asked.value)


def test_a_calibration_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(calibration.launcher, "run_ranks", lambda *_: "ERROR the disk is gone")
    with pytest.raises(UserError, match=r"^plsc plan: the calibration failed: the disk is gone$"):
        calibrate(case(), 1.0, None, None)


def test_the_bank_is_made_where_the_run_would_have_it(tmp_path):
    """In a folder of its own, which is gone afterwards; nothing on the way to it is made."""
    for key in ("Head.bank_folder", "Global.output_dir"):
        cfg = load(None, ["Head.bank=disk", f"{key}={tmp_path}/new"])
        with calibration._with_bank_folder(cfg) as changed:
            (made,) = tmp_path.iterdir()
            assert changed.Head.bank_folder == str(made) and cfg.Head.bank_folder != str(made)
        assert not list(tmp_path.iterdir())


def test_on_a_gpu_one_process_measures_and_waits_for_it_before_each_look_at_the_clock(monkeypatch):
    def ask(arguments, ranks, logs, device):
        raise Asked(json.dumps([ranks, device, json.loads(arguments[-2])["device"]]))

    monkeypatch.setattr(calibration.launcher, "run_ranks", ask)
    with pytest.raises(Asked) as asked:
        calibrate(case(1000, 2, 0), 1.0, None, None, "gpu")
    assert json.loads(str(asked.value)) == [1, "gpu", "gpu"]
    clock, queued = [0.0], []

    def finish():
        clock[0] += sum(queued)
        queued.clear()

    monkeypatch.setattr(calibration.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr("plsc.distributed.accelerator.finish", finish)
    assert calibration.Times().median(lambda: queued.append(2.0)) == 2.0
