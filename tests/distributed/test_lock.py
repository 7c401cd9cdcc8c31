"""The lock of an output folder, against another process that holds it, and against one that held it and is
dead."""

import os
import signal
import socket
import subprocess

import pytest

from plsc.distributed.lock import hold
from tests.helpers.launch import start_python
from tests.helpers.refusals import refusal

HOLD = (
    "import sys, time; from plsc.distributed.lock import hold; held = hold(sys.argv[1]); "
    "print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    process = start_python("-c", HOLD, tmp_path / "out", stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_run_is_refused_by_name_and_a_killed_one_is_no_obstacle(tmp_path, holder):
    said = refusal(hold, tmp_path / "out")
    who = f"pid {holder.pid} on host {socket.gethostname()}"
    assert said == (
        f"{tmp_path}/out/ is in use by {who}: wait until it ends, stop it, or set another Global.output_dir"
    )
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with hold(tmp_path / "out"):
        text = (tmp_path / "out/.lock").read_text()
        assert text == f"pid {os.getpid()} on host {socket.gethostname()}\n"
    with hold(tmp_path / "out"):
        pass


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    said = refusal(hold, tmp_path / "file/out")
    assert said.startswith(f"Global.output_dir: {tmp_path}/file/out: cannot be written: Not a directory")
