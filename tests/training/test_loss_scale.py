"""The gradients' scale in float16: how it changes, and that it has no other visible effect."""

import pytest

from plsc.checkpoint.store import set_aside_after
from plsc.errors import UserError
from plsc.training.amp import GROWTH_STEPS, INITIAL, LossScale
from plsc.training.metrics import read_metrics
from tests.helpers.poison import poisoned, states_before_steps
from tests.helpers.tiny_runs import assert_same_arrays, checkpoint, part_of, run_to_the_end, train

FLOAT16 = "Global.amp=float16"
KEYS = ["DataLoader.Eval.dataset=null", "Global.max_steps=6", "LRScheduler.name=constant"]


@pytest.fixture(autouse=True)
def as_devices_do(monkeypatch):
    """With the kernels a CPU refuses float16. Without them it computes a network in float32, and still
    scales."""
    monkeypatch.setenv("PLSC_KERNELS", "0")


def test_the_scale_halves_at_once_and_doubles_after_2000_good_steps():
    scale = LossScale()
    assert scale.halve()
    for _ in range(GROWTH_STEPS - 1):
        scale.update(None)
    assert (scale.scale, scale.overflows) == (INITIAL / 2, 1)
    scale.update(None)
    assert (scale.scale, scale.good_steps) == (INITIAL, 0)
    scale.update(None)
    assert scale.halve()
    assert (scale.scale, scale.good_steps, scale.overflows) == (INITIAL / 2, 0, 2)
    while scale.halve():
        pass
    assert scale.scale == 1.0


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["DataLoader.Train={global_batch: 12, batch_size: 4}", "Model.recompute=[stages]"],
        ["Optimizer.clip_norm=0.5", "Optimizer.name=AdamW", "LRScheduler.learning_rate=0.001"],
    ],
    ids=["as it is", "micro-batches", "clipped"],
)
def test_scaling_by_a_power_of_two_changes_no_bit(tmp_path, more):
    """The backbone computes in float32. Apart from the head's products, amp only scales here."""
    keys = [*KEYS, *more]
    train(tmp_path / "plain", *keys)
    trainer = train(tmp_path / "scaled", *keys, FLOAT16, "Head.compute_dtype=float32")
    assert (part_of(trainer, "loss_scale").scale, part_of(trainer, "loss_scale").good_steps) == (INITIAL, 6)
    assert_same_arrays(checkpoint(tmp_path / "scaled", 6), checkpoint(tmp_path / "plain", 6))


@pytest.mark.parametrize(("dtype", "of_head"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_the_head_has_the_dtype_of_amp_if_it_is_bfloat16_which_needs_no_scale(tmp_path, dtype, of_head):
    trainer = train(tmp_path / "amp", *KEYS, f"Global.amp={dtype}", "Global.max_steps=1")
    assert trainer.head.spec.compute_dtype == of_head
    assert any(part.name == "loss_scale" for part in trainer.parts) == (dtype == "float16")


def test_an_overflow_leaves_the_step_out(tmp_path):
    """It is not counted as a skipped step."""
    output = tmp_path / "run"
    keys = [*KEYS, FLOAT16, "Head.name=dist_adaface", "Global.max_skipped=1", "Global.log_every=1"]
    trainer = poisoned(output, {3: "gradient", 4: "gradient"}, *keys, value="inf")
    states = states_before_steps(trainer)
    run_to_the_end(trainer, output)
    assert states[1] != states[2] == states[3] == states[4] != states[5]
    assert part_of(trainer, "loss_scale").state_dict() == {
        "scale": INITIAL / 4,
        "good_steps": 2,
        "overflows": 2,
    }
    assert (trainer.skipped, trainer._skipped_in_a_row) == (0, 0)
    rows = [(row["loss_scale"] / INITIAL, row["overflows"]) for row in read_metrics(output / "metrics.jsonl")]
    assert rows == [(1, 0), (1, 0), (0.5, 1), (0.25, 2), (0.25, 2), (0.25, 2)]


@pytest.mark.parametrize("bad", ["embedding", "centres"])
def test_what_is_not_scaled_cannot_overflow(tmp_path, bad):
    trainer = poisoned(tmp_path, {3: bad}, *KEYS, FLOAT16, value="inf")
    trainer.train(None)
    assert (
        trainer.skipped,
        part_of(trainer, "loss_scale").overflows,
        part_of(trainer, "loss_scale").scale,
    ) == (1, 0, INITIAL)


def test_gradients_that_overflow_at_scale_1_diverge(tmp_path):
    """A NaN that no scale causes ends the run after 16 steps without one."""
    keys = [*KEYS, FLOAT16, "Global.max_steps=40", "Global.max_skipped=2"]
    trainer = poisoned(tmp_path, dict.fromkeys(range(2, 40), "gradient"), *keys)
    with pytest.raises(
        UserError, match="^step 19: a gradient of the backbone is not finite .* and 2 steps in a row"
    ):
        trainer.train(None)
    assert (part_of(trainer, "loss_scale").scale, part_of(trainer, "loss_scale").overflows) == (
        1.0,
        16,
    )


def test_the_scale_comes_back_with_a_checkpoint(tmp_path):
    keys = [*KEYS, FLOAT16, "Checkpoint.every_steps=1", "Checkpoint.keep=9"]
    trainer = poisoned(tmp_path / "run", {2: "gradient", 6: "gradient"}, *keys, value="inf")
    trainer.train(None)
    assert part_of(trainer, "loss_scale").state_dict() == {
        "scale": INITIAL / 4,
        "good_steps": 0,
        "overflows": 2,
    }
    set_aside_after(tmp_path / "run/checkpoints", 4)
    trainer.resume(checkpoint(tmp_path / "run", 4))
    assert part_of(trainer, "loss_scale").state_dict() == {
        "scale": INITIAL / 2,
        "good_steps": 2,
        "overflows": 1,
    }
    trainer.train(None)
    assert part_of(trainer, "loss_scale").state_dict() == {
        "scale": INITIAL / 4,
        "good_steps": 0,
        "overflows": 2,
    }
