"""The kernels, at each instruction set that this processor has, and the plain versions."""

import pytest

from tests.helpers.kernel_paths import path, two_threads  # noqa: F401


@pytest.fixture(autouse=True)
def way():
    """Run each test once: `path` chooses the kernels, not the fixture for the other head tests."""
