"""On W ranks: a run in stages, whole, and one that is resumed at the edge of a stage."""

import shutil
import sys
from pathlib import Path

from plsc import distributed
from tests.helpers.tiny_runs import checkpoint
from tests.training.test_stages import run

folder = Path(sys.argv[1])
run(folder / "whole", "DataLoader.Train.batch_size=6")
if distributed.rank() == 0:
    shutil.copytree(checkpoint(folder / "whole", 23), folder / "cut/checkpoints/step-00000023")
distributed.barrier()
run(folder / "cut", "DataLoader.Train.batch_size=6", "Global.resume=true")
