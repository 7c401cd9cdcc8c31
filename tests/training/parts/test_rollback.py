"""A run that diverges goes back and on with half the rate: as one that was resumed there with it; on one
process."""

import json
import re

import pytest

from plsc.training.parts.divergence import DivergedError
from plsc.training.parts.rollback import go_back
from plsc.utils.metrics import Metrics
from tests.helpers.poison import poisoned
from tests.helpers.tiny_runs import assert_same_arrays, checkpoint, checkpoints, rows, steps

OVERRIDES = ["DataLoader.Eval.dataset=null", "Global.max_skipped=3", "Checkpoint.keep=9"]


def run(output, first, last, *overrides, healed_by=1, rollbacks=2, resume=None):
    """Train with bad gradients from step `first` to `last`, until the run has gone back `healed_by` times."""

    class Bad(dict):
        def get(self, step):
            return super().get(step) if trainer.part("rollback").count < healed_by else None

    bad = Bad(dict.fromkeys(range(first, last + 1), "gradient"))
    trainer = poisoned(output, bad, *OVERRIDES, f"Global.rollbacks={rollbacks}", *overrides)
    if resume:
        trainer.resume(resume)
    metrics = Metrics(output, trainer.step)
    try:
        trainer.train(metrics)
    finally:
        metrics.close()
    return trainer


def folders(output):
    return sorted(path.name for path in (output / "checkpoints").iterdir())


@pytest.mark.parametrize(
    "optimizer", ["Optimizer.head=null", "Optimizer={name: AdamW, head: {lr_scale: 0.1}}"]
)
def test_it_goes_on_as_if_resumed_with_half_the_rate(tmp_path, capsys, optimizer):
    one, other = tmp_path / "one", tmp_path / "other"
    trainer = run(one, 6, 8, optimizer)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rolled back" in line]
    assert line.endswith(
        "WARNING rolled back from step 8 to step 4, learning rate times 0.5 from here on (rollback 1 of 2): gradient of "
        "linear.bias is NaN on rank 0"
    )
    assert trainer.head.bank.updates == 12
    assert trainer.step == 12 and (
        trainer.part("divergence").skipped,
        trainer.part("divergence").in_a_row,
        trainer.part("rollback").count,
    ) == (0, 0, 1)
    found = rows(one)
    assert steps(found) == list(range(1, 13)) and [row["lr"] for row in found] == [0.05] * 4 + [0.025] * 8
    run(other, 0, 0, "LRScheduler.learning_rate=0.025", optimizer, resume=checkpoint(one, 4))
    assert rows(other) == found[4:]
    assert_same_arrays(checkpoint(one), checkpoint(other))


def test_a_resumed_run_keeps_the_rate_and_the_count(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, 6, 8)
    trainer = run(parts, 6, 8, resume=checkpoint(whole, 8))
    assert trainer.part("rollback").count == 1
    assert rows(parts) == rows(whole)[8:]
    assert_same_arrays(checkpoint(whole), checkpoint(parts))
    state = json.loads((checkpoint(parts) / "manifest.json").read_text())["state"]
    assert state == json.loads((checkpoint(whole) / "manifest.json").read_text())["state"]


def test_it_goes_back_as_often_as_it_may(tmp_path, capsys):
    with pytest.raises(DivergedError, match="at step 8 .learning rate 0.0125., step 3 in a row"):
        run(tmp_path, 6, 8, healed_by=9)
    said = re.findall(
        r"learning rate times (\S+) from here on \(rollback (\d) of 2\)", capsys.readouterr().out
    )
    assert said == [("0.5", "1"), ("0.25", "2")] and folders(tmp_path) == ["step-00000004"]
    assert steps(rows(tmp_path)) == list(range(1, 8))  # the last of the skipped steps ended the run


def test_checkpoints_of_the_skipped_steps_are_set_aside(tmp_path):
    """And the last good step is taken anew: from its own checkpoint the run would meet the same weights
    again."""
    run(tmp_path, 5, 9, "Checkpoint.every_steps=2", "Global.max_skipped=5")
    assert rows(tmp_path)[2]["lr"] == 0.025
    assert folders(tmp_path) == sorted(
        [f"step-{step:08d}.bad" for step in (4, 6, 8)] + [f"step-{step:08d}" for step in range(2, 13, 2)]
    )


@pytest.mark.parametrize("keep", [1, 3])
def test_the_way_back_is_not_evicted_by_checkpoints_of_the_skipped_steps(tmp_path, keep):
    """Those of steps 5 to 9 are 5 skipped steps'; the last good step is 4, so the way back is 3."""
    more = [f"Checkpoint.keep={keep}", "Checkpoint.every_steps=1", "Global.max_skipped=6"]
    trainer = run(tmp_path, 5, 10, *more)
    assert trainer.part("rollback").count == 1 and rows(tmp_path)[3]["lr"] == 0.025


@pytest.mark.parametrize("first, left", [(2, []), (5, [4])])
def test_without_an_earlier_checkpoint_the_run_ends(tmp_path, first, left):
    with pytest.raises(DivergedError, match=f"at step {first + 2} "):
        run(tmp_path, first, first + 2)
    assert (checkpoints(tmp_path) if left else []) == left


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run(tmp_path, 0, 0, "Checkpoint.every_steps=2", "Global.max_steps=4")
    (checkpoint(tmp_path, 4) / "backbone.safetensors").write_bytes(b"")
    run(tmp_path, 6, 8, "Checkpoint.every_steps=5", resume=checkpoint(tmp_path, 2))
    assert rows(tmp_path)[2]["lr"] == 0.025 and "step-00000004.bad" in folders(tmp_path)


def test_skipped_steps_in_a_row_count_on_over_a_resume(tmp_path):
    run(tmp_path / "one", 3, 4, "Global.max_steps=4")
    with pytest.raises(DivergedError, match="at step 5 .learning rate 0.05., step 3 in a row"):
        run(tmp_path / "two", 5, 9, rollbacks=0, resume=checkpoint(tmp_path / "one", 4))


def test_it_does_not_go_back_behind_its_stage(tmp_path):
    run(tmp_path, 0, 0, "Checkpoint.every_steps=2", "Global.max_steps=6")
    root = tmp_path / "checkpoints"
    assert go_back(root, 5, first_step=5) is None and checkpoints(tmp_path) == [2, 4, 6]
    assert go_back(root, 5, first_step=4) == checkpoint(tmp_path, 4)
    assert folders(tmp_path) == ["step-00000002", "step-00000004", "step-00000006.bad"]
