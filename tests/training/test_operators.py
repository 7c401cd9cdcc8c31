"""The operators of a step, and those that a device has no kernel for; the npu's are in
tests/gpu_ops/test_contract.py."""

import logging
from collections import Counter

import numpy as np
import paddle
import pytest
from paddle import nn

from plsc import cli
from plsc.backbones.layers import PReLU, relu
from plsc.config import load
from plsc.data.preprocessing import Preprocessing
from plsc.distributed import accelerator, kinds
from plsc.distributed.kernel_tables import KernelTable, listed
from plsc.errors import UserError
from plsc.heads import blocks, margins, step
from plsc.training import operators
from plsc.training.operators import Operator, missing, parse, record, refuse_or_name_fallbacks
from plsc.training.parts import ema
from tests.helpers.bounds import EPS
from tests.helpers.launch import ROOT
from tests.helpers.tiny_runs import TINY

RECIPE = ROOT / "configs/recipes/wf42m_pfc02_r100.yaml"  # 2 million classes; its data is not here
SMALL = ["-o", "Model={name: LeNet}"]

LOG = """
I1124 08:12:36.4  33 api.cc:9] full API kernel key: [CPU, NCHW, float32]
I1124 08:12:36.4  33 api.cc:9] full kernel: {"input":[
@@@@ forward
I1124 08:12:36.4  33 api.cc:9] sum API kernel key: [CPU, Undefined(AnyLayout), int64]
I1124 08:12:36.4  33 api.cc:9] sum kernel: {"input":[
@@@@ backward
I1124 08:12:36.4  33 backward_api.cc:9] sum_grad API kernel key: [CPU, NCHW, float32]
I1124 08:12:36.4  33 backward_api.cc:9] sum_grad kernel: {"input":[
I1124 08:12:36.4  33 backward_api.cc:9] sum_grad kernel: {"input":[
@@@@ 
I1124 08:12:36.4  33 api.cc:9] full kernel: {"input":[
"""


def test_a_log_is_read_by_phase_and_dtype():
    assert parse(LOG) == {
        Operator("forward", "sum", "int64"): 1,
        Operator("backward", "sum_grad", "float32"): 2,
    }


def test_a_step_is_recorded_with_its_phases():
    recorded = record(load(TINY), "npu")
    assert recorded[Operator("forward", "conv2d", "float32")] == 4
    assert recorded[Operator("backward", "conv2d_grad", "float32")] == 4
    assert {op.name for op in recorded if op.phase == "update"} >= {"momentum", "merged_momentum"}
    assert not missing(recorded, listed("npu"))
    assert missing(recorded, KernelTable("", {"conv2d": ["float16"]})) == recorded


def test_samples_of_any_kind_and_ranges_are_recorded():
    noise = "{name: Synthetic, num_classes: 5, image_shape: [1, 12, 10], head: own}"
    changes = [f"DataLoader.Train.dataset=[{noise}, {noise}]", "Head.sample_rate=0.5"]
    samples = Preprocessing((1, 12, 10), "float32")
    recorded = record(load(TINY, changes), "npu", samples)
    assert not missing(recorded, listed("npu"))
    names = {op.name for op in recorded}
    assert "argsort" in names and "not_equal" in names  # of the draw, and of the ranges


def test_a_config_that_cannot_be_trained_is_refused_by_its_reason():
    with pytest.raises(UserError, match="cannot be recorded: .*FaceViT needs at least two patches"):
        record(load(TINY, ["Model={name: FaceViT_tiny, patch_size: 12}"]), "npu")


@pytest.mark.parametrize(
    "kind, code, found", [("npu", 0, " 0 of them"), ("intel_hpu", 1, "conv2d (float32): 2 forward")]
)
def test_doctor_names_what_a_kind_lacks_without_device_and_data(kind, code, found, capsys, monkeypatch):
    if kind == "intel_hpu":  # recorded as for the other one
        steps = Counter({Operator("forward", "conv2d", "float32"): 2})
        monkeypatch.setattr("plsc.apps.curate.doctor.record", lambda *_: steps)
    assert cli.main(["doctor", "--device", kind, "-c", str(RECIPE), *SMALL]) == code
    said = capsys.readouterr().out
    assert f"kernels of {kind}: 2024-10-18, PaddleCustomDevice" in said and found in said


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["--device", "metax_gpu", "-c", str(RECIPE)], "the kernels of 'metax_gpu' are not listed here"),
        (["--device", "npu", "faces"], "--device: looks at a step of a config"),
    ],
)
def test_doctor_refuses_in_a_line(arguments, found, capsys):
    assert cli.main(["doctor", *arguments]) == 2
    said = capsys.readouterr().err
    assert found in said and len(said.splitlines()) == 1


@pytest.fixture
def device(monkeypatch):
    """Makes the device in use one of kind `other`, whose plug-in has one kernel -> the step that is
    recorded."""
    recorded = Counter(
        {Operator("forward", "conv2d", "float32"): 3, Operator("update", "momentum", "float32"): 1}
    )
    monkeypatch.setattr(accelerator, "kind_in_use", lambda: "other")
    monkeypatch.setattr(accelerator, "registered", lambda kind: KernelTable(kind, {"conv2d": ["float32"]}))
    monkeypatch.setattr(operators, "record", lambda *_: recorded)
    return recorded


