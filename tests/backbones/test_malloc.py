"""Large blocks that are freed go back to the system although others live between them, or stay for the next
ones."""

from tests.helpers.launch import ROOT, run_python

HELD = """
import numpy as np
from plsc.backbones.malloc import keep_freed_blocks
from benchmarks.measure import resident_bytes
if {called}:
    keep_freed_blocks(False)
first = np.ones(2 << 20)  # 16 MB, whose end raises the bound of glibc
del first
before = resident_bytes()
blocks = [np.ones(1 << 19) for _ in range(64)]  # 4 MB each
lives = blocks[1::8]
del blocks
print((resident_bytes() - before) >> 20)
"""
FRESH = """
import resource
import numpy as np
from plsc.backbones.malloc import keep_freed_blocks
if {called}:
    keep_freed_blocks(True)
def step():
    blocks = [np.ones(1 << 19) for _ in range(16)]  # 4 MB each
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(code):
    return [int(run_python("-c", code.format(called=called), cwd=ROOT).stdout) for called in (False, True)]


def test_freed_blocks_go_back_although_others_live_between_them():
    kept, returned = run(HELD)
    assert returned < 48 < kept  # 8 blocks live, 32 MB


def test_kept_blocks_are_no_fresh_pages_in_the_next_step():
    fresh, kept = run(FRESH)
    assert kept < 1000 < fresh  # 64 MB are 16,384 pages, in each of the steps
