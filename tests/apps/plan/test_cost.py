"""What a head costs: the computed memory against what the bank holds, and a trial's steps that train."""

import os

import numpy as np
import pytest

from plsc import native as kernels
from plsc.apps.plan.calibration import Case
from plsc.apps.plan.cost import Trial
from plsc.apps.plan.sizes import of_old_classes
from plsc.config import load
from plsc.heads.blocks import plan_blocks
from plsc.native.heads import softmax
from plsc.training.head_bytes import bank_bytes, head_bytes

DIM = "Model.embedding_size=16"


@pytest.mark.parametrize("optimizer", ["Momentum", "AdamW", "LARS"])
@pytest.mark.parametrize(
    "head",
    [
        "{name: dist_arcface}",
        "{name: dist_softmax, bias: true}",
        "{name: arcface, sub_centres: 3}",
        "{name: dist_cosface, sample_rate: 0.2}",
    ],
)
def test_stored_rows_and_gradient_are_as_large_as_computed(head, optimizer):
    cfg = load(None, [f"Head={head}", f"Optimizer.name={optimizer}", DIM])
    trial = Trial(cfg, 300, 8)
    trial.step()
    bank = trial.head.bank
    found = head_bytes(cfg, 300, bank.selected, 16, 8)
    stored = sum(array.nbytes for array in bank.state().values())
    assert stored == sum(found[name] for name in ("centres", *bank.rule.moments))
    assert sum(grad.size * 4 for grad in bank.gradients().values()) == found["gradient"]


@pytest.mark.parametrize(
    "head",
    [
        "{bank: host, bank_dtype: bfloat16, sample_rate: 0.2}",
        "{name: arcface, sub_centres: 3}",
        "{name: softmax, bias: true}",
    ],
)
def test_the_head_of_old_classes_is_planned_as_it_is(head):
    cfg = load(None, [f"Head={head}", "Global.compatible_with=there", DIM])
    trial = Trial(cfg, 300, 8)
    trial.step()
    second = trial.of_old_classes
    bank = second.bank
    before = bank.state()["centres"].copy()
    trial.step()
    assert (bank.state()["centres"] == before).all()
    found = head_bytes(of_old_classes(Case(cfg, 300, 1, 8)).cfg, 300, bank.selected, 16, 8, second=True)
    stored = sum(array.nbytes for array in bank.state().values())
    assert found["centres"] == stored == 4 * 300 * 16
    assert sum(grad.size * 4 for grad in bank.gradients().values()) == found["gradient"]
    assert found.keys() <= {"centres", "gradient", "blocks", "embeddings"}