def test_a_training_names_what_runs_on_the_cpu(device, caplog):
    with caplog.at_level(logging.WARNING):
        refuse_or_name_fallbacks(load(), Preprocessing((1,)))
    assert "other has no kernel for these operators of a step" in caplog.text
    assert "momentum (float32): 1 update" in caplog.text and "conv2d" not in caplog.text


def test_a_training_that_shall_not_fall_back_ends_before_its_first_step(device):
    cfg = load(None, ["Global.fallback=refuse"])
    with pytest.raises(UserError, match="^Global.fallback: refuse, but other has no kernel .*momentum"):
        refuse_or_name_fallbacks(cfg, Preprocessing((1,)))
    del device[Operator("update", "momentum", "float32")]
    refuse_or_name_fallbacks(cfg, Preprocessing((1,)))


def test_a_step_that_cannot_be_recorded_is_said_or_refused(device, monkeypatch):
    def record(*_):
        raise UserError("no record")

    said = []
    monkeypatch.setattr(operators, "record", record)
    monkeypatch.setattr(operators, "warn", said.append)
    refuse_or_name_fallbacks(load(), Preprocessing((1,)))
    assert said == ["which operators other has no kernel for is not known: no record"]
    with pytest.raises(UserError, match="^no record"):
        refuse_or_name_fallbacks(load(None, ["Global.fallback=refuse"]), Preprocessing((1,)))


@pytest.mark.parametrize("kind", [kinds.CPU, kinds.GPU])
def test_nothing_is_recorded_where_every_operator_has_a_kernel(kind, device, monkeypatch):
    monkeypatch.setattr(accelerator, "kind_in_use", lambda: kind)
    monkeypatch.setattr(operators, "record", None)
    refuse_or_name_fallbacks(load(), Preprocessing((1,)))


# -- what takes the place of an operator that a kind lacks
# --------------------------------------------------------------------


@pytest.fixture
def lacking(monkeypatch):
    """Lets every kind lack all that has a substitute."""
    for module in (blocks, margins, step, relu, ema):
        monkeypatch.setattr(module, "lacks", lambda operator: True)


def test_a_kind_lacks_what_its_table_lacks(monkeypatch):
    assert not accelerator.lacks("log1p")
    monkeypatch.setenv(kinds.AS_KIND, "npu")
    assert accelerator.lacks("log1p") and not accelerator.lacks("prelu")
    monkeypatch.setenv(kinds.AS_KIND, "standin")
    assert not accelerator.lacks("log1p")


def test_log1p(lacking):
    x = np.concatenate([np.linspace(0, 1, 1001), np.logspace(-38, 0, 500)]).astype(np.float32)
    want = np.log1p(x.astype(np.float64))
    assert (np.abs(step.log1p(paddle.to_tensor(x)).numpy() - want) <= 8 * EPS * want).all()


def test_angle(lacking):
    cos = np.concatenate([np.linspace(-1, 1, 2001), 1 - np.logspace(-7, 0, 100)]).astype(np.float32)
    theta, _ = margins.angle(paddle.to_tensor(cos))
    want = np.arccos(cos.astype(np.float64))
    assert (np.abs(theta.numpy() - want) <= 8 * EPS * want).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("frozen", [False, True])
def test_prelu(channels, frozen, lacking):
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, 4, 3, 5, 6)).astype(np.float32)
    layer = PReLU(channels)
    layer._weight.stop_gradient = frozen
    images = paddle.to_tensor(x, stop_gradient=False)
    out = layer(images)
    out.backward(paddle.to_tensor(grad))
    slope = np.float32(0.25)
    np.testing.assert_array_equal(out.numpy(), np.where(x > 0, x, x * slope))
    np.testing.assert_array_equal(images.grad.numpy(), np.where(x > 0, grad, grad * slope))
    terms = np.where(x > 0, 0, x.astype(np.float64) * grad)
    axes = (0, 2, 3) if channels == 3 else (0, 1, 2, 3)
    if frozen:
        assert layer._weight.grad is None
    else:
        off = np.abs(layer._weight.grad.numpy() - terms.sum(axis=axes))
        assert (off <= terms.size * EPS * np.abs(terms).sum(axis=axes)).all()


def test_rows_at_length_1(lacking):
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, 5, 8)).astype(np.float32)
    x[2] = 0
    rows = blocks.Rows(paddle.to_tensor(x), cosine=True, zeros=True)
    length = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    unit = np.divide(x, length, where=length > 0, out=np.zeros(x.shape))
    assert np.abs(rows.values.numpy() - unit).max() <= 16 * EPS
    np.testing.assert_allclose(rows.length.numpy(), length[:, 0], rtol=16 * EPS)
    turned = np.divide(
        grad - (grad * unit).sum(1, keepdims=True) * unit, length, where=length > 0, out=np.zeros(x.shape)
    )
    bound = (
        32
        * EPS
        * np.divide(np.abs(grad).sum(1, keepdims=True), length, where=length > 0, out=np.zeros(length.shape))
    )
    assert (np.abs(rows.gradient(paddle.to_tensor(grad)).numpy() - turned) <= bound).all()


def test_an_average_of_weights(lacking):
    net = nn.Linear(3, 4)
    average = ema.Ema(net, 0.5, 1)
    start = net.weight.numpy().astype(np.float64)
    average.update(None, None)
    net.weight.set_value(net.weight + 1.0)
    average.update(None, None)  # decay 1 / 10
    want = 0.1 * start + 0.9 * (start + 1)
    assert (np.abs(average.state_dict()["arrays"]["weight"] - want) <= 8 * EPS * (np.abs(start) + 1)).all()
