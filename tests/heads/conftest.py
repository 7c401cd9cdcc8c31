"""Every test of the heads runs on both ways through a shard: the kernels, and Paddle's ops. Exceptions are
marked by `without_kernels` or `with_kernels` from tests/heads/ways.py."""

import pytest

from plsc import native as kernels

BUILT = kernels.library() is not None


@pytest.fixture(params=["kernels", "ops"], autouse=True)
def way(request, monkeypatch):
    if request.param == "ops":
        monkeypatch.setenv("PLSC_KERNELS", "0")
    elif not BUILT:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    return request.param
