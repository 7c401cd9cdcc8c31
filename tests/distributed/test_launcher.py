"""The start of ranks; that they train is shown in tests/distributed."""

import os
import subprocess
import sys

import pytest

from plsc.distributed import launcher
from plsc.distributed.launcher import launch
from plsc.distributed.paddle_launch import prepare
from plsc.errors import UserError
from tests.helpers.launch import ROOT
from tests.helpers.launch import launch as start
from tests.helpers.tiny_runs import TINY


@pytest.mark.usefixtures("launches_are_forked")
def test_what_the_ranks_say_and_their_exit_code_come_back(tmp_path):
    said = []
    code = launch(["train", "-c", str(tmp_path / "no.yaml")], 2, tmp_path / "log", said.append)
    assert code == 2 and any("no such config file" in line for line in said)
    assert {path.name for path in (tmp_path / "log").glob("workerlog.*")} == {"workerlog.0", "workerlog.1"}


SLOW_FIRST_RANK = """
import os, sys, time
if os.environ["PADDLE_TRAINER_ID"] == "0":
    time.sleep(1)  # the other one has ended then, and the launcher has seen it
from plsc import cli
sys.exit(cli.main(["train", "-c", "no.yaml"]))
"""


def test_a_mistake_is_said_by_a_first_rank_that_is_slower_than_the_others(tmp_path):
    (tmp_path / "train.py").write_text(SLOW_FIRST_RANK)
    done = start(tmp_path / "train.py", 2, tmp_path, check=False)
    assert done.returncode == 2 and done.stdout.count("ERROR no.yaml: no such config file") == 2


def test_the_ranks_can_import_what_this_process_can(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from plsc.data.synthetic import Synthetic\n\nclass Mine(Synthetic): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = []
    arguments = [
        "train",
        "--dry-run",
        "-o",
        "DataLoader.Train.dataset={name: mine:Mine}",
        "DataLoader.Eval.dataset=null",
    ]
    assert launch(arguments, 1, tmp_path / "log", said.append) == 0, said
    assert any("name: mine:Mine" in line for line in said)


NAME = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    "kind, visible, cards, on_cpu, labels",
    [
        ("gpu", "0", 0, False, "-1,-1"),  # made up
        ("gpu", "0,1,2", 3, False, "0,1,2"),
        ("gpu", "0", 1, True, "-1,-1"),
        (None, "0", 0, False, None),
    ],
)
def test_each_rank_has_a_label_for_paddles_launcher(monkeypatch, kind, visible, cards, on_cpu, labels):
    monkeypatch.setenv(NAME, visible)
    assert prepare(2, kind, cards, on_cpu) == ""
    assert os.environ.get(NAME) == labels


@pytest.mark.usefixtures("launches_are_forked")
def test_arguments_win_over_the_environment_of_an_operator(tmp_path, monkeypatch):
    settings = {
        "PADDLE_MASTER": "127.0.0.1:1",
        "PADDLE_NNODES": "2",
        "PADDLE_TRAINER_ID": "1",
        "POD_IP": "10.0.0.9",
    }
    for name, value in {**settings, "PADDLE_NPROC_PER_NODE": "3", "PADDLE_LOG_DIR": "elsewhere"}.items():
        monkeypatch.setenv(name, value)
    arguments = ["train", "--dry-run", "-o", "DataLoader.Eval.dataset=null"]
    assert launch(arguments, 1, tmp_path / "log", print) == 0
    assert "PADDLE_MASTER" in os.environ and (tmp_path / "log/workerlog.0").exists()


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv(NAME, "0")
    said = prepare(2, "gpu", 1, False)
    assert "2 ranks on this machine, but 1 visible card:" in said and "Global.device=cpu" in said


@pytest.mark.usefixtures("launches_are_forked")
def test_two_ranks_on_cpus_start_beside_one_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "0")
    said = []
    assert launch(["--help"], 2, tmp_path / "log", said.append, device="cpu") == 0
    assert any("usage" in line for line in said)


def test_a_launch_that_is_refused_says_why_in_one_line(tmp_path, monkeypatch):
    starter = tmp_path / "starter.py"
    starter.write_text("import sys\nsys.exit('ERROR 2 ranks, but 1 visible GPU')")
    monkeypatch.setattr(launcher, "STARTER", starter)
    said = []
    for _ in range(2):  # the log has the first one's line
        with pytest.raises(UserError, match="^2 ranks, but 1 visible GPU$"):
            launch(["--help"], 2, tmp_path / "log", said.append)
    assert not said


@pytest.mark.slow
def test_ranks_of_one_machine_need_no_address_of_its_name(tmp_path):
    train = f"{sys.executable} -m plsc train --ranks 2 -c {TINY} -o Global.max_steps=2 Global.output_dir=out"
    command = ["unshare", "-n", "-u", "bash", "-c", f"ip link set lo up; hostname box-7f3a; {train}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=env)
    if "unshare" in done.stderr or "not found" in done.stderr:
        pytest.skip("this user may have no network of its own, or there is no unshare")
    assert done.returncode == 0, done.stderr
