"""Where a run computes, as far as it shows without a GPU: what is refused, and what Paddle is asked to do."""

import os
from types import SimpleNamespace

import paddle
import pytest

from plsc.distributed import accelerator, collectives, environment, kinds
from plsc.distributed.accelerator import decide, why_none
from plsc.errors import UserError
from tests.helpers.launch import ROOT, launch


@pytest.fixture
def build(monkeypatch):
    """Makes Paddle a build for GPUs that sees so many of them."""

    def with_gpus(count):
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: count)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("FLAGS_selected_gpus", raising=False)
    return with_gpus


@pytest.fixture
def core(monkeypatch):
    """Records what is set in Paddle, which has these flags."""
    asked = {}
    names = ["FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic"]
    fake = SimpleNamespace(
        set_cublas_switch=lambda on: asked.update(cublas=on),
        set_cudnn_switch=lambda on: asked.update(cudnn=on),
        globals=lambda: dict.fromkeys(names),
    )
    monkeypatch.setattr(paddle.base, "core", fake)
    monkeypatch.setattr(paddle, "set_flags", asked.update)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return SimpleNamespace(asked=asked, flags=names)


def test_a_cpu_build_is_told_what_to_install_and_a_gpu_build_what_it_sees(build, monkeypatch):
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: False)
    assert "install paddlepaddle-gpu" in why_none("gpu")
    assert "install paddlepaddle and paddle-custom-npu" in why_none("npu:1")
    assert "a plug-in for other" in why_none("other") and "CPUs alone" in why_none("auto")
    assert why_none("cpu") == ""
    build(0)
    assert "sees no card" in why_none("auto") and "install" not in why_none("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "sees no card with CUDA_VISIBLE_DEVICES=-1" in why_none("gpu")


def test_a_rank_takes_the_card_of_its_number(build, monkeypatch):
    build(2)
    for number, lacks in ((0, False), (1, False), (2, True)):
        monkeypatch.setenv("FLAGS_selected_gpus", str(number))
        assert bool(why_none("gpu")) == bool(why_none("auto", 4)) == lacks
    assert "2 visible cards" in why_none("gpu") and "number 2" in why_none("gpu")
    assert why_none("gpu:1") == "" and "number 5" in why_none("gpu:5")
    assert "one card, and this is a run of 2 ranks" in why_none("gpu:1", 2)


def test_a_launch_takes_the_first_kind_that_paddle_has(build, monkeypatch):
    build(2)
    monkeypatch.setattr(paddle.device, "get_all_custom_device_type", lambda: ["npu"])
    assert accelerator.kinds() == ("npu", "gpu") and accelerator.kind_for("auto") == "npu"
    assert why_none("gpu") == "" and "takes npu, the first kind" in why_none("gpu", 2)


def test_cards_are_counted_where_paddle_counts_those_of_the_kind(build, monkeypatch):
    build(2)
    monkeypatch.setattr(paddle, "is_compiled_with_xpu", lambda: True)
    monkeypatch.setattr(paddle.base.core, "get_xpu_device_count", lambda: 3, raising=False)
    assert [accelerator.count(kind) for kind in ("gpu", "xpu", "npu")] == [2, 3, 0]


def test_a_gpu_tells_its_name_and_its_memory(monkeypatch):
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:1")
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", lambda: card)
    monkeypatch.setattr(paddle.device.cuda, "get_device_name", lambda: "H100")
    assert (accelerator.name(), accelerator.total_bytes()) == ("H100", 80 << 30)


def test_the_peak_of_a_cpu_is_its_processs(monkeypatch):
    reset = []
    monkeypatch.setattr(accelerator, "reset_resident_peak", lambda: reset.append(True))
    accelerator.reset_peak()
    assert reset and accelerator.peak_bytes() > 0


def test_settings_of_a_kind_are_made_unless_the_user_has_made_them(monkeypatch):
    for name in kinds.KINDS["npu"].settings:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLAGS_npu_jit_compile", "1")
    _, notes = environment.prepare(1, "npu:0")
    assert os.environ["FLAGS_use_stride_kernel"] == "0" and os.environ["FLAGS_npu_jit_compile"] == "1"
    assert "FLAGS_npu_jit_compile=1 (as set by you)" in notes[-1] and "settings of npu:" in notes[-1]
    for device in ("cpu", "gpu:1", "auto"):
        assert "settings of" not in environment.prepare(1, device)[1][-1]
    assert kinds.describe("other").settings == {"FLAGS_use_stride_kernel": "0"}


@pytest.mark.parametrize(
    "asked, lacks, decided",
    [
        ("auto", ["", ""], "gpu"),
        ("auto", ["none"], "cpu"),
        ("auto", ["none", "none"], "cpu"),
        ("gpu", [""], "gpu"),
        ("cpu", ["", ""], "cpu"),
        ("cpu", ["", "none"], "cpu"),
    ],
)
def test_all_ranks_decide_alike(build, asked, lacks, decided):
    build(2)
    assert decide(asked, lacks) == decided


@pytest.mark.parametrize(
    "asked, lacks, named",
    [
        ("auto", ["", "none there", "nor there"], "rank 1: none there (likewise 1 more of 3 ranks)"),
        ("gpu", ["none there", ""], "rank 0: none there;"),
        ("gpu", ["none there"], "gpu, but none there;"),
    ],
)
def test_ranks_without_a_gpu_beside_others_are_refused(asked, lacks, named):
    with pytest.raises(UserError) as error:
        decide(asked, lacks)
    assert named in str(error.value) and "Global.device=cpu" in str(error.value)


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_switched_for_products_and_convolutions(core, tf32):
    accelerator.set_precision("gpu", tf32, deterministic=False)
    assert core.asked == {"cublas": tf32, "cudnn": tf32} and "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_deterministic_sets_the_flags_that_this_paddle_has(core, monkeypatch):
    warned = []
    monkeypatch.setattr(accelerator, "warn", warned.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # the user's own
    accelerator.set_precision("gpu", tf32=True, deterministic=True)
    assert (
        core.asked["FLAGS_cudnn_deterministic"] is True and core.asked["FLAGS_embedding_deterministic"] == 1
    )
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8" and not warned
    core.flags.remove("FLAGS_embedding_deterministic")
    core.asked.clear()
    accelerator.set_precision("gpu", tf32=True, deterministic=True)
    assert "FLAGS_embedding_deterministic" not in core.asked and "FLAGS_embedding_deterministic" in warned[0]


def test_a_cpu_sets_nothing(core, monkeypatch):
    monkeypatch.setattr(paddle, "set_device", lambda name: core.asked.update(device=name))
    collectives.init("cpu", tf32=False, deterministic=True)
    assert core.asked == {"device": "cpu"}


def test_the_choice_of_gloo_does_not_outlive_the_start(monkeypatch):
    name = "PADDLE_DISTRI_BACKEND"
    for before in (None, "nccl"):
        monkeypatch.delenv(name, raising=False)
        if before:
            monkeypatch.setenv(name, before)
        with collectives._backend_for("cpu"):
            assert os.environ[name] == "gloo"
        assert os.environ.get(name) == before
        with collectives._backend_for("gpu"):
            assert os.environ.get(name) == before


def test_a_rank_without_a_gpu_beside_one_that_has_is_refused_on_both(tmp_path):
    said = launch(ROOT / "tests/distributed/run_device.py", 2, tmp_path).stdout
    assert said.count("refused: Global.device: auto, but rank 1: none there; give each rank a card") == 2
