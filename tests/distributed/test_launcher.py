"""How ranks start and end. tests/distributed shows that they train."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plsc.distributed import launcher
from plsc.distributed.launcher import launch
from tests.helpers.launch import ROOT
from tests.helpers.launch import launch as start
from tests.helpers.tiny_runs import TINY


@pytest.mark.usefixtures("launches_are_forked")
def test_what_rank_0_says_and_the_exit_codes_come_back(tmp_path):
    said = []
    ends = launch(["train", "-c", str(tmp_path / "no.yaml")], 2, tmp_path / "log", said.append)
    assert ends == {0: 2, 1: 2} and "".join(said).count("no such config file") == 1
    assert "no such config file" in (tmp_path / "log/workerlog.1").read_text()


SLOW_FIRST_RANK = """
import os, sys, time
if os.environ["PADDLE_TRAINER_ID"] == "0":
    time.sleep(1)  # the other one has ended then, and the launcher has seen it
from plsc import cli
sys.exit(cli.main(["train", "-c", "no.yaml"]))
"""


def test_a_mistake_is_reported_by_a_first_rank_that_is_slower_than_the_others(tmp_path):
    (tmp_path / "train.py").write_text(SLOW_FIRST_RANK)
    done = start(tmp_path / "train.py", 2, tmp_path, check=False)
    assert done.returncode == 2 and done.stdout.count("ERROR no.yaml: no such config file") == 2


def test_the_ranks_can_import_what_this_process_can(tmp_path, monkeypatch):
    """And nothing else: files in the current folder may have the names of Python's modules."""
    (tmp_path / "mine.py").write_text("from plsc.data.synthetic import Synthetic as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("queue.py").write_text("raise SystemExit('shadowed')")
    said = []
    dataset = ["DataLoader.Train.dataset={name: mine:Mine}", "DataLoader.Eval.dataset=null"]
    assert launch(["train", "--dry-run", "-o", *dataset], 1, tmp_path / "log", said.append) == {0: 0}, said
    assert "name: mine:Mine" in "".join(said)


def test_ranks_end_in_their_order_and_what_does_not_end_is_killed(tmp_path, monkeypatch):
    """Rank 2 by its caller at once, then rank 0 by itself, within the time that is left for it."""
    monkeypatch.setattr(launcher, "GRACE", 10.0)
    main = tmp_path / "main.py"
    main.write_text(
        "import os, sys, time\ntime.sleep([2, 60, 60][int(os.environ['PADDLE_TRAINER_ID'])])\nsys.exit(3)\n"
    )

    def watch(running):
        if len(running) == 3:
            list(running)[2].send_signal(signal.SIGKILL)

    ends = launch([], 3, tmp_path, print, main, watch=watch)
    assert list(ends.items()) == [(2, -signal.SIGKILL), (0, 3), (1, None)]


@pytest.mark.parametrize(
    "visible, ranks, cards",
    [(None, 2, ["0", "1"]), ("4,GPU-7", 2, ["4", "GPU-7"]), ("5", 2, ["5", "-1"]), ("5,6", 1, ["5,6"])],
)
def test_each_rank_sees_its_own_gpu_alone(monkeypatch, visible, ranks, cards):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environments = [launcher._environment(rank, ranks, 9000) for rank in range(ranks)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == cards


@pytest.mark.usefixtures("launches_are_forked")
def test_an_operators_settings_and_a_proxy_do_not_matter(tmp_path, monkeypatch):
    settings = {
        "PADDLE_MASTER": "127.0.0.1:1",
        "PADDLE_NNODES": "2",
        "PADDLE_TRAINER_ID": "1",
        "POD_IP": "10.0.0.9",
    }
    proxies = {name: "http://127.0.0.1:9" for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY")}
    for name, value in {**settings, **proxies}.items():
        monkeypatch.setenv(name, value)
    short = ["Global.max_steps=2", "DataLoader.Eval.dataset=null", f"Global.output_dir={tmp_path / 'out'}"]
    said = []
    assert launch(["train", "-c", TINY, "-o", *short], 2, tmp_path / "log", said.append) == {0: 0, 1: 0}, said
    assert "step 2/2" in "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--ranks", "launcher"])
def test_ranks_of_one_machine_need_no_address_of_its_name(tmp_path, how):
    """Only the loopback interface is needed, also with Paddle's launcher, as in README's first command."""
    train = {
        "--ranks": f"{sys.executable} -m plsc train --ranks 2",
        "launcher": f"{sys.executable} -m paddle.distributed.launch --nproc_per_node 2 {ROOT}/tools/train.py",
    }[how]
    train += f" -c {TINY} -o Global.max_steps=2 Global.output_dir=out"
    command = ["unshare", "-n", "-u", "bash", "-c", f"ip link set lo up; hostname box-7f3a; {train}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=env)
    if "unshare" in done.stderr or "not found" in done.stderr:
        pytest.skip("this user may have no network of its own, or there is no unshare")
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path, "out/report.html").exists()
