"""plsc-selftest and plsc-run on two machines: what differs is said on both before anything starts, else all parts run.

The machines are processes that share the loopback interface.
"""

import re
import socket
import subprocess
import sys

import pytest

from plsc import cli
from tests.launch import ROOT
from tests.tiny_runs import TINY
from tests.warm import lines, shared


@pytest.fixture
def on_two_machines(tmp_path):
    """Runs a command on two machines, each with words of its own -> exit code, the lines, and all that was said, of each."""

    def run(start, tool, *words_of):
        with socket.socket() as any_socket:
            any_socket.bind(("127.0.0.1", 0))
            port = any_socket.getsockname()[1]
        started = []
        for number, words in enumerate(words_of):
            folder = tmp_path / f"machine{number}"
            folder.mkdir()
            where = ["--nnodes", "2", "--rank", str(number), "--master", f"127.0.0.1:{port}", "--wait", "60"]
            started.append((start([ROOT / "tools" / tool, *where, *words], folder), folder))
        return [
            (process.wait(timeout=120), lines(folder), (folder / "stdout").read_text())
            for process, folder in started
        ]

    return run


def start_cold(command, folder):
    """Start it as a user does. It ends before Paddle is needed."""
    with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
        )


def start_warm(command, folder):
    return shared().start(command, folder, str(folder / "stdout"))


def test_machines_that_differ_are_named_on_both_and_nothing_starts(on_two_machines, tmp_path):
    train = [ROOT / "tools/train.py", "-c", TINY, "-o", "Global.device=cpu"]
    images = "DataLoader.Train.dataset.images_per_class=4"
    (code, said, _), (other_code, other_said, _) = on_two_machines(
        start_cold,
        "run.py",
        ["--nproc_per_node", "1", *train],
        ["--nproc_per_node", "2", *train, images],
    )
    assert code == other_code == 2 and said == other_said
    named = [re.fullmatch(r"ERROR machine 1 \(\S+\): (.*)", line)[1] for line in said]
    assert [text.partition(";")[0].rpartition(", machine 0 (")[0] for text in named] == [
        "ranks 2",
        "the config differs: DataLoader.Train.dataset.images_per_class is 4",
        "DataLoader.Train.dataset: number of samples 92",
    ]
    table = (tmp_path / "machine0/stderr").read_text()
    assert re.search(r"^ranks +1 +2 \*$", table, re.MULTILINE)
    assert "free memory" not in (tmp_path / "machine1/stderr").read_text()
    assert not (tmp_path / "machine0/output/log").exists()


def test_the_parts_pass_on_the_ranks_of_all_machines(on_two_machines, tmp_path):
    words = ["--device", "cpu", "--parts", "_c_allgather", "checkpoint resharded", "-c", TINY]
    for number, (code, said, printed) in enumerate(on_two_machines(start_warm, "selftest.py", words, words)):
        assert code == 0 and len(said) == 1 and re.match("INFO start 1 .* on 2 machines: ", said[0]), said
        assert re.search(
            r"^2 ranks on cpu, .*_c_allgather  .* pass .*^network: all_reduce \d+ us, ",
            printed,
            re.MULTILINE | re.DOTALL,
        )
        assert printed.endswith("all parts passed on all machines\n")
        assert not list((tmp_path / f"machine{number}").glob("plsc-selftest-*")), "no logs are left"


def test_options_that_do_not_fit(capsys):
    with pytest.raises(SystemExit):
        cli.selftest(["-c", str(TINY)])
    assert "-c and -o are compared between machines, give --nnodes too" in capsys.readouterr().err
    assert cli.selftest(["--nnodes", "1"]) == 2
    assert "--nnodes: must be 2 or more (got 1)" in capsys.readouterr().err
