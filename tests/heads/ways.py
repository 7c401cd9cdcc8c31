"""Marks of tests that need not run on both ways through a shard, see conftest.py."""

import pytest

# For tests of what has no kernels, and for tests that themselves compare the kernels with the ops.
without_kernels = pytest.mark.parametrize("way", ["ops"], indirect=True)
with_kernels = pytest.mark.parametrize("way", ["kernels"], indirect=True)
