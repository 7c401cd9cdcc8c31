"""NaN in weights, statistics and centres ends a run with one line, whatever hides it. On one process."""

import pytest

from plsc import cli
from plsc.errors import UserError
from tests.helpers.broken_weights import PLACES, broken
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("place", PLACES)
def test_a_weight_that_is_not_finite_ends_the_run(tmp_path, monkeypatch, place, kernels):
    monkeypatch.setenv("PLSC_KERNELS", kernels)
    said = refusal(broken(tmp_path, place).train, None)
    assert PLACES[place].format(rank=0) in said
    assert "; the checkpoints were not changed; lower LRScheduler.learning_rate" in said
    assert place != "centres" or said.startswith("step 3: the centre of class 0, on rank 0, ")


def test_it_is_not_saved(tmp_path):
    trainer = broken(tmp_path, "conv.weight", 0, "Checkpoint.every_steps=2")
    assert refusal(trainer.train, None).startswith("after step 2: conv.weight of the backbone, on rank 0, ")
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("bank", ["device", "host", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_centre_is_not_saved_either(tmp_path, capsys, bank, dtype):
    if (bank, dtype) == ("device", "bfloat16"):
        pytest.skip("no such bank")
    more = [f"Head.bank={bank}", f"Head.bank_dtype={dtype}", "Checkpoint.every_steps=2"]
    said = refusal(broken(tmp_path, "centres", 0, *more).train, None)
    assert said.startswith("step 3: the centre of class 0, on rank 0, is not finite; ")
    assert "rank 0: UserError: a number of centres is not finite; last good: none" in capsys.readouterr().out
    assert not [*(tmp_path / "checkpoints").glob("step-*")]


def test_a_command_ends_with_the_line_and_code_2(tmp_path, capsys):
    part = 'Parts=[{name: "tests.helpers.broken_weights:Break", place: centres}]'
    assert cli.main(["train", "-c", str(TINY), "-o", f"Global.output_dir={tmp_path}", part]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR step 3: the centre of class 0, on rank 0, is not finite; the ")


def test_a_run_that_took_no_step_is_no_success(tmp_path, monkeypatch):
    trainer = broken(tmp_path, "")
    select = trainer.head.bank.select

    def selected(index_K):
        selection = select(index_K)
        gradients = selection.gradients
        selection.gradients = lambda: {name: grad * float("nan") for name, grad in gradients().items()}
        return selection

    trainer.head.bank.select = selected
    trainer.total_steps = 2
    with pytest.raises(UserError, match="^all 2 steps were skipped, so nothing was trained; "):
        trainer.train(None)


def test_a_dead_network_is_named_once(tmp_path, capsys):
    trainer = broken(tmp_path, "")
    for layer in (trainer.backbone.linear, trainer.backbone.norm):
        layer.weight.set_value(layer.weight * 0.0)
    trainer.optimizer.step = lambda rate: None
    trainer.train(None)
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    (line,) = [line for line in lines if "all samples have the same embedding" in line]
    assert "WARNING step 1: " in line
