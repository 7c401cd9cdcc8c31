"""SIGTERM while two ranks evaluate: the evaluation ends at the next batch, and the next start makes up for
it."""

import os
import signal
import time
from pathlib import Path

from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, NoisePairs, checkpoints, rows

BATCHES = 400  # of each rank in a whole evaluation; a batch takes 0.05 s


class SlowPairs(NoisePairs):
    """Notes each batch that a rank reads in a file of the current folder. In its third batch, rank 1 gets a
    signal, once."""

    title = "slow pairs"

    def __init__(self):
        super().__init__(6 * BATCHES)

    def images(self, start: int, stop: int):
        rank, signalled = int(os.environ["PADDLE_TRAINER_ID"]), Path("signalled")
        log = Path(f"batches.{rank}")
        with open(log, "a") as file:
            file.write(f"{start}\n")
        if not signalled.exists():
            time.sleep(0.05)
            if rank == 1 and len(log.read_text().split()) == 3:
                signalled.touch()
                os.kill(os.getpid(), signal.SIGTERM)
        return super().images(start, stop)


def test_a_signal_of_one_rank_ends_the_evaluation_of_both_at_the_next_batch(tmp_path):
    pairs = 'DataLoader.Eval.dataset={name: "tests.distributed.test_stop_in_evaluation:SlowPairs"}'
    keys = ["DataLoader.Train.batch_size=6", "Global.output_dir=out", "Global.eval_every=1", pairs]
    command = [ROOT / "tools/train.py", 2, tmp_path, "-c", TINY, "-o", *keys]
    stopped = launch(*command, check=False)
    assert stopped.returncode != 0 and "stopped on SIGTERM" in stopped.stdout
    counts = [len((tmp_path / f"batches.{rank}").read_text().split()) for rank in range(2)]
    assert counts[1] <= 5, "rank 1 has read on: the batch of the signal, and one that was read ahead"
    assert 0 < counts[0] < BATCHES / 2, "rank 0 has read on"
    assert checkpoints(tmp_path / "out") == [4, 8, 10]
    assert rows(tmp_path / "out", evaluations=True) == []
    launch(*command)
    assert [row["step"] for row in rows(tmp_path / "out", evaluations=True)] == [10, 12]
