"""Trainings on a stand-in for an accelerator: the numbers of the CPU to the last bit, by the way that a
device takes.

standin.cc is a plug-in for Paddle's CPU wheel. Its memory starts as NaN and ends the process when the host
touches it, and a queued copy is done as late as may be. So these trainings also show that nothing is read
before it is written, nothing behind the device's back, and no source changed too early.
"""

import itertools
import json
import os

import numpy as np
import pytest

from tests.helpers.launch import ROOT, launch, run_python

pytestmark = pytest.mark.slow

TINY = ROOT / "tests/helpers/tiny.yaml"
CASES = ROOT / "tests/standin/run_cases.py"
STEPS = os.environ.get("PLSC_TEST_STANDIN_STEPS", "3")  # 20 show the same
THE_WAY_OF_DEVICES = {"FLAGS_use_stride_kernel": "0", "PLSC_KERNELS": "0"}
SOME = ["plain", "sampled", "host bank", "AdamW, clipped", "SyncBN", "several sets"]


def run_cases(device, folder, ranks, *names, **env):
    """Train the cases in new processes on a device -> the folder of each."""
    env = {**THE_WAY_OF_DEVICES, "STANDIN_CARDS": str(ranks), **env}
    folder.mkdir()
    if ranks == 1:
        run_python(CASES, device, folder, STEPS, *names, cwd=folder, timeout=600, **env)
    else:
        launch(CASES, ranks, folder, device, folder, STEPS, *names, timeout=600, real=True, **env)
    return {path.parent.name: path.parent for path in folder.glob("*/metrics.jsonl")}


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def arrays(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("checkpoints/*/*.safetensors")
    }


@pytest.mark.parametrize(("ranks", "names"), [(1, []), (2, [*SOME, "evaluated"]), (4, SOME[:2])])
def test_cards_compute_the_bits_of_the_cpu(ranks, names, plugin, tmp_path):
    """Every head, bank, optimizer and part on one card; on several those that do something else there."""
    names = [] if STEPS == "20" and ranks < 4 else names
    on_cards = run_cases("standin", tmp_path / "cards", ranks, *names, **plugin)
    on_cpu = run_cases("cpu", tmp_path / "cpu", ranks, *names)
    assert on_cards.keys() == on_cpu.keys() and len(on_cpu) >= len(names) >= 0 and on_cpu
    for name, folder in on_cpu.items():
        assert len(losses(folder)) == int(STEPS) and np.isfinite(losses(folder)).all(), name
        assert losses(on_cards[name]) == losses(folder), name
        assert arrays(folder) and arrays(on_cards[name]) == arrays(folder), name


IMAGES = 12 * 12 * 10  # bytes of the 12 pictures of a step
LABELS = 12 * 2 * 8  # with their indices
KEYS = 12 * 2 * 8  # for dropout, of each sample
FLAGS = 3 * 8  # what the parts tell the other ranks
OUT = 8 * 8  # the five numbers of a step, and the flags


def test_a_step_copies_the_batch_in_and_the_verdict_out_and_waits_once(plugin, tmp_path):
    """Counted by the plug-in; operators without a kernel, which Paddle copies for, are left out by their
    names."""
    cases = ["plain", "AdamW, clipped", "sampled", "several sets"]
    run_cases("standin", tmp_path / "cards", 1, *cases, PLSC_TEST_COUNT="1", **plugin)
    for case, step in itertools.product(cases, range(2, int(STEPS) + 1)):
        counted = json.loads((tmp_path / f"cards/{case}/rank-0-step-{step}.json").read_text())
        operators = counted.pop("operators")
        assert {"conv2d", "where"} <= operators.keys()
        counted.pop("on_device")
        copies, copied = counted.pop("to_device")
        drawn = copied - IMAGES - LABELS - KEYS - FLAGS  # the classes of the step, int64
        assert (copies, drawn) == (4, 0) if case != "sampled" else copies == 5 and 0 < drawn <= 23 * 8
        assert counted == {"to_host": [1, OUT], "waits": [1, 0]}
