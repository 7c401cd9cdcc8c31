"""A user's own parts: named in the config, called in training, saved and resumed, and what is refused."""

import weakref
from typing import ClassVar

import numpy as np
import paddle
import pytest

from plsc.config import load
from plsc.errors import UserError
from plsc.training.build import build_trainer
from plsc.training.part import Part, arrays_on_rank_0
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import (
    NO_PAIRS,
    TINY,
    assert_same_arrays,
    checkpoint,
    make_trainer,
    part_of,
    rows,
    train,
)

OWN = "Parts=[tests.training.test_part:Counting]"


class Naming(Part):
    """Its numbers are called as others of the row are."""

    name = "naming"
    numbers: ClassVar[dict] = {"step": 99, "loss": 99.0, "eval": 1, "counted": 7, "images": 5, "mine": 1}

    def update(self, run):
        pass


def test_a_parts_number_replaces_no_other(tmp_path):
    both = "Parts=[tests.training.test_part:Counting, tests.training.test_part:Naming]"
    train(tmp_path, NO_PAIRS, "Global.max_steps=2", both)
    found = rows(tmp_path)
    assert [(row["step"], row["counted"], row["mine"]) for row in found] == [(1, 1, 1), (2, 2, 1)]
    assert all(row["loss"] < 99 for row in found)
    own = {"naming/step", "naming/loss", "naming/eval", "naming/counted", "naming/images"}
    assert all({key: row[key] for key in own} == dict(zip(sorted(own), (7, 1, 5, 99, 99))) for row in found)


class Counting(Part):
    """Counts the steps, and halves the embeddings' gradient by a loss of its own."""

    name = "counting"

    def __init__(self):
        self.steps = 0

    def loss(self, batch, emb_BD):
        return emb_BD.square().mean()

    def update(self, run):
        self.steps += 1
        self.numbers = {"counted": self.steps}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Nameless(Part):
    pass


class Evaluation(Part):
    name = "evaluation"


def test_a_part_of_ones_own_takes_part_and_is_resumed_exactly(tmp_path):
    train(tmp_path / "whole", OWN, "Checkpoint.keep=9")
    found = rows(tmp_path / "whole")
    assert [row["counted"] for row in found] == list(range(1, 13)) and found[0]["loss/counting"] > 0
    train(tmp_path / "cut", OWN, resume=checkpoint(tmp_path / "whole", 4))
    assert rows(tmp_path / "cut") == found[4:]
    assert_same_arrays(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))
    assert "Parts:\n- name: tests" in load(TINY, [OWN]).to_yaml()


def test_a_checkpoint_without_it_cannot_be_taken_over_by_one_that_needs_its_state(tmp_path):
    train(tmp_path / "plain", "Global.max_steps=4", "DataLoader.Eval.dataset=null")
    said = refusal(make_trainer(tmp_path / "own", OWN).resume, checkpoint(tmp_path / "plain", 4))
    assert "manifest.json: state.counting: has no 'steps'" in said


@pytest.mark.parametrize(
    ("named", "got"),
    [
        ("tests.training.test_part:Nameless", ""),
        ("tests.training.test_part:Evaluation", "evaluation"),
        ("tests.training.test_part:Counting, tests.training.test_part:Counting", "counting"),
    ],
)
def test_a_name_that_is_taken_is_refused_before_the_first_step(named, got):
    with pytest.raises(UserError, match=rf"Parts\..: .* must have a name of its own .* \(got '{got}'\)"):
        build_trainer(load(TINY, [f"Parts=[{named}]"]), planned_ranks=1)


class Misspelled(Part):
    name = "misspelled"

    def losses(self, batch, emb_BD):
        return emb_BD.square().mean()


def test_a_part_without_a_method_of_part_is_refused():
    line = (
        "Parts.0: tests.training.test_part:Misspelled has no effect: it defines none of start, loss, "
        "before_update, update, state_dict, load_state_dict"
    )
    cfg = load(TINY, ["Parts=[tests.training.test_part:Misspelled]"])
    assert refusal(build_trainer, cfg, planned_ranks=1) == line


class Odd(Part):
    """Gives as loss and state what a test says."""

    name = "odd"
    given = state_later = None

    def loss(self, batch, emb_BD):
        return self.given

    def state_dict(self):
        return self.state

    def update(self, run):
        self.state = self.state_later


@pytest.mark.parametrize(
    ("values", "line", "step"),
    [
        ({"given": 0.0}, r"loss gave float \[\]; return a tensor with one number", 0),
        ({"given": paddle.ones([])}, "loss gave a number without a gradient, so it would not be trained", 0),
        ({"given": paddle.ones([3])}, r"loss gave Tensor \[3\]; return", 0),
        (
            {"state": {"mean": paddle.ones([1])}},
            "state_dict: Object of type Tensor is not JSON .*; return",
            0,
        ),
        ({"state": {"arrays": {"mean": [1.0]}}}, "state_dict: 'list' object has no attribute 'dtype'", 0),
        ({"state_later": {"mean": np.float32(1)}}, "state_dict: Object of type float32 is not", 2),
    ],
)
def test_an_odd_loss_or_state_ends_the_run_in_one_line(tmp_path, monkeypatch, values, line, step):
    for name, value in {"state": {}, **values}.items():
        monkeypatch.setattr(Odd, name, value, raising=False)
    trainer = make_trainer(tmp_path, "Parts=[tests.training.test_part:Odd]", "Checkpoint.every_steps=2")
    with pytest.raises(UserError, match=f"^Parts: Odd.{line}"):
        trainer.train(None)
    assert trainer.step == step and not (tmp_path / "checkpoints").exists()


class Remembering(Part):
    """Looks whether the step before is still in memory."""

    name = "remembering"

    def __init__(self):
        self.before = lambda: None
        self.kept = []

    def loss(self, batch, emb_BD):
        self.kept.append(self.before() is not None)
        self.before = weakref.ref(emb_BD)


def test_a_step_is_forgotten_before_the_next_one_takes_memory(tmp_path):
    trainer = train(tmp_path, "Parts=[tests.training.test_part:Remembering]", "Global.max_steps=4")
    assert part_of(trainer, "remembering").kept == [False] * 4


class GradientNorm(Part):
    """Logs the norm of the backbone's gradient before it is clipped."""

    name = "gradient_norm"

    def before_update(self, run):
        squares = [p.grad.square().sum() for p in run.backbone.parameters() if p.grad is not None]
        self.numbers = {"gradient_norm": paddle.add_n(squares).sqrt()}


def test_a_part_can_log_the_gradient_norm_before_clipping(tmp_path):
    norm = "Parts=[tests.training.test_part:GradientNorm]"
    short = ["Global.max_steps=1", "DataLoader.Eval.dataset=null", norm]
    train(tmp_path / "plain", *short)
    train(tmp_path / "clipped", *short, "Optimizer.clip_norm=0.001")
    found = [rows(tmp_path / name)[0]["gradient_norm"] for name in ("plain", "clipped")]
    assert found[0] == found[1] > 0.001


def test_the_other_ranks_copy_no_weights(monkeypatch):
    tensors = {"weight": paddle.ones([2])}
    assert list(arrays_on_rank_0(tensors)) == ["weight"]
    monkeypatch.setattr("plsc.distributed.rank", lambda: 1)
    assert arrays_on_rank_0(tensors) == {}
