"""Compile the stand-in for an accelerator once, for all tests that run on it, in whatever process."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import paddle
import pytest


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """Compile the plug-in -> the environment in which Paddle finds it."""
    if paddle.__version__.startswith("2."):
        pytest.skip("the stand-in is a plug-in for Paddle 3")
    if shutil.which("g++") is None:
        pytest.skip("the stand-in is compiled by g++, which is not here")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all processes of this run
    folder = shared / "standin"
    folder.mkdir(exist_ok=True)
    wheel = Path(importlib.util.find_spec("paddle").submodule_search_locations[0])
    source = Path(__file__).with_name("standin.cc")
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-std=c++17",
        "-w",
        "-DPADDLE_WITH_CUSTOM_DEVICE",
        "-pthread",
        "-lrt",
        "-ldl",
    ]
    libraries = ["libphi_core.so", "libphi.so", "libcommon.so", "libmklml_intel.so"]
    if missing := [name for name in libraries if not (wheel / "libs" / name).exists()]:
        pytest.skip(f"this Paddle has no {missing[0]}")
    options += [f"-I{wheel / 'include'}", f"-I{wheel / 'include/third_party'}", f"-L{wheel / 'libs'}"]
    options += [f"-Wl,-rpath,{wheel / 'libs'}", *(f"-l:{name}" for name in libraries)]
    library, part = folder / "libpaddle-standin.so", shared / "standin.part"
    with open(shared / "standin.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            subprocess.run(["g++", source, "-o", part, *options], check=True)
            part.rename(library)
    return {"CUSTOM_DEVICE_ROOT": str(folder)}
