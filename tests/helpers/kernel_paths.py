"""Fixtures that run a test with the kernels at each instruction set that this processor has, and without
them."""

import paddle
import pytest

from plsc import native as kernels

BUILT = kernels.library() is not None


@pytest.fixture(params=["plain", *kernels.LEVELS])
def path(request, monkeypatch):
    """Run the test once on each path. "plain" is the one without kernels."""
    if request.param == "plain":
        monkeypatch.setenv("PLSC_KERNELS", "0")
        yield request.param
        return
    if not BUILT:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    native, level = kernels.library(), kernels.LEVELS.index(request.param)
    if native.plsc_instructions(level) != level:
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    native.plsc_instructions(len(kernels.LEVELS) - 1)


@pytest.fixture
def two_threads():
    """`nothing_for_the_next_test` in tests/conftest.py sets it back to one."""
    paddle.base.core.set_num_threads(2)
