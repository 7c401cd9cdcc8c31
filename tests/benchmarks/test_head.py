"""The head's benchmark: its rows add up, and the dense head has the loss of ours."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import head, machine
from plsc.config import load
from plsc.heads.reference import DenseHead, arcface
from tests.helpers.bounds import assert_within, perturbed

pytestmark = pytest.mark.slow

SMALL = ["--dim", "16", "--batch", "8", "--threads", "1"]


def test_the_numbers_add_up(tmp_path, capsys):
    row = tmp_path / "row.json"
    sizes = ["--classes", "300", "--rate", "0.5", "--runs", "2", "-o", "Head.scale=8.0"]
    assert benchmark.main(["head", *SMALL, *sizes, "--row", str(row)]) == 0
    found = json.loads(row.read_text())
    asked = {
        "classes": 300,
        "rate": 0.5,
        "ranks": 1,
        "dim": 16,
        "batch": 8,
        "threads": 1,
        "override": ["Head.scale=8.0"],
    }
    assert found.items() >= asked.items()
    assert 150 <= found["selected"] <= 158
    assert found["step_over_products"] == found["step_seconds"] / found["products_seconds"] > 0
    assert found["step_over_dense"] == found["step_seconds"] / found["dense_seconds"] > 0
    shown = head.show({**machine.describe_machine(), "rows": [found]})
    assert shown.splitlines()[-1].split()[:6] == ["300", "0.5000", "1", "1", "8", "16"]
    assert head.plot({"rows": [found, dict(found, classes=30, dense_seconds=None)]}).startswith(b"\x89PNG")


def test_the_dense_head_has_the_loss_of_ours():
    cfg = load(
        None, ["Model.embedding_size=16", "Head.scale=16.0"]
    )  # at 64 Paddle's own loss cuts logits off
    trial = head.Trial(cfg, 50, 8)
    dense = head.Dense(cfg, 50, trial)
    dense.centres.set_value(np.array(trial.head.bank.state()["centres"]))
    centres, label = trial.head.bank.state()["centres"], trial.label.numpy()

    def loss(emb, centres):
        reference = DenseHead(centres, None, (arcface, 0.5), cfg.Head.scale)
        return reference.loss_and_gradients(emb, label)[0].mean()

    want, bound = perturbed(loss, trial.emb.numpy(), centres)
    assert_within(trial.head(trial.emb, trial.label).loss.item(), want, bound)
    assert_within(dense.loss().item(), want, bound)
    before = dense.loss().item()
    dense.step()
    assert dense.loss().item() < before and not trial.emb.grad.numpy().any()


def test_products_with_too_many_logits_are_made_in_part(monkeypatch):
    assert head.bare_products(4, 8, 100)() == 1
    monkeypatch.setattr(head, "_ONE_ROW", 4 * 4 * 25)
    assert head.bare_products(4, 8, 100)() == 4
