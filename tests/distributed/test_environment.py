"""Threads and BLAS settings: the user's own are respected, Paddle's and the launcher's are not taken for
them."""

import os
import sys

import pytest

from plsc.distributed import environment
from tests.helpers.launch import ROOT, run_python

pytestmark = pytest.mark.slow

PREPARE = """
import {first}plsc.distributed.environment
threads, notes = plsc.distributed.environment.prepare()
print(threads, *notes, sep="\\n")
"""
AS_A_LAUNCHER = """
import os, subprocess, sys
os.environ.update(OMP_NUM_THREADS="1", PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="2", PADDLE_LOCAL_SIZE="2")
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
FOR_RANKS = """
import os, paddle, plsc.distributed.environment
os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
ranks = plsc.distributed.environment.for_ranks()
print(*[ranks.get(name) for name in ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "KEPT")])
"""


def said_by(*argv, **env):
    """Standard output of a new Python with `env` as the user's own settings."""
    unset = {name: None for name in os.environ if name[:4] in ("OMP_", "MKL_")}
    return run_python("-c", *argv, cwd=ROOT, **{**unset, **env}).stdout


@pytest.fixture
def vendor(monkeypatch):
    """Sets the processor's maker; the choices of a code path are unset, and restored afterwards."""
    for name in ("MKL_DEBUG_CPU_TYPE", "MKL_CBWR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "_late", False)
    return lambda name: monkeypatch.setattr(environment, "_cpu_vendor", lambda: name)


@pytest.mark.parametrize("first", ["", "paddle, "])
def test_the_threads_are_the_users(first):
    said = said_by(PREPARE.format(first=first), OMP_NUM_THREADS="3")
    assert said.startswith("3\n") and "3 CPU threads per rank (OMP_NUM_THREADS as set by you)" in said


def test_what_importing_paddle_sets_is_not_the_users():
    processors = len(os.sched_getaffinity(0))
    said = said_by(PREPARE.format(first="paddle, "))
    assert said.startswith(f"{processors}\n") and f"({processors} processors for 1 rank)" in said


@pytest.mark.parametrize("value", ["0", "", "many"])
def test_a_number_of_threads_that_is_none_is_passed_over(value):
    assert "processors for 1 rank" in said_by(PREPARE.format(first=""), OMP_NUM_THREADS=value)


def test_what_the_launcher_sets_is_not_the_users():
    prepare = PREPARE.format(first="")
    assert "processors for 2 ranks" in said_by(AS_A_LAUNCHER, prepare)
    assert "3 CPU threads per rank (OMP_NUM_THREADS as set by you)" in said_by(
        AS_A_LAUNCHER, prepare, OMP_NUM_THREADS="3"
    )


def test_the_config_comes_before_the_environment(monkeypatch):
    monkeypatch.setattr(environment, "_environment_at_start", lambda: {"OMP_NUM_THREADS": "3"})
    monkeypatch.setattr(environment, "_given", None)
    assert environment.cpu_threads() == 3
    threads, notes = environment.prepare(5)
    assert threads == 5 and notes[0] == "5 CPU threads per rank (Global.threads)"
    assert environment.cpu_threads() == 5


def test_ranks_share_the_processors_and_get_one_at_least(monkeypatch):
    monkeypatch.setattr(environment, "_environment_at_start", dict)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    for ranks, threads in ((1, 7), (2, 3), (8, 1)):
        monkeypatch.setenv("PADDLE_LOCAL_SIZE", str(ranks))
        assert environment.prepare()[0] == threads


def test_on_amd_the_fast_products_are_switched_on(vendor, monkeypatch):
    vendor("AuthenticAMD")
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    for _ in range(2):  # what we set the first time is not the user's the second time
        _, notes = environment.prepare()
        assert os.environ["MKL_DEBUG_CPU_TYPE"] == "5"
        assert notes[1:] == ["MKL_DEBUG_CPU_TYPE=5: the fast matrix products of Paddle's BLAS on AMD"]


def test_fast_products_are_not_promised_once_paddle_is_there(vendor, monkeypatch):
    """Nor by a second call, which finds the variable set by the first."""
    vendor("AuthenticAMD")
    monkeypatch.setitem(sys.modules, "paddle", environment)
    for _ in range(2):
        _, notes = environment.prepare()
        assert notes[1].endswith("set after Paddle was imported, so without effect if it has computed before")


def test_on_amd_the_users_choice_stays(vendor, monkeypatch):
    vendor("AuthenticAMD")
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    _, notes = environment.prepare()
    assert os.environ["MKL_DEBUG_CPU_TYPE"] == "4" and notes[1:] == ["MKL_DEBUG_CPU_TYPE=4 as set by you"]


def test_a_code_path_chosen_by_mkl_cbwr_stays(vendor, monkeypatch):
    """MKL_DEBUG_CPU_TYPE would override it."""
    vendor("AuthenticAMD")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    _, notes = environment.prepare()
    assert "MKL_DEBUG_CPU_TYPE" not in os.environ and notes[1:] == ["MKL_CBWR=COMPATIBLE as set by you"]


def test_other_processors_are_left_alone(vendor):
    vendor("GenuineIntel")
    _, notes = environment.prepare()
    assert "MKL_DEBUG_CPU_TYPE" not in os.environ and len(notes) == 1


def test_a_launch_passes_on_what_the_user_set_and_nothing_else():
    assert said_by(FOR_RANKS, KEPT="yes") == "None None yes\n"
    assert said_by(FOR_RANKS, OMP_NUM_THREADS="1", MKL_DEBUG_CPU_TYPE="5") == "1 5 None\n"


@pytest.mark.parametrize(
    "argv, shown",
    [
        (["/venv/bin/plsc", "train", "-c", "faces.yaml"], "plsc train -c faces.yaml"),
        ([str(ROOT / "plsc/__main__.py"), "run", "train", "-o", "a=b c"], "plsc run train -o 'a=b c'"),
        (["tools/train.py", "-c", "x"], "python tools/train.py -c x"),
        (["mine/train.py"], "python mine/train.py"),
        (["-c"], "Python, interactively"),
        ([""], "Python, interactively"),
        (["/lib/ipykernel_launcher.py", "-f", "x.json"], "Python, interactively"),
    ],
)
def test_the_command_can_be_run_again(argv, shown, monkeypatch):
    monkeypatch.delenv(environment.COMMAND, raising=False)
    monkeypatch.setattr("sys.argv", argv)
    assert environment.command_line() == shown
    monkeypatch.setenv(environment.COMMAND, "plsc run --nproc_per_node 2 train")
    assert environment.command_line() == "plsc run --nproc_per_node 2 train"


def test_rank_and_world_size_come_from_the_launcher(monkeypatch):
    for name in ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    assert (environment.rank_from_env(), environment.world_size_from_env()) == (0, 1)
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
    assert (environment.rank_from_env(), environment.world_size_from_env()) == (2, 4)


def test_opencv_says_nothing_of_images_that_are_cut_off():
    """What cannot be decoded is named by us; OpenCV would add a line without a name for each."""
    program = (
        "from plsc.distributed import environment\n"
        "environment.before_paddle()\n"
        "import cv2, numpy as np\n"
        "for kind in ('.png', '.bmp'):\n"
        "    encoded = cv2.imencode(kind, np.zeros((9, 9, 3), np.uint8))[1]\n"
        "    assert cv2.imdecode(encoded[:60], cv2.IMREAD_COLOR) is None\n"
    )
    assert run_python("-c", program, cwd=ROOT, OPENCV_LOG_LEVEL=None).stderr == ""
