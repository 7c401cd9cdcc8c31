"""The table of the vendors' kernels: what it has, and what is taken out of it."""

import pytest

from plsc.distributed.accelerator import registered
from plsc.distributed.kernel_tables import kinds_listed, listed


def test_a_table_says_where_it_is_from_and_what_it_has_by_dtype():
    npu = listed("npu")
    assert npu.source == "2024-10-18, PaddleCustomDevice 77090b64, backends/npu"
    assert not npu.lacks("conv2d", "float32") and npu.lacks("conv2d", "float64")
    assert npu.lacks("searchsorted", "int64") and not npu.lacks("prelu_grad", "float32")
    assert listed("mlu").lacks("prelu_grad", "float32")
    assert not listed("xpu").lacks("conv2d", "float32")  # names alone: any dtype


def test_compared_operators_that_a_macro_registers_are_in_it():
    for kind in kinds_listed():
        assert kind == "intel_hpu" or not listed(kind).lacks("equal", "float32")
    assert not listed("gcu").lacks("relu", "float32")  # PD_REGISTER_PLUGIN_GCU_ACTIVATION_KERNEL
    assert not listed("intel_hpu").lacks("add_raw", "float32")  # PD_REGISTER_PLUGIN_KERNEL_FPx3


def test_what_the_settings_of_a_kind_turn_off_has_no_kernel():
    assert listed("npu").lacks("pad3d", "float32") and listed("npu").lacks("set_value", "float32")
    assert not listed("mlu").lacks("set_value", "float32")


def test_what_paddle_brings_for_every_plug_in_counts_and_not_for_xpu():
    assert not listed("npu").lacks("reshape", "int64")
    assert not listed("npu").lacks("div_scale", "float32")  # of a later Paddle: there it was scale
    assert listed("xpu").lacks("global_scatter", "float32")


@pytest.mark.parametrize("kind", ["cpu", "gpu", "standin", "*"])
def test_other_kinds_have_no_table(kind):
    assert listed(kind) is None


def test_this_paddle_registers_for_a_plug_in_what_it_brings_for_every_one(monkeypatch):
    table = registered("npu")
    assert not table.lacks("reshape", "float32") and table.lacks("conv2d", "float32")
    assert not registered("cpu").lacks("conv2d", "float32")
    monkeypatch.setenv("CUSTOM_DEVICE_BLACK_LIST", "reshape,other")
    assert registered("npu").lacks("reshape", "float32")
