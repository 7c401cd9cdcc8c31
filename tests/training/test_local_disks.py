"""Find a checkpoint of several disks from one process, whose folder got all of it; several ranks are in tests/distributed."""

import logging
import shutil
import threading

import pytest

from plsc.checkpoint.train_state import Best, TrainState
from plsc.distributed.disks import Disks, _group
from plsc.errors import UserError
from plsc.training.local_disks import find_checkpoint, is_spread
from plsc.utils.sharding import ClassShard
from tests.checkpoints import assert_holds, content, flip, save_one, save_ranks

ONE, ALL = Disks((0,)), ClassShard.whole(11)
HEADS = [f"head-0000{number}-of-00002.safetensors" for number in range(2)]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The steps 4 and 8 of two machines, copied into one folder; 4 was the best."""
    monkeypatch.setattr("socket.gethostname", lambda: threading.current_thread().name)
    for step in (4, 8):
        best = TrainState(best=Best(step=4, set="pairs", metric="accuracy", value=0.9))
        disks = [tmp_path / "0", tmp_path / "1"]
        for path in save_ranks(disks, step, {**content(step), "state": best}, 2, disks=[0, 1]):
            shutil.copytree(path, tmp_path / "all" / path.name, dirs_exist_ok=True)
    return tmp_path / "all"


def find(root, *args, **keywords):
    return find_checkpoint(root, ONE, ALL, *args, **keywords)


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_the_newest_the_best_and_those_of_a_step(root):
    assert is_spread(root, ONE)
    assert find(root) == find(root, 8) == root / "step-00000008"
    assert find(root, "best") == find(root, 4) == find(root, before=8) == root / "step-00000004"
    assert find(root, 5) is None and find(root, before=4) is None


def test_a_single_disks_checkpoints_are_not_spread(tmp_path):
    save_one(tmp_path, 4, content(4))
    assert not is_spread(tmp_path, ONE) and not is_spread(tmp_path / "nothing", ONE)


@pytest.mark.parametrize("harm", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_the_one_before_it_is_taken_and_the_newer_one_set_aside(root, caplog, harm):
    harm(root / "step-00000008" / HEADS[1])
    caplog.set_level(logging.WARNING, "plsc")
    logging.getLogger("plsc").addHandler(caplog.handler)
    assert find(root) == root / "step-00000004"
    logging.getLogger("plsc").removeHandler(caplog.handler)
    assert f"{HEADS[1]} (classes 6 to 10), written on host node1, is not on the disk of" in caplog.text
    assert names(root) == ["step-00000004", "step-00000008.bad"]
    assert find(root) == root / "step-00000004"


def test_without_a_whole_one_it_ends(root, tmp_path):
    with pytest.raises(UserError, match=f"step 8: {HEADS[1]} .classes 6 to 10., written on host node1"):
        find(tmp_path / "0")
    assert names(tmp_path / "0") == ["step-00000004", "step-00000008"]
    with pytest.raises(UserError, match="step 4: "):
        find(tmp_path / "0", 4)


def test_an_unfinished_rename_is_completed(root):
    (root / "step-00000008").rename(root / "step-00000008.tmp")
    assert_holds(
        find(root),
        {**content(8), "state": TrainState(best=Best(step=4, set="pairs", metric="accuracy", value=0.9))},
    )
    assert names(root) == ["step-00000004", "step-00000008"]


@pytest.mark.parametrize(
    "seen, firsts",
    [
        ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], (0, 0, 0)),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], (0, 1, 2)),
        ([[1, 0, 1], [0, 1, 0], [1, 0, 1]], (0, 1, 0)),
        ([[1, 1, 0], [0, 1, 1], [0, 1, 1]], (0, 1, 1)),  # rank 0 sees a file that is only a copy
    ],
)
def test_ranks_that_see_each_others_files_share_a_disk(seen, firsts):
    assert _group(seen) == firsts
