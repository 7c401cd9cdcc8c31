"""The trainer on one process: its step against numpy, its calendar, resuming bit for bit, and what it
refuses."""

import contextlib
import shutil
from itertools import islice

import numpy as np
import paddle
import pytest

from plsc.checkpoint.store import Checkpoint, SaveError, find, set_aside_after
from plsc.config import load
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from plsc.errors import CorruptImageError
from plsc.training.build import build_trainer
from plsc.training.dry_run import plan_lines
from plsc.training.evaluator import Evaluator
from plsc.training.metrics import Metrics, read_metrics
from tests.heads import reference
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import (
    IMAGE_SHAPE,
    NO_PAIRS,
    Linear,
    NoisePairs,
    assert_same_arrays,
    checkpoint,
    checkpoints,
    make_trainer,
    rows,
    run_to_the_end,
    steps,
    train,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run of 12 steps, all its checkpoints kept."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, "Checkpoint.keep=9")
    return folder


def test_a_checkpoint_has_the_names_of_the_classes(tmp_path):
    trainer = make_trainer(tmp_path, NO_PAIRS)
    trainer.checkpoints.save(trainer)
    assert Checkpoint.open(checkpoint(tmp_path, 0)).classes() is None
    shutil.rmtree(checkpoint(tmp_path, 0))
    trainer.dataset.identities = np.array([f"person {number}" for number in range(23)])
    trainer.checkpoints.save(trainer)
    assert Checkpoint.open(checkpoint(tmp_path, 0)).classes() == trainer.dataset.identities.tolist()


# ---- the step


def test_steps_equal_momentum_sgd_in_float64(tmp_path):
    """Three steps of a linear backbone and the head, with warm-up, decay and momentum, written out in
    numpy."""
    paddle.seed(0)
    net = Linear()
    weight, bias = net.linear.weight.numpy(), net.linear.bias.numpy()
    overrides = [
        "Global.max_steps=3",
        "Optimizer.weight_decay=0.1",
        "LRScheduler.warmup_epochs=0.2",
        NO_PAIRS,
    ]
    trainer = make_trainer(tmp_path, *overrides, backbone=net)
    data = Synthetic(23, 5, IMAGE_SHAPE, seed=3)
    batches = [*islice(Loader(data, 12, 0, 1, seed=3).from_step(0), 3)]

    def expected(weight, bias, centres):
        optimizer = reference.DenseMomentum(0.9, 0.1)
        dense = reference.DenseHead(centres, None, (reference.arcface, 0.5), 16.0, optimizer)
        speed_w, speed_b, losses, accuracies = 0.0, 0.0, [], []
        for step, (images, labels, *_) in enumerate(batches):
            x = (images.reshape(len(images), -1) - 127.5) / 127.5
            emb = x @ weight + bias
            loss, demb, dcentres, _ = dense.loss_and_gradients(emb, labels)
            losses.append(loss.mean())
            accuracies.append(dense.correct(emb, labels).mean())
            speed_w = 0.9 * speed_w + x.T @ demb + 0.1 * weight
            speed_b = 0.9 * speed_b + demb.sum(0)
            rate = 0.05 * min(1.0, (step + 1) / 3)
            weight, bias = weight - rate * speed_w, bias - rate * speed_b
            dense.step(dcentres, None, rate)
        return losses, accuracies, weight, bias, dense.w

    want, bound = perturbed(expected, weight, bias, trainer.head.bank.state()["centres"])
    run_to_the_end(trainer, tmp_path)
    found = rows(tmp_path)
    assert [row["lr"] for row in found] == pytest.approx([0.05 / 3, 0.1 / 3, 0.05])
    weights = [net.linear.weight.numpy(), net.linear.bias.numpy(), trainer.head.bank.state()["centres"]]
    losses, accuracies = ([row[key] for row in found] for key in ("loss", "accuracy"))
    assert_within([losses, accuracies, *weights], want, bound)


# ---- the calendar


@pytest.mark.parametrize(
    "overrides, expected",  # steps and epochs of the verifications. An epoch has 10 steps
    [
        (["Global.max_steps=12"], [(12, 2)]),
        (["Global.max_steps=12", "Global.eval_every=1"], [(10, 1), (12, 2)]),
        (["Global.epochs=2", "Global.max_steps=null", "Global.eval_every=2"], [(20, 2)]),
        (["Global.max_steps=12", "Global.eval_every_steps=5"], [(5, 1), (10, 1), (12, 2)]),
    ],
)
def test_when_it_verifies(tmp_path, overrides, expected):
    train(tmp_path, *overrides)
    found = rows(tmp_path, evaluations=True)
    assert [(row["step"], row["epoch"]) for row in found] == expected
    for row in found:
        assert row["eval"] == "noise pairs" and row["pairs"] == 40
        assert 0 <= row["accuracy"] <= 1 and row["std"] >= 0 and -1 <= row["threshold"] <= 1


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["Checkpoint.keep=9"], [4, 8, 10, 12]),
        (["Checkpoint.keep=3"], [8, 10, 12]),
        (["Checkpoint.keep=1", "Checkpoint.every_steps=null"], [12]),
    ],
)
def test_when_it_saves(tmp_path, overrides, expected):
    train(tmp_path, NO_PAIRS, *overrides)
    assert checkpoints(tmp_path) == expected


