"""Trainings on a stand-in for a device: the numbers of the CPU to the last bit, by the way that a device
takes.

standin.cc is a plug-in for Paddle's CPU wheel. Its memory starts as NaN and ends the process when the host
touches it, and a queued copy is done as late as may be. So these trainings also show that nothing is read
before it is written, nothing behind the device's back, and no source changed too early.
"""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import paddle
import pytest

from tests.helpers.launch import ROOT, launch

CASES = ROOT / "tests/standin/run_cases.py"
THE_WAY_OF_DEVICES = {"FLAGS_use_stride_kernel": "0", "PLSC_KERNELS": "0"}


def compiled(folder: Path) -> Path:
    """Compile the plug-in -> the folder in which Paddle finds it."""
    wheel = Path(importlib.util.find_spec("paddle").submodule_search_locations[0])
    libraries = ["libphi_core.so", "libphi.so", "libcommon.so"]
    if (
        paddle.__version__.startswith("2.")
        or not shutil.which("g++")
        or not (wheel / "libs/libphi_core.so").exists()
    ):
        pytest.skip("the stand-in is a plug-in for Paddle 3, and is compiled by g++")
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-std=c++17",
        "-w",
        "-DPADDLE_WITH_CUSTOM_DEVICE",
        "-pthread",
        "-lrt",
    ]
    options += [f"-I{wheel / 'include'}", f"-I{wheel / 'include/third_party'}", f"-L{wheel / 'libs'}"]
    options += [f"-Wl,-rpath,{wheel / 'libs'}", *(f"-l:{name}" for name in libraries)]
    source = Path(__file__).with_name("standin.cc")
    subprocess.run(["g++", source, "-o", folder / "libpaddle-standin.so", *options], check=True)
    return folder


def run(device: str, folder: Path, **env: str) -> dict[str, tuple]:
    """Train the cases on two ranks -> losses and arrays of each."""
    folder.mkdir()
    launch(CASES, 2, folder, device, folder, timeout=600, real=True, **THE_WAY_OF_DEVICES, **env)
    found = {}
    for path in folder.glob("*/metrics.jsonl"):
        rows = map(json.loads, path.read_text().splitlines())
        losses = [row["loss"] for row in rows if "loss" in row]
        files = sorted(path.parent.glob("checkpoints/*/*.safetensors"))
        found[path.parent.name] = losses, [file.read_bytes() for file in files]
    return found


@pytest.mark.slow
def test_two_cards_compute_the_bits_of_the_cpu(tmp_path):
    (tmp_path / "plugin").mkdir()
    plugin = compiled(tmp_path / "plugin")
    on_cards = run("standin", tmp_path / "cards", CUSTOM_DEVICE_ROOT=str(plugin))
    on_cpu = run("cpu", tmp_path / "cpu")
    assert len(on_cpu) == 10 and on_cards.keys() == on_cpu.keys()
    for name, (losses, arrays) in on_cpu.items():
        assert len(losses) == 3 and np.isfinite(losses).all() and arrays, name
        assert on_cards[name] == (losses, arrays), name