@pytest.mark.parametrize("optimizer", ["Momentum", "AdamW"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bank", ["host", "disk"])
def test_an_offloaded_bank_is_stored_where_it_says(bank, dtype, optimizer, tmp_path):
    keys = [f"Head.bank={bank}", f"Head.bank_dtype={dtype}", "Head.sample_rate=0.2"]
    keys.append(f"Optimizer.head={{name: {optimizer}}}")
    cfg = load(None, [*keys, DIM, *([f"Head.bank_folder={tmp_path}"] if bank == "disk" else [])])
    trial = Trial(cfg, 300, 8)
    trial.step()
    found = head_bytes(cfg, 300, trial.head.bank.selected, 16, 8)
    state = trial.head.bank.state().values()
    stored = sum(np.prod(array.shape) * array.dtype.itemsize for array in state)
    assert stored == bank_bytes(cfg, 300, 16)
    moments = trial.head.bank.rule.moments
    in_memory = sum(found[name] for name in ("centres", *moments))
    assert in_memory == (0 if bank == "disk" else stored)
    if bank == "disk":
        assert os.fstat(trial.head.bank._storage._file.fileno()).st_size == stored
    if (bank, dtype) != ("host", "float32"):
        buffers = trial.head.bank._buffer, trial.head.bank._next_buffer
        rows = found["buffers"] // 2 // ((1 + len(moments)) * 16 * 4)
        assert rows == trial.head.bank.selected and all(
            len(buffer.arrays["centres"]) >= rows for buffer in buffers
        )
        assert found["gradient"] == rows * 16 * 4


def test_memory_does_not_grow_with_the_classes_on_disk():
    cfg = load(None, ["Head.bank=disk", "Head.sample_rate=0.01"])
    assert head_bytes(cfg, 10**6, 10_000, 128, 64) == head_bytes(cfg, 10**8, 10_000, 128, 64)
    everything = head_bytes(
        cfg, 10**6, 10**6, 128, 64
    )  # without sampling: the gradient, and buffers of a block
    assert everything["gradient"] == 4 * 128 * 10**6 and everything["buffers"] == 8192 * 2 * 128 * 4
    assert (
        everything["blocks"] != head_bytes(cfg, 10**6, 10**6 - 1, 128, 64)["blocks"]
        or not kernels.multiplies()
    )


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_step_from_the_disk_is_timed_in_two_parts(rate, tmp_path):
    keys = ["Head.bank=disk", f"Head.bank_folder={tmp_path}", f"Head.sample_rate={rate}"]
    trial = Trial(load(None, [*keys, DIM]), 300, 8)
    before = trial.number
    reading, writing = trial.seconds_on_disk()
    assert reading > 0 < writing and trial.number == before + (2 if rate < 1 else 1)


@pytest.mark.parametrize("budget", [0.1, 64])
def test_the_blocks_stay_within_the_budget(budget, monkeypatch):
    cfg = load(None, [f"Head.logits_budget_mb={budget}"])
    monkeypatch.setenv("PLSC_KERNELS", "0")
    found = head_bytes(cfg, 100_000, 100_000, 512, 64)["blocks"]
    block, kept = plan_blocks(64, 100_000, 512, 1, int(budget * 2**20))
    assert found == 4 * block * (3 * 64 + 4 * 512) + 4 * 64 * 100_000 * kept <= budget * 2**20


def test_with_kernels_each_thread_has_blocks_and_a_margin_that_hooks_in_has_none():
    if not kernels.multiplies():
        pytest.skip("there are no kernels with products here")

    def blocks(threads, **keys):
        cfg = load(None, [f"Head={{logits_budget_mb: 1, {', '.join(f'{k}: {v}' for k, v in keys.items())}}}"])
        return head_bytes(cfg, 100_000, 2000, 64, 32, threads)["blocks"]

    of_thread = 4 * (softmax.BLOCK * (64 + 32) + 32 * 64)
    assert blocks(1) == 4 * 32 * 2000 + of_thread and blocks(3) - blocks(1) == 2 * of_thread
    assert blocks(3, filter_above=0.4) == blocks(1, filter_above=0.4) != blocks(1)
    more_classes = 4 * softmax.BLOCK * (64 + 32)  # blocks of twice as many
    assert blocks(1, compute_dtype="bfloat16") - blocks(1) == more_classes - 2 * 32 * 2000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_blocks_with_rounded_copies_stay_within_the_budget(dtype, monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")
    keys = f"Global.amp={{dtype: {dtype}}}", f"Head.compute_dtype={dtype}"
    by_amp, by_head = (
        head_bytes(load(None, ["Head.logits_budget_mb=4", key]), 100_000, 100_000, 512, 64)["blocks"]
        for key in keys
    )
    assert 0.9 * (4 << 20) < by_amp == by_head <= 4 << 20


def test_a_trial_trains():
    trial = Trial(load(None, [DIM, "Head.scale=8.0"]), 40, 8)
    before = trial.head.bank.state()["centres"].copy()
    first = trial.head(trial.emb, trial.label).loss.item()
    for _ in range(5):
        trial.step()
    assert trial.number == 5 and trial.head(trial.emb, trial.label).loss.item() < first
    assert not np.array_equal(trial.head.bank.state()["centres"], before)
    assert not trial.emb.grad.numpy().any()
