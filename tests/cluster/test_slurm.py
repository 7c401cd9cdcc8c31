"""tools/cluster/slurm.sbatch by a real Slurm of two nodes on this machine, with a rank on each."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plsc.checkpoint.store import newest_step
from tests.helpers.faults import FaultyNet
from tests.helpers.launch import ROOT, free_port, launch
from tests.helpers.tiny_runs import TINY, assert_equal_runs
from tests.helpers.warm import all_ended

READY = os.geteuid() == 0 and all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch")))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not READY, reason="needs root, slurm-wlm and munge")]
BAD_ON_ONE_RANK = "{name: 'tests.helpers.tiny_runs:OneBadSample', num_classes: 23, image_shape: [1, 12, 10]}"
CONFIG = """
ClusterName=plsc
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
SlurmdTimeout=10
ReturnToService=2
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=all Nodes=n[0-1] Default=YES
"""


class SlowNet(FaultyNet):
    """Waits in each step of training for as many seconds as the file `pause` in the folder `marks` says."""

    def forward(self, images):
        pause = self.marks / "pause"
        time.sleep(int(pause.read_text()) if self.training and pause.exists() else 0)
        return super().forward(images)


def settings(folder, plan=()):
    train = ["DataLoader.Train.batch_size=6", "Head.sample_rate=0.3", "Global.output_dir=out"]
    net = ["Model.name=tests.cluster.test_slurm:SlowNet", f"Model.plan={list(plan)}", f"Model.marks={folder}"]
    return ["-c", str(TINY), "-o", *train, *net]


class Slurm:
    """The daemons of a cluster, by name, and its jobs."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, {}
        host = os.uname().nodename.partition(".")[0]
        text = CONFIG.format(host=host, folder=folder, ports=[free_port() for _ in range(3)])
        (folder / "slurm.conf").write_text(text)
        search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the job's script calls `python`
        os.environ.update(SLURM_CONF=f"{folder}/slurm.conf", PYTHONPATH=str(ROOT), PATH=search)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
        self.start("munged", "munged", "--foreground", "--force", *options)
        self.start("slurmctld", "slurmctld", "-D")
        for node in ("n0", "n1"):
            self.start(node, "slurmd", "-D", "-N", node)

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def submit(self, folder, *plan, options=("--time=10",), more=()):
        os.path.lexists(folder / "tools") or os.symlink(ROOT / "tools", folder / "tools")
        command = ["sbatch", "--parsable", "--gres=none", *options, "tools/cluster/slurm.sbatch"]
        command += [*settings(folder, plan), *more]
        return subprocess.check_output(command, cwd=folder, text=True).strip()

    def wait(self, job, wanted):
        """Wait until the job has that state and was started again so often. Its turn comes in 10 s."""
        end, state, before = time.monotonic() + 240, "", ""
        while state != wanted:
            assert time.monotonic() < end, state
            time.sleep(1)
            shown = subprocess.check_output(["scontrol", "show", "job", job], text=True)
            state = " ".join(re.search(rf"\b{key}=(\w+)", shown)[1] for key in ("JobState", "Restarts"))
            if state != before and state.startswith("PENDING"):
                subprocess.run(["scontrol", "update", f"jobid={job}", "StartTime=now+10"], check=False)
            before = state


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    for daemon in reversed(cluster.daemons.values()):
        daemon.terminate()
        daemon.wait(30)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole").resolve()
    launch(ROOT / "tools/train.py", 2, folder, *settings(folder))
    return folder / "out"


def test_a_killed_rank_sends_the_job_back_to_the_queue(slurm, whole, tmp_path):
    job = slurm.submit(tmp_path, "1:6:SIGKILL")
    slurm.wait(job, "COMPLETED 1")
    said = (tmp_path / f"slurm-{job}.out").read_text()
    assert re.search("ERROR rank 0 (failed|stopped) in step 6: ", said)
    assert_equal_runs(tmp_path / "out", whole)


@pytest.mark.parametrize("what, pause", [("node", 8), ("scancel", 1), ("time", 9)])
def test_what_is_stopped_saves_and_resumes(slurm, whole, tmp_path, what, pause):
    """The rank of a node whose daemon ends lives on, and saves with the other."""
    (tmp_path / "pause").write_text(str(pause))
    options = ["--time=2", "--signal=TERM@30"] if what == "time" else ["--time=10"]
    job = slurm.submit(tmp_path, options=options)
    end = time.monotonic() + 240
    while not newest_step(tmp_path / "out/checkpoints"):
        assert time.monotonic() < end, (tmp_path / f"slurm-{job}.out").read_text()
        time.sleep(0.2)
    if what == "node":
        slurm.daemons["n1"].terminate()
    if what == "scancel":
        subprocess.run(["scancel", job], check=True)
    slurm.wait(job, "CANCELLED 0" if what == "scancel" else "PENDING 1")
    assert what == "node" or all_ended(tmp_path)
    stopped = f"stopped on SIGTERM at step {newest_step(tmp_path / 'out/checkpoints')};"
    assert stopped in (tmp_path / "out/train.log").read_text()
    (tmp_path / "pause").unlink()
    if what == "node":
        slurm.start("n1", "slurmd", "-D", "-N", "n1")
    slurm.wait(*((slurm.submit(tmp_path), "COMPLETED 0") if what == "scancel" else (job, "COMPLETED 1")))
    assert_equal_runs(tmp_path / "out", whole)


def test_a_mistake_on_one_rank_ends_the_job(slurm, tmp_path):
    job = slurm.submit(tmp_path, more=["-o", f"DataLoader.Train.dataset={BAD_ON_ONE_RANK}"])
    slurm.wait(job, "FAILED 0")
    assert "ERROR sample 7: the picture is broken" in (tmp_path / f"slurm-{job}.out").read_text()
