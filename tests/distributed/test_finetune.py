"""Centres taken over by name on several ranks are those of one, bit for bit; a start that is killed begins
again with the same bits."""

import numpy as np
import pytest

from plsc.checkpoint.store import Checkpoint
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, assert_same_arrays, checkpoint, rows, steps, train
from tests.helpers.warm import all_ended, lines, shared
from tests.training.test_finetune import CASES, MORE, NEW, NO_PAIRS, OLD, people, started

pytestmark = pytest.mark.slow


def test_every_rank_has_its_rows_of_one_process(tmp_path):
    """Three ranks, which divide none of the numbers of classes but that of the first case."""
    train(tmp_path / "before", people(OLD), "Global.max_steps=2", NO_PAIRS)
    path = checkpoint(tmp_path / "before", 2)
    for case, (names, overrides) in CASES.items():
        trainer, _, _ = started(tmp_path / "one", path, *overrides, names=names)
        np.savez(tmp_path / f"{case}.npz", **trainer.head.bank.state())
    said = launch(ROOT / "tests/distributed/run_finetune.py", 3, tmp_path, path, tmp_path).stdout
    assert said.count("fine-tuning ok") == 3


def test_more_people_on_two_ranks_and_a_kill_change_no_bit(tmp_path):
    train(tmp_path / "before", people(OLD), *MORE, "Global.max_steps=5")
    start = [f"Global.init_from={checkpoint(tmp_path / 'before', 5)}", "Global.keep_step=true"]
    start += [
        people(NEW),
        *MORE,
        "Model.name=tests.helpers.faults:FaultyNet",
    ]
    plans = {"killed": '["1:1:SIGKILL"]', "other": "[]"}
    keys = {
        name: [f"Global.output_dir={name}", *start, f"Model.plan={plan}", f"Model.marks={tmp_path}"]
        for name, plan in plans.items()
    }
    run = [ROOT / "tools/train.py", "--ranks", "2", "-c", TINY, "-o"]
    program = shared().start([*run, *keys["killed"]], tmp_path)
    assert program.wait(120) == 0 and all_ended(tmp_path)
    assert "rank 1 was killed" in lines(tmp_path)[0]
    launch(ROOT / "tools/train.py", 2, tmp_path, "-c", TINY, "-o", *keys["other"])
    assert_same_arrays(checkpoint(tmp_path / "killed"), checkpoint(tmp_path / "other"))
    assert rows(tmp_path / "killed") == rows(tmp_path / "other")
    assert steps(rows(tmp_path / "other")) == list(range(6, 13))
    assert Checkpoint.open(checkpoint(tmp_path / "killed")).classes() == [
        name for name in NEW if name != "p0"
    ]
