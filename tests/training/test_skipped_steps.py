"""A step that is not finite is skipped, bit for bit. Too many in a row end the run. On one process."""

import re

import numpy as np
import paddle
import pytest

from plsc.errors import UserError
from plsc.training.amp import nonfinite
from tests.helpers.poison import everything, leave_out, poisoned, states_before_steps
from tests.helpers.tiny_runs import (
    NO_PAIRS,
    assert_same_arrays,
    checkpoint,
    checkpoints,
    make_trainer,
    rows,
    run_to_the_end,
)

WHAT = {
    "gradient": "a gradient of the backbone",
    "centres": "the head's loss, or a gradient with respect to the embeddings or the class centres,",
    "embedding": "the head's loss, or a gradient with respect to the embeddings or the class centres,",
}
KINDS = {
    "adaface": ["Head.name=dist_adaface"],
    "curricularface": ["Head.name=dist_curricularface"],
    "replicated": ["Head.name=arcface"],
    "micro-batches": ["DataLoader.Train.batch_size=4", "DataLoader.Train.global_batch=12"],
    "host bank of bfloat16": ["Head={sample_rate: 0.3, bank: host, bank_dtype: bfloat16}"],
    "disk bank": ["Head={sample_rate: 0.3, bank: disk}"],
    "disk bank of bfloat16": ["Head={sample_rate: 0.3, bank: disk, bank_dtype: bfloat16}"],
}
RUNS = {
    "momentum": ["Head.name=dist_adaface", "Global.ema=0.9", "Optimizer.clip_norm=0.5"],
    "adamw": [
        "Optimizer.name=AdamW",
        "Head.sample_rate=0.3",
        "LRScheduler.learning_rate=0.001",
    ],
    "micro-batches": [
        "DataLoader.Train.batch_size=4",
        "DataLoader.Train.global_batch=12",
        "Head.name=dist_curricularface",
    ],
    "lars": ["Optimizer.name=LARS", "Head.name=softmax"],
}


def run(trainer, output):
    """Train. Return the state before each step, and at the end."""
    states = states_before_steps(trainer)
    run_to_the_end(trainer, output)
    return [*states, everything(trainer)]


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("bad, what", WHAT.items(), ids=WHAT)
@pytest.mark.parametrize("keys", KINDS.values(), ids=KINDS)
def test_a_bad_step_changes_nothing_but_a_line_and_training_continues(
    tmp_path, capsys, keys, bad, what, value
):
    trainer = poisoned(tmp_path, {3: bad}, NO_PAIRS, *keys, "Global.max_steps=5", value=value)
    states = run(trainer, tmp_path)
    assert states[2] == states[3], [name for name in states[2] if states[2][name] != states[3][name]]
    assert states[0] != states[1] != states[2] and states[3] != states[4] != states[5]
    assert [row.get("skipped", 0) for row in rows(tmp_path)] == [0, 0, 1, 1, 1]
    assert (trainer.step, trainer.skipped, trainer._skipped_in_a_row) == (5, 1, 0)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "step 3:" in line]
    assert line.endswith(
        f"WARNING step 3: {what} is not finite (learning rate 0.05); step skipped (1 of 10 in a row)"
    )


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_a_run_with_a_bad_step_is_one_that_leaves_it_out(tmp_path, monkeypatch, keys, kernels):
    monkeypatch.setenv("PLSC_KERNELS", kernels)
    keys = [*keys, NO_PAIRS, "Global.max_steps=6", "Checkpoint.every_steps=6"]
    bad = 3
    found = poisoned(tmp_path / "run", {bad: "gradient"}, *keys)
    state = run(found, tmp_path / "run")[-1]
    other = poisoned(tmp_path / "other", {}, *keys)
    leave_out(other, bad)
    assert run(other, tmp_path / "other")[-1] == state
    assert found.skipped == 1 and found.head.bank.updates == other.head.bank.updates == 5
    assert_same_arrays(checkpoint(tmp_path / "run", 6), checkpoint(tmp_path / "other", 6))
    lines, expected = rows(tmp_path / "run"), rows(tmp_path / "other")
    assert [row["loss"] for row in lines if row["step"] != bad] == [
        row["loss"] for row in expected if row["step"] != bad
    ]
    assert [row.get("skipped", 0) for row in lines] == [int(step >= bad) for step in range(1, 7)]


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_a_stray_label_is_refused_by_name_and_changes_nothing(tmp_path, monkeypatch, kernels):
    monkeypatch.setenv("PLSC_KERNELS", kernels)
    trainer = make_trainer(tmp_path, NO_PAIRS)
    batches, states = trainer.loader.from_step, states_before_steps(trainer)

    def strayed(first):
        for batch in batches(first):
            at_5 = (np.arange(len(batch.labels)) == 5) & (batch.step == 3)
            yield batch._replace(labels=np.where(at_5, 23, batch.labels))

    trainer.loader.from_step = strayed
    message = r"sample 5 of the 12 in this step has label 23, but labels must be in \[0, 23\); 1 such samples"
    with pytest.raises(UserError, match=message):
        trainer.train(None)
    assert everything(trainer) == states[3]


def test_too_many_in_a_row_end_the_run_and_leave_the_checkpoints(tmp_path):
    bad = dict.fromkeys(range(6, 13), "gradient")
    trainer = poisoned(tmp_path, {2: "centres", **bad}, NO_PAIRS, "Global.max_skipped=3")
    line = (
        "step 8: a gradient of the backbone is not finite (learning rate 0.05), and 3 steps in a row had "
        "to be skipped; the checkpoints were not changed; lower LRScheduler.learning_rate"
    )
    with pytest.raises(
        UserError,
        match=f"^{re.escape(line)}.*; if this error returns at once, start again with Global",
    ):
        run(trainer, tmp_path)
    assert checkpoints(tmp_path) == [4]
    assert [row.get("skipped", 0) for row in rows(tmp_path)] == [0, 1, 1, 1, 1, 2, 3]


def test_skipped_steps_stand_in_the_checkpoint(tmp_path):
    poisoned(tmp_path, {2: "gradient"}, NO_PAIRS, "Global.max_steps=4").train(None)
    later = poisoned(tmp_path, {}, NO_PAIRS)
    later.resume(tmp_path / "checkpoints/step-00000004")
    assert later.skipped == 1


@pytest.mark.parametrize(
    "values, expected",
    [
        ([], True),
        ([[1.0, -2.0], [[0.0]], [[]]], True),
        ([[1e30], [1e30]], True),  # whose squares are infinite
        ([[1.0], [2.0, float("nan")]], False),
        ([[float("inf")], [1.0]], False),
        ([[float("inf"), float("-inf")]], False),
    ],
)
def test_finite(values, expected):
    assert nonfinite([paddle.to_tensor(value) for value in values]).item() is not expected
