"""People who join a run of two ranks, one of which is killed right after: the bits are those of a stop and a start.

Another is left out of the data all the time, as plsc forget leaves out.
"""

import pytest

from plsc.checkpoint.store import Checkpoint
from tests.launch import ROOT, launch
from tests.tiny_runs import TINY, assert_same_arrays, checkpoint, rows, steps
from tests.training.test_finetune import NEW, people
from tests.training.test_join import JOIN, SETTINGS, net
from tests.warm import all_ended, lines, shared

LEFT_OUT = 'DataLoader.Train.without=["p0"]'
TRAIN, RUN = ROOT / "tools/train.py", ROOT / "tools/run.py"


@pytest.fixture
def joined(tmp_path):
    """The folder of a run that goes on from its newest checkpoint, of before the join, after the kill."""
    (tmp_path / "join.yaml").write_text(JOIN)
    plan = ["0:5:join", "1:1:SIGKILL"]  # the second in the first step with the new classes
    command = [RUN, "--nproc_per_node", "2", TRAIN, "-c", TINY, "-o", "Global.output_dir=out"]
    program = shared().start([*command, *SETTINGS, LEFT_OUT, *net(tmp_path, *plan)], tmp_path)
    assert program.wait(120) == 0 and all_ended(tmp_path, 1)
    return tmp_path


def test_a_join_on_two_ranks_and_a_kill_after_it_change_no_bit(joined):
    (killed,) = lines(joined)
    assert "rank 1 was killed (signal 9)" in killed and "restart 1 from step 5" in killed
    start = [f"Global.init_from={checkpoint(joined / 'out', 5)}", "Global.keep_step=true"]
    other = ["Global.output_dir=other", *SETTINGS, LEFT_OUT, people(NEW), *net(joined), *start]
    launch(TRAIN, 2, joined, "-c", TINY, "-o", *other)
    assert_same_arrays(checkpoint(joined / "out"), checkpoint(joined / "other"))
    assert Checkpoint.open(checkpoint(joined / "out")).classes() == [name for name in NEW if name != "p0"]
    assert rows(joined / "out")[5:] == rows(joined / "other")
    assert steps(rows(joined / "out")) == list(range(1, 13))
