"""Threads and BLAS settings: the user's own are respected, Paddle's and the launcher's are not taken for
them."""

import os

import pytest

from plsc.distributed import environment
from tests.helpers.launch import ROOT, run_python

pytestmark = pytest.mark.slow

PREPARE = """
import {first}plsc.distributed.environment
print(plsc.distributed.environment.prepare())
"""
AS_A_LAUNCHER = """
import os, subprocess, sys
os.environ.update(OMP_NUM_THREADS="1", PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="2", PADDLE_LOCAL_SIZE="2")
os.environ["PADDLE_RANK_IN_NODE"] = "0"
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


@pytest.mark.parametrize("value, threads", [("3", 3), (None, None), ("many", None)])
def test_the_threads_are_the_users_and_not_what_importing_paddle_sets(value, threads):
    said = said_by(PREPARE.format(first="paddle, "), OMP_NUM_THREADS=value)
    assert said == f"{threads or len(os.sched_getaffinity(0))}\n"


def test_what_the_launcher_sets_is_not_the_users():
    prepare = PREPARE.format(first="")
    assert said_by(AS_A_LAUNCHER, prepare) == f"{max(1, len(os.sched_getaffinity(0)) // 2)}\n"
    assert said_by(AS_A_LAUNCHER, prepare, OMP_NUM_THREADS="3") == "3\n"


def test_ranks_share_the_processors_and_get_one_at_least(monkeypatch):
    monkeypatch.setattr(environment, "_environment_at_start", dict)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    for ranks, threads in ((1, 7), (2, 3), (8, 1)):
        monkeypatch.setenv("PADDLE_LOCAL_SIZE", str(ranks))
        assert (environment.prepare(), environment.prepare(5)) == (threads, 5)


@pytest.mark.parametrize(
    "vendor, users, expected",
    [
        ("AuthenticAMD", {}, "5"),
        ("AuthenticAMD", {"MKL_DEBUG_CPU_TYPE": "4"}, "4"),
        ("AuthenticAMD", {"MKL_CBWR": "COMPATIBLE"}, None),  # which the other would override
        ("GenuineIntel", {}, None),
    ],
)
def test_on_amd_the_fast_products_are_switched_on(monkeypatch, vendor, users, expected):
    for name in ("MKL_DEBUG_CPU_TYPE", "MKL_CBWR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(environment, "_cpu_vendor", lambda: vendor)
    environment.prepare()
    assert os.environ.get("MKL_DEBUG_CPU_TYPE") == expected


def test_a_launch_passes_on_what_the_user_set_and_nothing_else():
    assert said_by(FOR_RANKS, KEPT="yes") == "None None yes\n"
    assert said_by(FOR_RANKS, OMP_NUM_THREADS="1", MKL_DEBUG_CPU_TYPE="5") == "1 5 None\n"


def test_opencv_says_nothing_of_images_that_are_cut_off():
    """We name what cannot be decoded. OpenCV would add a line without a name for each."""
    program = (
        "import plsc, cv2, numpy as np\nfor kind in ('.png', '.bmp'):\n    image = np.zeros((9, 9, 3), "
        "np.uint8)\n    data = cv2.imencode(kind, image)[1][:60]\n    assert cv2.imdecode(data, 1) is None\n"
    )
    assert run_python("-c", program, cwd=ROOT, OPENCV_LOG_LEVEL=None).stderr == ""
