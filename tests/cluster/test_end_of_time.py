"""SIGTERM to Paddle's launcher: it asks each rank three times, and kills all after 33 s."""

import signal
import subprocess
import time

import pytest

from plsc.checkpoint.store import newest_step
from plsc.training import checkpoints
from tests.helpers.launch import ROOT, start_python
from tests.helpers.tiny_runs import TINY, make_trainer


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_save_of_ten_seconds_succeeds(tmp_path, ranks):
    keys = [
        *("Global.max_steps=100000", "Global.epochs=100000", "Checkpoint.every_steps=100000"),
        *("DataLoader.Train.batch_size=4", "DataLoader.Eval.dataset=null", "Global.loggers=[]"),
        *("Model.name=tests.cluster.slow_save:SlowSave", f"Model.marks={tmp_path}", "Model.seconds=10"),
        "Global.output_dir=out",
    ]
    command = ["-m", "paddle.distributed.launch", "--nproc_per_node", ranks, "--log_dir", "log"]
    command += [ROOT / "tools/train.py", "-c", TINY, "-o", *keys]
    with open(tmp_path / "said", "wb") as said:
        launcher = start_python(
            *command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, stdout=said, stderr=subprocess.STDOUT
        )
        # No step before the signal is saved: a step that is saved already would not be saved again.
        end = time.monotonic() + 120
        while not (tmp_path / "out/metrics.jsonl").exists():
            assert time.monotonic() < end and launcher.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        (tmp_path / "slow").touch()
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(60)
    step = newest_step(tmp_path / "out/checkpoints")
    text = (tmp_path / "out/train.log").read_text()
    assert f"stopped on SIGTERM at step {step}; " in text
    assert (tmp_path / "saving").exists()
    checkpoints.store.Checkpoint.open(tmp_path / f"out/checkpoints/step-{step:08d}")


@pytest.mark.parametrize("launched, long", [(True, True), (True, False), (False, True)])
def test_a_long_save_is_reported_once_under_paddles_launcher(tmp_path, monkeypatch, launched, long):
    monkeypatch.setattr(checkpoints, "by_paddles_launcher", lambda: launched)
    monkeypatch.setattr(checkpoints, "LONG_SAVE", -1 if long else 20)
    said = []
    monkeypatch.setattr(checkpoints, "warn_on_rank_0", said.append)
    trainer = make_trainer(tmp_path)
    for trainer.step in (1, 2):
        trainer.checkpoints.save(trainer)
    assert len(said) == (launched and long)
    assert all("Paddle's launcher kills the ranks 33 s after SIGTERM" in line for line in said)