@pytest.mark.parametrize(
    "every, expected, images",  # the last step of the epoch has 7 samples
    [(1, range(1, 13), [*[12] * 9, 7, 12, 12]), (5, [5, 10, 12], [60, 55, 24])],
)
def test_when_it_writes_a_row(tmp_path, monkeypatch, every, expected, images):
    monkeypatch.setattr("time.monotonic", lambda: 0.0)  # the time of a row is then 1e-9 s
    train(tmp_path, NO_PAIRS, f"Global.log_every={every}")
    rates = [row["images_per_second"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert [1e-9 * rate for rate in rates] == pytest.approx(images)
    found = rows(tmp_path)
    assert steps(found) == list(expected)
    assert [row["epoch"] for row in found] == [1 if step <= 10 else 2 for step in expected]
    assert set(found[0]) == {"step", "epoch", "loss", "lr", "accuracy"}  # and what `rows` takes out


# ---- the best checkpoint


class Scripted(Evaluator):
    """Finds values that are set beforehand, a value a step."""

    values: dict

    def evaluate(self, step=0, epoch=None, metrics=None):
        self.rows = {self.main: {"accuracy": self.values[step], "threshold": step / 100}}
        self.step = step
        return True


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """A run whose evaluations find these values at steps 1, 2, ..."""

    def run(values, *overrides, resume=None):
        Scripted.values = dict(enumerate(values, start=1))
        monkeypatch.setattr("plsc.training.build.Evaluator", Scripted)
        overrides = ["Global.eval_every_steps=1", "Checkpoint.every_steps=4", "Checkpoint.keep=1", *overrides]
        trainer = make_trainer(tmp_path, *overrides)
        if resume:
            trainer.resume(resume)
        trainer.train(None)
        return trainer

    return run


FALLING = [0.2, 0.6, 0.8, 0.7, 0.8, *[0.5] * 7]


def test_the_best_checkpoint_stays_beside_the_newest(scripted, tmp_path):
    trainer = scripted(FALLING)
    assert checkpoints(tmp_path) == [3, 12], "the first of two equal ones, though no save was due"
    expected = {"step": 3, "set": "noise pairs, 80 images", "metric": "accuracy", "value": 0.8}
    assert trainer.checkpoints.best() == expected
    saved = [Checkpoint.open(checkpoint(tmp_path, step)) for step in (3, 12)]
    assert [one.threshold(flip=False) for one in saved] == [0.03, 0.12]
    assert saved[0].threshold(flip=True) is None


@pytest.mark.parametrize("values, best", [([0.75, 0.75, 0.75, 0.79], 3), ([0.75, 0.95, 0.9, 0.79], 10)])
def test_a_resumed_run_knows_the_best_of_before(scripted, tmp_path, values, best):
    scripted(FALLING, "Global.max_steps=8")
    assert checkpoints(tmp_path) == [3, 8]
    later = scripted([0] * 8 + values, resume=checkpoint(tmp_path, 8))
    assert later.checkpoints.best()["step"] == best and checkpoints(tmp_path) == [best, 12]


def test_after_going_back_the_best_is_one_that_exists(scripted, tmp_path):
    rising = [number / 100 for number in range(1, 13)]
    scripted(rising, "Checkpoint.keep=3")
    assert checkpoints(tmp_path) == [10, 11, 12] and find(tmp_path / "checkpoints", "best").name[-2:] == "12"
    set_aside_after(tmp_path / "checkpoints", 10)
    assert find(tmp_path / "checkpoints", "best") == checkpoint(tmp_path, 10)
    later = scripted([0.0] * 10 + [0.09, 0.11], "Checkpoint.keep=3", resume=checkpoint(tmp_path, 10))
    assert later.checkpoints.best()["step"] == 12, "it is compared with step 10, not with the lost 0.12"


def test_a_step_is_saved_before_it_is_evaluated(tmp_path, monkeypatch):
    saved_at = []

    class Watching(Scripted):
        def evaluate(self, step=0, epoch=None, metrics=None):
            saved_at.append((step, checkpoint(tmp_path, step).is_dir()))
            return super().evaluate(step, epoch, metrics)

    monkeypatch.setattr("plsc.training.build.Evaluator", Watching)
    Scripted.values = dict.fromkeys(range(13), 0.5)
    make_trainer(tmp_path, "Global.eval_every=1", "Global.eval_every_steps=3").train(None)
    assert saved_at == [(step, True) for step in (3, 6, 9, 10, 12)]


def test_a_run_that_ended_before_its_evaluation_evaluates_when_it_is_resumed(scripted, tmp_path):
    scripted([0.5] * 12, "Global.max_steps=8")
    (checkpoint(tmp_path, 8) / "evaluation.json").unlink()
    later = scripted([0] * 7 + [0.9] + [0.1] * 4, resume=checkpoint(tmp_path, 8))
    assert later.checkpoints.best()["step"] == 8


def test_an_evaluation_that_is_made_again_has_its_rows_once(tmp_path):
    """The run was killed between the rows of the evaluation and its file beside the checkpoint."""
    train(tmp_path, "Global.max_steps=8", "Global.eval_every_steps=4")
    before = rows(tmp_path, evaluations=True)
    (checkpoint(tmp_path, 8) / "evaluation.json").unlink()
    trainer = make_trainer(tmp_path, "Global.max_steps=8", "Global.eval_every_steps=4")
    trainer.resume(checkpoint(tmp_path, 8))
    with contextlib.closing(Metrics(tmp_path, step=8)) as metrics:
        trainer.train(metrics)
    assert rows(tmp_path, evaluations=True) == before and steps(before) == [4, 8]
    assert steps(rows(tmp_path)) == [*range(1, 9)] and (checkpoint(tmp_path, 8) / "evaluation.json").exists()


class MorePairs(NoisePairs):
    def __init__(self):
        super().__init__(num_pairs=45)


@pytest.mark.parametrize(
    "name, said",
    [
        ("test_evaluator:NoiseTemplates", "noise templates, "),
        ("test_trainer:MorePairs", "noise pairs, 90 im"),
    ],
)
def test_another_main_set_starts_new(scripted, tmp_path, name, said):
    scripted([0.9] * 12, "Global.max_steps=8")
    other = f'DataLoader.Eval.dataset={{name: "tests.training.{name}"}}'
    best = scripted([0.1] * 12, other, resume=checkpoint(tmp_path, 8)).checkpoints.best()
    assert (best["step"], best["value"]) == (9, 0.1) and best["set"].startswith(said)


def test_what_has_no_score_is_never_the_best(scripted, tmp_path):
    assert scripted([None] * 12).checkpoints.best() is None and checkpoints(tmp_path) == [12]


def test_a_best_checkpoint_that_cannot_be_written_is_not_the_best(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    monkeypatch.setattr("plsc.training.build.Evaluator", Scripted)
    Scripted.values = dict(enumerate(FALLING, start=1))
    trainer = make_trainer(tmp_path, "Global.eval_every_steps=1", "Global.max_steps=2")
    assert "it was the last step" in refusal(trainer.train, None, kind=SaveError)
    assert trainer.checkpoints.best() is None


def test_a_search_counts_by_rank_1(tmp_path):
    trainer = train(tmp_path, 'DataLoader.Eval.dataset={name: "tests.training.test_evaluator:NoiseGallery"}')
    best = trainer.checkpoints.best()
    assert best["metric"] == "rank1" and best["value"] == trainer.evaluator.row["rank1"]
    assert Checkpoint.open(checkpoint(tmp_path)).threshold(flip=False) is None


# ---- the same again


def test_a_seed_decides_everything(whole, tmp_path):
    train(tmp_path / "again")
    assert rows(tmp_path / "again") == rows(whole)
    assert_same_arrays(checkpoint(whole), checkpoint(tmp_path / "again"))
    train(tmp_path / "other", "Global.seed=4")
    assert not {row["loss"] for row in rows(tmp_path / "other")} & {row["loss"] for row in rows(whole)}


@pytest.mark.parametrize("start", [4, 10])  # within an epoch, and at its end
def test_a_resumed_run_equals_an_uninterrupted_one(whole, tmp_path, start):
    trainer = train(tmp_path, resume=checkpoint(whole, start))
    assert trainer.step == 12
    assert rows(tmp_path) == [row for row in rows(whole) if row["step"] > start]
    assert rows(tmp_path, evaluations=True) == rows(whole, evaluations=True)
    assert_same_arrays(checkpoint(whole), checkpoint(tmp_path))


def test_the_plan_of_a_resumed_run_says_the_rate_before_and_now(tmp_path):
    cosine = ["LRScheduler.name=cosine", NO_PAIRS]
    train(tmp_path, *cosine, "Global.max_steps=8")
    later = make_trainer(tmp_path, *cosine, "Global.max_steps=80")
    assert "plan: lr       0.05 at first, 1.93e-05 in the last step" in plan_lines(later)
    later.resume(checkpoint(tmp_path, 8))
    line = "plan: lr       0.0488 in step 9 (0.0019 in the step before), 1.93e-05 in the last step"
    assert line in plan_lines(later)


def test_a_resumed_run_keeps_what_the_evaluation_before_gave(whole, tmp_path):
    before = Checkpoint.open(checkpoint(whole)).threshold(flip=False)
    assert before is not None
    trainer = make_trainer(tmp_path)
    trainer.resume(checkpoint(whole))
    trainer.checkpoints.save(trainer)
    assert Checkpoint.open(checkpoint(tmp_path)).threshold(flip=False) == before


# ---- damaged data


def test_too_many_corrupt_images_end_a_run_before_its_first_step(tmp_path):
    damaged = 'DataLoader.Train.dataset={name: "tests.helpers.tiny_runs:DamagedSynthetic", damaged: 2}'
    trainer = make_trainer(tmp_path, NO_PAIRS, damaged)
    said = refusal(trainer.train, None, kind=CorruptImageError)
    assert said.startswith("2 of 115 images tried cannot be decoded: synthetic class") and trainer.step == 0


def test_too_many_corrupt_images_end_a_run_at_the_step_that_meets_them(tmp_path):
    """1 in 100 may be replaced. The images tried before the first step were sound, as in a larger set."""
    damaged = 'DataLoader.Train.dataset={name: "tests.helpers.tiny_runs:DamagedSynthetic", damaged: 2}'
    trainer = make_trainer(tmp_path, NO_PAIRS, damaged, "Checkpoint.every_steps=1", "Checkpoint.keep=99")
    trainer.loader.probe = lambda: None
    said = refusal(trainer.train, None, kind=CorruptImageError)
    assert said.startswith("2 images of an epoch cannot be decoded: synthetic class 0, sample ")
    assert 0 < trainer.step < 10 and checkpoints(tmp_path) == [*range(1, trainer.step + 1)]


# ---- what it refuses


@pytest.mark.parametrize(
    "override, difference",
    [
        (
            "DataLoader.Train.dataset.num_classes=24",
            "its number of classes is 23, this run's 24: resume with",
        ),
        ("Model.widths=[4, 7]", " in this run (one of 16 "),
    ],
)
def test_a_checkpoint_of_another_problem(whole, tmp_path, override, difference):
    line = refusal(make_trainer(tmp_path, override).resume, checkpoint(whole))
    assert line.startswith("checkpoint step-00000012") and difference in line


def test_a_checkpoint_of_another_global_batch(whole, tmp_path):
    fewer = make_trainer(tmp_path, "DataLoader.Train.batch_size=6")
    assert refusal(fewer.resume, checkpoint(whole)) == (
        "checkpoint step-00000012 was made with global_batch 12, this run has 6: resume "
        "with the same, or start a new run with Global.init_from in another Global.output_dir"
    )
    keys = ["DataLoader.Train.batch_size=4", "DataLoader.Train.global_batch=12"]
    trainer = make_trainer(whole / "more", *keys)
    trainer.resume(checkpoint(whole))
    assert trainer.loader.global_batch == 12 and trainer.steps_per_epoch == 10


def test_a_batch_norm_of_one_sample_is_refused(tmp_path):
    line = "DataLoader.Train.batch_size: must be at least 2 for a network with batch norm"
    assert line in refusal(make_trainer, tmp_path, "DataLoader.Train.batch_size=1")
    data = "DataLoader.Train.dataset={name: Synthetic, num_classes: 3, images_per_class: 4}"
    of_two_ranks = load(None, [data, "DataLoader.Train.batch_size=1"])
    assert line in refusal(build_trainer, of_two_ranks, planned_ranks=2)
    make_trainer(tmp_path, "DataLoader.Train.batch_size=1", backbone=Linear())


def test_the_head_is_given_the_number_of_each_step(tmp_path):
    """A bank that rounds uses it to draw. So does the sampling."""
    trainer = make_trainer(tmp_path, NO_PAIRS, "Global.max_steps=3")
    update = trainer.head.update
    numbers = []
    trainer.head.update = lambda lr, step: (numbers.append(step), update(lr, step))
    trainer.train(metrics=None)
    assert numbers == [0, 1, 2]
