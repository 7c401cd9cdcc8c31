"""Large blocks that are freed between ones that live go back to the system."""

import os
import subprocess
import sys

import pytest

HELD = """
import numpy as np
from plsc.utils.malloc import return_large_blocks
from plsc.utils.measure import resident_bytes
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


def run(called, **environment):
    code = HELD.format(called=called)
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")},
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_freed_blocks_go_back_although_others_live_between_them():
    (kept,) = run(called=False)
    done, returned = run(called=True)
    assert done == "True"
    assert int(returned) < 48 < int(kept)  # 8 blocks live, 32 MB


def test_the_users_setting_stays():
    assert run(called=True, MALLOC_MMAP_THRESHOLD_="65536")[0] == "False"
