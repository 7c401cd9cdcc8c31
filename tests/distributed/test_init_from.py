"""Centres taken over by name on several ranks are those of one, bit for bit."""

import numpy as np
import pytest

from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import train
from tests.training.test_init_from import CASES, NO_PAIRS, OLD, people, started

pytestmark = pytest.mark.slow


def test_every_rank_has_its_rows_of_one_process(tmp_path):
    before = tmp_path / "before"
    train(before, people(OLD), "Global.max_steps=2", NO_PAIRS)
    for case, overrides in CASES.items():
        trainer, _, _ = started(tmp_path / "one", before, *overrides)
        rows = {name: np.array(array[:]) for name, array in trainer.head.bank.state().items()}
        np.savez(tmp_path / f"{case}.npz", **rows)
    said = launch(ROOT / "tests/distributed/run_init_from.py", 3, tmp_path, before, tmp_path).stdout
    assert said.count("start ok") == 3
