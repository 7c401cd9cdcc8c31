"""plsc selftest and plsc run on two machines: what differs is said on both before anything starts, else all
parts run.

The machines are processes that share the loopback interface.
"""

import os
import re

import pytest

from plsc import cli
from tests.helpers.image_files import write_folder
from tests.helpers.launch import ROOT, start_python
from tests.helpers.ports import free_port
from tests.helpers.tiny_runs import TINY
from tests.helpers.warm import lines, shared

OTHER_MACHINE = """
import socket
import time

import plsc.utils.version

right = time.time
time.time = lambda: right() + 60
socket.gethostname = lambda: "other"
plsc.utils.version.__version__ = "0.0.9"
"""


@pytest.fixture
def on_two_machines(tmp_path):
    """Runs a verb on two machines, each with words of its own -> exit code, the lines, and all that was said,
    of each."""

    def run(start, verb, *words_of, **env_of_second):
        port = free_port()
        started = []
        for number, words in enumerate(words_of):
            folder = tmp_path / f"machine{number}"
            folder.mkdir()
            where = ["--nnodes", "2", "--rank", str(number), "--master", f"127.0.0.1:{port}", "--wait", "60"]
            env = env_of_second if number else {}
            started.append((start([ROOT / "plsc/__main__.py", verb, *where, *words], folder, **env), folder))
        return [
            (process.wait(timeout=120), lines(folder), (folder / "stdout").read_text())
            for process, folder in started
        ]

    return run


def start_cold(command, folder, **env):
    """Start it as a user does. It ends before Paddle is needed."""
    with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
        return start_python(*command, cwd=folder, env=env, stdout=stdout, stderr=stderr)


def start_warm(command, folder):
    return shared().start(command, folder, str(folder / "stdout"))


@pytest.fixture
def other_machine(tmp_path, monkeypatch):
    """The environment of a machine with another host name, clock, plsc, Paddle and driver; both have a GPU by
    nvidia-smi."""
    folder = tmp_path / "other"
    (folder / "paddlepaddle_gpu-9.9.dist-info").mkdir(parents=True)
    (folder / "paddlepaddle_gpu-9.9.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: paddlepaddle-gpu\nVersion: 9.9\n"
    )
    (folder / "sitecustomize.py").write_text(OTHER_MACHINE)
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA A100, ${DRIVER:-550.1}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "DRIVER": "535.2"}


def test_eight_differences_are_named_on_both_machines_and_nothing_starts(
    on_two_machines, other_machine, tmp_path
):
    write_folder(tmp_path / "images", {"ada": 3, "bob": 2})
    text = "".join(f"images/{name}_{n:04}.png\t0\n" for name, n in (("ada/ada", 1), ("ada/ada", 2)))
    text += "images/ada/ada_0003.png\t0\nimages/bob/bob_0001.png\t1\nimages/bob/bob_0002.png\t1\n"
    (tmp_path / "first.txt").write_text(text)
    (tmp_path / "second.txt").write_text(text.replace("ada_0003.png\t0", "ada_0003.png\t1"))
    words = [
        [
            *("--nproc_per_node", str(ranks), ROOT / "tools/train.py", "-c", TINY),
            *("-o", f"Head.scale={scale}"),
            f"DataLoader.Train.dataset={{name: ImageList, list: {tmp_path / name}, size: [12, 10]}}",
            f"DataLoader.Eval.dataset={{name: ImageFolder, folder: {tmp_path / 'images'}, size: [12, 10], classes: [{part}]}}",
        ]
        for ranks, scale, name, part in ((1, 10, "first.txt", "0, 2"), (2, 11, "second.txt", "0, 1"))
    ]
    (code, said, _), (other_code, other_said, _) = on_two_machines(start_cold, "run", *words, **other_machine)
    assert code == other_code == 2 and said == other_said
    named = [re.fullmatch(r"ERROR machine 1 \(other\): (.*)", line)[1] for line in said]
    assert [re.split(r", machine 0 \(|, checksum| the others'", text)[0] for text in named] == [
        "plsc 0.0.9",
        "Paddle 9.9 (paddlepaddle-gpu)",
        "driver 535.2",
        "ranks 2",
        "the config differs: Head.scale is 11.0",
        "DataLoader.Train.dataset: labels",
        "DataLoader.Eval.dataset: number of samples 3",
        "clock 60 s ahead of",
    ]
    table = (tmp_path / "machine0/stderr").read_text()
    assert re.search(r"^ranks +1 +2 \*$", table, re.MULTILINE)
    assert "free memory" not in (tmp_path / "machine1/stderr").read_text()
    assert not (tmp_path / "machine0/output/log").exists()


def test_the_parts_pass_on_the_ranks_of_all_machines(on_two_machines, tmp_path):
    words = ["--device", "cpu", "--parts", "_c_allgather", "checkpoint resharded", "-c", TINY]
    for number, (code, said, printed) in enumerate(on_two_machines(start_warm, "selftest", words, words)):
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
        cli.main(["selftest", "-c", str(TINY)])
    assert "-c and -o are compared between machines, give --nnodes too" in capsys.readouterr().err
    assert cli.main(["selftest", "--nnodes", "1"]) == 2
    assert "--nnodes: must be 2 or more (got 1)" in capsys.readouterr().err
