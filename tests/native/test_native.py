"""Finding the library: the switch, the log line if it is missing, and threads that follow Paddle's."""

import logging
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import paddle
import pytest

from plsc import native as kernels
from plsc.native.heads.rows import unit_rows
from tests.helpers.kernel_paths import BUILT, two_threads  # noqa: F401
from tests.helpers.launch import ROOT


@pytest.fixture
def said(monkeypatch):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("plsc")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.mark.parametrize("broken, why", [(False, "not built"), (True, ".*_native.so: .*")])
def test_a_missing_or_broken_library_is_reported_once(broken, why, monkeypatch, tmp_path, said):
    monkeypatch.delenv("PLSC_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "_FILE", tmp_path / "_native.so")
    if broken:
        (tmp_path / "_native.so").write_bytes(b"no library")
    kernels.compiled.cache_clear()
    assert kernels.library() is None and kernels.library() is None
    kernels.compiled.cache_clear()
    (line,) = said
    assert re.fullmatch(
        rf"kernels: none \({why}\); everything runs on Paddle's operators, several times .*", line
    )


@pytest.mark.skipif(not BUILT, reason="the kernels are not built")
def test_threads_are_those_of_paddle(two_threads):  # noqa: F811
    for threads in (1, 2):
        paddle.base.core.set_num_threads(threads)
        assert working_threads() == threads


def working_threads():
    """Count the threads of this process that a kernel keeps at work."""
    rows = np.ones((2000, 500), np.float32)
    time.sleep(0.3)  # OpenMP's threads wait actively for 0.2 s
    before = cpu_seconds()
    for _ in range(200):
        unit_rows(rows, np.empty_like(rows), np.empty(2000, np.float32))
    return sum(seconds - before.get(thread, 0) > 0.02 for thread, seconds in cpu_seconds().items())


def cpu_seconds():
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def test_rows_of_which_none_are_selected_have_an_address():
    """A shard of a class or two may have no row in a step. Paddle calls its empty slice not contiguous."""
    assert kernels.address(paddle.zeros([4, 3])[:0]) is not None
    columns = paddle.zeros([4, 3])[:, :2]
    if columns.is_contiguous():
        return  # a copy: FLAGS_use_stride_kernel=0
    with pytest.raises(AssertionError):
        kernels.address(columns)


@pytest.mark.skipif(not BUILT, reason="the kernels are not built")
def test_kernels_know_the_sources_they_were_built_from(monkeypatch):
    """If this fails, the build is old: python setup.py build_ext --inplace."""
    folder = ROOT / "plsc/native"
    files = [path for kind in ("cpp", "h") for path in sorted(folder.rglob(f"*.{kind}"))]
    checksum = zlib.crc32(b"".join(path.read_bytes() for path in files))
    assert kernels.build() == f"a build of {checksum:08x}"
    monkeypatch.setenv("PLSC_KERNELS", "0")
    assert kernels.build() == "none"


@pytest.mark.skipif(not BUILT, reason="the kernels are not built")
def test_a_kernel_without_memory_ends_with_a_line():
    call = "plsc_norm_forward(0, *5 * [None], 0, 0, 1, 2**50, 0, 1.0, 1.0, *4 * [None])"
    code = f"from plsc.native import library\nprint(library().{call})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert re.search(r"^ERROR plsc's kernels: no memory for \d+ bytes$", done.stderr, re.MULTILINE), (
        done.stderr
    )
