"""Where the host would wait for the device, a step is looked at while the next one runs: the results are the same."""

import json
import signal

import numpy as np
import paddle
import pytest

from plsc.distributed.guard import Guard
from plsc.errors import UserError
from plsc.training import trainer as training
from plsc.training.copies import Copies
from plsc.utils.metrics import Metrics
from tests.poison import everything, poisoned
from tests.tiny_runs import assert_equal_runs, assert_same_arrays, checkpoint, make_trainer, rows, train

NO_PAIRS = "DataLoader.Eval.dataset=null"
PEOPLE = {"name": "tests.tiny_runs:People", "people": [f"a{number}" for number in range(9)], "weight": 3}
OTHERS = {**PEOPLE, "people": [f"b{number}" for number in range(11)], "weight": 1, "head": "own"}
RUNS = {
    "momentum": ["Head.name=dist_adaface", "Global.ema={decay: 0.9, every: 2}", "Optimizer.clip_norm=0.5"],
    "adamw": [
        *(
            "Optimizer.name=AdamW",
            "Head.sample_rate=0.3",
            "LRScheduler.learning_rate=0.001",
        ),
        f"DataLoader.Train.dataset={json.dumps([PEOPLE, OTHERS])}",
    ],
    "micro-batches": [
        "DataLoader.Train.batch_size=4",
        "DataLoader.Train.accumulate=3",
        "Head.name=dist_curricularface",
    ],
    "lars": ["Optimizer.name=LARS", "Head.name=softmax"],
}


@pytest.fixture(autouse=True)
def as_a_gpu(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")


def trained(trainer, output):
    metrics = Metrics(output)
    trainer.train(metrics)
    metrics.close()
    return everything(trainer)


@pytest.mark.parametrize("bad", [3, 1])
@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_nothing_of_a_bad_step_is_left(tmp_path, keys, bad):
    """As a run that leaves it out; its forward pass was done, its update, and the forward pass of the next step."""
    keys = [*keys, NO_PAIRS, "Global.max_steps=6", "Checkpoint.every_steps=6"]
    found = poisoned(tmp_path / "run", {bad: "gradient"}, *keys)
    state = trained(found, tmp_path / "run")
    other = poisoned(tmp_path / "other", {}, *keys)
    step = other.train_step

    def leave_out(*batch):
        if other.step == bad - 1:
            other.step += 1
        else:
            step(*batch)

    other.train_step = leave_out
    assert trained(other, tmp_path / "other") == state
    assert found.nonfinite.skipped == 1 and found.head.bank.updates == other.head.bank.updates == 5
    assert_same_arrays(checkpoint(tmp_path / "run", 6), checkpoint(tmp_path / "other", 6))
    lines, expected = rows(tmp_path / "run"), rows(tmp_path / "other")
    assert [row["loss"] for row in lines if row["step"] != bad] == [row["loss"] for row in expected]
    assert [row.get("skipped", 0) for row in lines] == [int(step >= bad) for step in range(1, 7)]


def test_rows_and_weights_are_those_of_steps_that_are_looked_at_at_once(tmp_path):
    keys = [*RUNS["adamw"], NO_PAIRS, "Global.max_steps=5"]
    late = poisoned(tmp_path / "late", {}, *keys)
    state = trained(late, tmp_path / "late")
    once = poisoned(tmp_path / "once", {}, *keys)
    step = once.train_step
    once.train_step = lambda *batch: (step(*batch), once.settle())
    assert trained(once, tmp_path / "once") == state
    assert rows(tmp_path / "late") == rows(tmp_path / "once")


@pytest.mark.parametrize("bad", ["embedding", "gradient", "centres"])
def test_line_and_dump_are_those_of_a_step_that_is_looked_at_at_once(tmp_path, capsys, bad):
    found = []
    for name, more in (("late", []), ("once", ["Global.profile=true"])):  # a profile waits after each part
        trained(poisoned(tmp_path / name, {3: bad}, NO_PAIRS, "Global.max_steps=4", *more), tmp_path / name)
        lines = [line[20:] for line in capsys.readouterr().out.splitlines() if " WARNING step 3: " in line]
        dumps = [path.read_bytes() for path in sorted((tmp_path / name / "diverged").iterdir())]
        found.append((lines, dumps))
    assert found[0] == found[1] and [len(part) for part in found[0]] == [1, 2]


def test_a_signal_stops_one_step_later_and_the_run_goes_on(tmp_path):
    keys = ["Head.name=dist_adaface", "Global.ema={decay: 0.9, every: 2}", NO_PAIRS]
    train(tmp_path / "whole", *keys)
    guard = Guard()
    trainer = make_trainer(tmp_path / "cut", *keys, signals=guard)
    forward = trainer.network.forward

    def asked(images, step):
        guard.signal = signal.SIGTERM * (step >= 4)
        return forward(images, step)

    trainer.network.forward = asked
    trained(trainer, tmp_path / "cut")
    assert (trainer.step, guard.stopped) == (6, "SIGTERM")
    train(tmp_path / "cut", *keys, resume=checkpoint(tmp_path / "cut", 6))
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")


def test_a_stray_label_is_refused_by_name_and_changes_nothing(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, NO_PAIRS)
    step, states = trainer.train_step, []

    def strayed(images, labels, indices, rate):
        states.append(everything(trainer))
        if trainer.step == 3:
            labels = np.where(np.arange(len(labels)) == 5, 23, labels)
        return step(images, labels, indices, rate)

    trainer.train_step = strayed
    message = r"sample 5 of the 12 in this step has label 23, but labels must be in \[0, 23\); 1 such samples"
    with pytest.raises(UserError, match=message):
        trainer.train(None)
    assert everything(trainer) == states[3]


def test_a_step_that_repeats_the_last_one_does_not_wait(tmp_path, monkeypatch):
    """The first one does, whose update makes the optimizer's state."""
    trainer = make_trainer(tmp_path, NO_PAIRS, "Global.max_steps=4", "Global.log_every=1")
    looked, get = [], training.LateFlags.get
    monkeypatch.setattr(training.LateFlags, "get", lambda self: looked.append(trainer.step) or get(self))
    trainer.train(None)
    assert looked == [0, 2, 3, 4]  # steps 2 and 3 while the next one runs, step 4 before it is saved


def test_copies_restore_every_dtype_and_shape(monkeypatch):
    tensors = [
        paddle.randn([2, 3]),
        paddle.arange(4),
        paddle.to_tensor(2.5),
        paddle.randn([5]),
        paddle.zeros([0, 2]),
    ]
    before = [tensor.numpy() for tensor in tensors]
    monkeypatch.setattr("plsc.training.copies.MOST", 6)
    copies = Copies(tensors)
    for tensor in tensors:
        paddle.assign(paddle.full_like(tensor, 9), output=tensor)
    copies.restore()
    for tensor, expected in zip(tensors, before):
        assert tensor.numpy().tobytes() == expected.tobytes() and list(tensor.shape) == list(expected.shape)
