"""On W ranks: Global.init_from gives each rank its classes' rows, as one process got them. Arguments: a run,
and the folder with that process's rows, one .npz for each case in tests/training/test_init_from.py's
CASES."""

import sys
from pathlib import Path

import numpy as np

from plsc import distributed as d
from tests.helpers.tiny_runs import refused_on_every_rank
from tests.training.test_init_from import CASES, NEW, started

path, folder = map(Path, sys.argv[1:])
d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()

for case, overrides in CASES.items():
    trainer, _, said = started(folder / f"run-{case}", path, *overrides)
    shard, expected = trainer.head.shard, np.load(folder / f"{case}.npz")
    assert shard.num_classes == len(NEW) and (W == 1 or case == "replicated" or shard.size < len(NEW))
    for name, rows in trainer.head.bank.state().items():
        assert rows[:].tobytes() == expected[name][shard.start : shard.stop].tobytes(), (case, name)
    assert all(other == said for other in d.gather_objects(said))

# What rank 0 finds ends every rank, with the same words.
line = refused_on_every_rank(lambda: started(folder / "none", "no-such-checkpoint"))
assert "no-such-checkpoint" in line
print(f"rank {r} of {W}: start ok")
