"""The way of GPUs, on a CPU: nothing is read, and the same classes take part."""

import numpy as np
import paddle
import pytest

from plsc.heads.adaptive import AdaFace, CurricularFace, MagFace
from plsc.heads.banks.bank import StateRows
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from tests.heads.errors import OPTIMIZERS

C, D, N = 90, 16, 12
HEADS = {
    "arcface": {"margin": ArcFace},
    "sampled": {"margin": ArcFace, "sample_rate": 0.3},
    "bias": {"bias": True, "sample_rate": 0.3},
    "adaface": {"margin": AdaFace},
    "magface": {"margin": MagFace, "sample_rate": 0.3},
    "curricularface": {"margin": CurricularFace},
    "filter": {"margin": ArcFace, "filter_above": 0.2, "sample_rate": 0.3},
    "sub-centres": {"margin": ArcFace, "sub_centres": 2},
    "bfloat16": {"margin": ArcFace, "compute_dtype": "bfloat16"},
    "little memory": {"margin": ArcFace, "budget": 20_000, "sample_rate": 0.5},
}


def head_of(name, **more):
    options = {"seed": 3, "init_std": 0.5, **HEADS[name], **more}
    margin = options.pop("margin", None)
    return make_head(C, D, margin and margin(), scale=16.0 if margin else 1.0, **options)


def batch(number=0):
    rng = np.random.default_rng(number)
    emb = paddle.to_tensor(rng.standard_normal((N, D)), dtype="float32", stop_gradient=False)
    return emb, rng.integers(0, C, N) % 40


def step(head, number):
    emb, label = batch(number)
    head(emb, label, number, counts=[N]).loss.backward()
    head.update(0.05, number)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", HEADS)
def test_nothing_is_read(name, optimizer, monkeypatch):
    """Each of these methods would wait for a GPU. Only one case has 16-bit products, since tests/cli counts
    all kinds of waits."""
    monkeypatch.setenv("PLSC_KERNELS", "0")
    head = head_of(name, rule=OPTIMIZERS[optimizer][0])
    step(head, 0)
    given = batch(1)
    read = []
    for method in ("numpy", "item", "tolist", "__bool__", "__int__", "__float__", "__array__"):
        monkeypatch.setattr(paddle.Tensor, method, lambda *_, m=method, **__: read.append(m))
    out = head(*given, 1, counts=[N])
    out.loss.backward()
    head.update(0.05, 1)
    assert read == []


def test_rows_on_a_device_are_copied_when_they_are_indexed(monkeypatch):
    bank = head_of("arcface").bank
    array = bank.state()["centres"]
    monkeypatch.setattr("plsc.heads.banks.device.on_device", lambda: True)
    rows = bank.state()["centres"]
    assert isinstance(rows, StateRows) and rows.shape == (C, D) and len(rows) == C
    assert rows.dtype == np.float32 and np.array_equal(rows[1:3], array[1:3]) and rows[2:2].shape == (0, D)
    assert np.array_equal(np.asarray(rows), array)
