"""What a head costs: the computed memory against what the bank holds, and a trial's steps that train."""

import numpy as np
import pytest

from plsc import kernels
from plsc.config import load
from plsc.heads.blocks import plan_blocks
from plsc.heads.cost import Trial, memory
from plsc.kernels import softmax

DIM = "Model.embedding_size=16"


@pytest.mark.parametrize(
    "head",
    [
        "{name: dist_arcface}",
        "{name: dist_softmax, bias: true}",
        "{name: arcface, sub_centres: 3}",
        "{name: dist_cosface, sample_rate: 0.2}",
    ],
)
def test_what_rests_and_the_gradient_are_as_large_as_computed(head):
    cfg = load(None, [f"Head={head}", DIM])
    trial = Trial(cfg, 300, 8)
    trial.step()
    bank = trial.head.bank
    found = memory(cfg.Head, 300, bank.selected, 16, 8)
    at_rest = sum(array.nbytes for array in bank.state().values())
    assert at_rest == found["centres"] + found["momentum"]
    assert sum(grad.size * 4 for grad in bank.gradients().values()) == found["gradient"]


@pytest.mark.parametrize("budget", [0.1, 64])
def test_the_blocks_stay_within_the_budget(budget, monkeypatch):
    cfg = load(None, [f"Head.logits_budget_mb={budget}"]).Head
    monkeypatch.setenv("PLSC_KERNELS", "0")
    found = memory(cfg, 100_000, 100_000, 512, 64)["blocks"]
    block, kept = plan_blocks(64, 100_000, 512, 1, int(budget * 2**20))
    assert found == 4 * block * (3 * 64 + 4 * 512) + 4 * 64 * 100_000 * kept <= budget * 2**20


def test_with_kernels_each_thread_has_blocks_and_a_margin_that_hooks_in_has_none():
    if not kernels.multiplies():
        pytest.skip("there are no kernels with products here")

    def blocks(threads, **keys):
        cfg = load(
            None, [f"Head={{logits_budget_mb: 1, {', '.join(f'{k}: {v}' for k, v in keys.items())}}}"]
        ).Head
        return memory(cfg, 100_000, 2000, 64, 32, threads)["blocks"]

    of_thread = 4 * (softmax.BLOCK * (64 + 32) + 32 * 64)
    assert blocks(1) == 4 * 32 * 2000 + of_thread and blocks(3) - blocks(1) == 2 * of_thread
    assert blocks(3, filter_above=0.4) == blocks(1, filter_above=0.4) != blocks(1)


def test_a_trial_trains():
    trial = Trial(load(None, [DIM, "Head.scale=8.0"]), 40, 8)
    before = trial.head.bank.state()["centres"].copy()
    first = trial.head(trial.emb, trial.label).loss.item()
    for _ in range(5):
        trial.step()
    assert trial.number == 5 and trial.head(trial.emb, trial.label).loss.item() < first
    assert not np.array_equal(trial.head.bank.state()["centres"], before)
    assert not trial.emb.grad.numpy().any()
