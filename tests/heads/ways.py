"""Marks of tests that need not run on both ways through a shard, see conftest.py."""

import pytest

# Of what has no kernels; and of the kernels against the ops, which both are in the test.
without_kernels = pytest.mark.parametrize("way", ["ops"], indirect=True)
with_kernels = pytest.mark.parametrize("way", ["kernels"], indirect=True)
