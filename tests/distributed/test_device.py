"""Where a run computes, as far as it shows without a device: what is refused, and what Paddle is asked to
do."""

import numpy as np
import paddle
import pytest

from plsc import distributed
from plsc.distributed import device
from plsc.distributed.device import decide, takes_device_path, to_device, why_none
from plsc.errors import UserError
from tests.helpers.launch import launch
from tests.helpers.refusals import refusal


@pytest.fixture
def build(monkeypatch):
    """Makes Paddle a build for GPUs that sees so many of them."""

    def with_gpus(count):
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: count)

    monkeypatch.delenv("FLAGS_selected_gpus", raising=False)
    return with_gpus


def test_a_cpu_build_is_told_what_to_install_and_a_gpu_build_what_it_sees(build, monkeypatch):
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: False)
    assert "install paddlepaddle-gpu" in why_none("gpu") and "plug-in for npu" in why_none("npu:1")
    assert "CPUs only" in why_none("auto") and why_none("cpu") == ""
    build(0)
    assert "sees 0 cards" in why_none("auto") and "install" not in why_none("auto")


def test_a_rank_takes_the_card_of_its_number(build, monkeypatch):
    build(2)
    for number, lacks in ((0, False), (1, False), (2, True)):
        monkeypatch.setenv("FLAGS_selected_gpus", str(number))
        assert bool(why_none("gpu")) == bool(why_none("auto", 4)) == lacks
    assert "sees 2 cards" in why_none("gpu") and "number 2" in why_none("gpu")
    assert why_none("gpu:1") == "" and "number 5" in why_none("gpu:5")
    assert "one card, and the run has 2 ranks" in why_none("gpu:1", 2)


def test_a_rank_of_our_launcher_takes_the_card_of_its_number_and_sees_one_gpu(monkeypatch):
    for kind in ("npu", "gpu"):
        monkeypatch.delenv(f"FLAGS_selected_{kind}s", raising=False)
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    assert device.backend_variables("npu")["FLAGS_selected_npus"] == "1"
    assert device.backend_variables("gpu") == {"FLAGS_selected_gpus": "0"}


def test_a_launch_takes_the_first_kind_that_paddle_has(build, monkeypatch):
    build(2)
    monkeypatch.setattr(paddle.device, "get_all_custom_device_type", lambda: ["npu"])
    assert device.kinds() == ("npu", "gpu")
    assert why_none("gpu") == "" and "uses npu, the first kind" in why_none("gpu", 2)


@pytest.mark.parametrize(
    "asked, lacks, decided",
    [("auto", ["", ""], "gpu"), ("auto", ["none", "none"], "cpu"), ("cpu", ["", "none"], "cpu")],
)
def test_all_ranks_decide_alike(build, asked, lacks, decided):
    build(2)
    assert decide(asked, lacks) == decided


@pytest.mark.parametrize(
    "asked, lacks, named",
    [
        ("auto", ["", "none there", "nor there"], "rank 1: none there; give each rank a card"),
        ("gpu", ["none there"], "gpu, but none there;"),
    ],
)
def test_ranks_without_a_gpu_beside_others_are_refused(asked, lacks, named):
    said = refusal(decide, asked, lacks)
    assert named in said and "Global.device=cpu" in said


ONE_CARD = """
from plsc import distributed
from plsc.distributed import device
from plsc.errors import UserError

device.why_none = lambda device, ranks: "" if distributed.rank() == 0 else "none there"
try:
    distributed.init("auto")
except UserError as error:
    print(f"refused: {error}")
"""


def test_a_rank_without_a_gpu_beside_one_that_has_is_refused_on_both(tmp_path):
    (tmp_path / "run.py").write_text(ONE_CARD)
    said = launch(tmp_path / "run.py", 2, tmp_path).stdout
    assert said.count("refused: Global.device: auto, but rank 1: none there; give each rank a card") == 2


@pytest.mark.parametrize(("setting", "expected"), [("0", True), ("1", False)])
def test_kernels_turned_off_stand_for_a_gpu(setting, expected, monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", setting)
    assert takes_device_path() is expected


@pytest.mark.parametrize("array", [np.arange(4), np.float32(3.0)[...], np.zeros((0, 2), np.uint8)])
def test_an_array_on_the_device_is_a_copy(array):
    expected = array.copy()
    tensor = to_device(array)
    if array.size:
        array[...] = 7
    assert tensor.stop_gradient and tensor.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_of_pinned_memory_paddle_keeps_the_source_itself(monkeypatch):
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle, "CUDAPinnedPlace", paddle.CPUPlace)
    assert to_device(np.arange(3)).tolist() == [0, 1, 2] and not device._in_flight


@pytest.mark.parametrize("name, value", [("PADDLE_TRAINER_ID", "1"), ("PADDLE_TRAINERS_NUM", "2")])
def test_a_rank_that_no_launcher_has_started_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(
        UserError,
        match="^by PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM, this process is rank . of ., .*; unset both$",
    ):
        distributed.init("cpu")
