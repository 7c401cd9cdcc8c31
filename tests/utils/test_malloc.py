"""Large blocks that are freed go back to the system although others live between them, or stay for the next
ones."""

import os
import sys

import pytest

from tests.helpers.launch import ROOT, run_python

HELD = """
import numpy as np
from plsc.utils.malloc import return_large_blocks
from benchmarks.measure import resident_bytes
if {called}:
    print(return_large_blocks())
first = np.ones(2 << 20)  # 16 MB, whose end raises the bound of glibc
del first
before = resident_bytes()
blocks = [np.ones(1 << 19) for _ in range(64)]  # 4 MB each
lives = blocks[1::8]
del blocks
print((resident_bytes() - before) >> 20)
"""


def run(code, called, **environment):
    unset = {name: None for name in os.environ if name.startswith("MALLOC_")}
    return run_python("-c", code.format(called=called), cwd=ROOT, **{**unset, **environment}).stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_freed_blocks_go_back_although_others_live_between_them():
    (kept,) = run(HELD, called=False)
    done, returned = run(HELD, called=True)
    assert done == "True"
    assert int(returned) < 48 < int(kept)  # 8 blocks live, 32 MB


def test_the_users_setting_stays():
    assert run(HELD, called=True, MALLOC_MMAP_THRESHOLD_="65536")[0] == "False"


FRESH = """
import resource
import numpy as np
from plsc.utils.malloc import keep_freed_blocks
if {called}:
    print(keep_freed_blocks())
def step():
    blocks = [np.ones(1 << 19) for _ in range(16)]  # 4 MB each
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_kept_blocks_are_no_fresh_pages_in_the_next_step():
    (fresh,) = run(FRESH, called=False)
    done, kept = run(FRESH, called=True)
    assert done == "True"
    assert int(kept) < 1000 < int(fresh)  # 64 MB are 16,384 pages, in each of the steps
