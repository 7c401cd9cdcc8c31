"""Centres taken over by name on several ranks are those of one, bit for bit."""

import numpy as np
import pytest

from tests.launch import ROOT, launch
from tests.tiny_runs import checkpoint, train
from tests.training.test_finetune import CASES, NO_PAIRS, OLD, people, started


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_rank_has_its_rows_of_one_process(tmp_path, ranks):
    train(tmp_path / "before", people(OLD), "Global.max_steps=2", NO_PAIRS)
    path = checkpoint(tmp_path / "before", 2)
    for case, (names, overrides) in CASES.items():
        trainer, _, _ = started(tmp_path / "one", path, *overrides, names=names)
        np.savez(tmp_path / f"{case}.npz", **trainer.head.bank.state())
    said = launch(ROOT / "tests/distributed/run_finetune.py", ranks, tmp_path, path, tmp_path).stdout
    assert said.count("fine-tuning ok") == ranks
