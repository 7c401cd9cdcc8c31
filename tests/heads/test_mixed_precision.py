"""Every margin with products of 16 bits, against dense float64 autograd on the same rounded rows."""

import numpy as np
import paddle
import pytest

from plsc.heads import blocks
from plsc.heads.build import make_head
from plsc.heads.config import MARGINS
from plsc.heads.margins import CosFace
from plsc.native import onednn
from tests.heads.autograd import exact_gradients, gradients, head_of, samples
from tests.heads.errors import relative
from tests.helpers.bounds import assert_within


@pytest.fixture(autouse=True)
def no_bfloat16_kernels(monkeypatch):
    """They round rows before these are normalised. tests/native/heads compares them."""
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: False)


# Here the logits' gradients are rounded, too, once for either product.
BOUND = 2**-6


@pytest.mark.parametrize(
    "kind,options",
    [
        *((kind, {}) for kind in MARGINS.builtin),
        ("arcface", {"sub_centres": 2}),
        ("arcface", {"filter_above": 0.2}),
    ],
)
def test_losses_and_gradients_are_those_of_the_rounded_rows(kind, options):
    head = head_of(kind, compute_dtype="bfloat16", **options)
    x, label = samples()
    centres = head.bank.state()["centres"].copy()
    of_rounded, bound = exact_gradients(
        kind, x, centres, label, scale=16.0, compute_dtype="bfloat16", **options
    )
    exact, _ = exact_gradients(kind, x, centres, label, scale=16.0, **options)
    found = gradients(head, x, label)
    assert_within(found[0], of_rounded[0], bound[0])
    assert (np.abs(found[0] - exact[0]) > bound[0]).any()
    for got, wanted in zip(found[1:], of_rounded[1:]):
        assert relative(got, wanted) < BOUND


def test_classes_are_predicted_in_float32():
    x, _ = samples(count=200)
    plain, rounded = head_of("arcface"), head_of("arcface", compute_dtype="bfloat16")
    emb_ND = paddle.to_tensor(x)
    assert plain.classify(emb_ND)[0].tolist() == rounded.classify(emb_ND)[0].tolist()


@pytest.mark.skipif(
    paddle.__version__.startswith("2."), reason="Paddle 2.6 truncates to 16 bits on a CPU, and devices round"
)
@pytest.mark.parametrize("mix", [0.0, 0.5, 0.8])
def test_a_device_that_rounds_products_has_gradients_within_half_a_percent(mix, monkeypatch):
    """A simulation: CPUs have no products of 16 bits. mix: how near the hardest other classes are."""
    monkeypatch.setenv("PLSC_KERNELS", "0")
    N, C, D = 64, 4000, 512
    rng = np.random.default_rng(0)
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    centres = unit(rng.standard_normal((C, D)))
    label, hard = rng.integers(0, C, N), rng.integers(0, C, (N, 5))
    noise = rng.standard_normal((N, D)) / D**0.5 / 2
    x = unit(centres[label] * 0.6 + mix * 2.2 * centres[hard].mean(1) + noise).astype(np.float32)

    def gradient(dtype):
        head = make_head(C, D, CosFace(0.35), scale=64.0, compute_dtype=dtype)
        head.bank.load_rows(0, {"centres": centres.astype(np.float32)})
        emb = paddle.to_tensor(x, stop_gradient=False)
        head(emb, label, 0, counts=[N]).loss.backward()
        return emb.grad.numpy().astype(np.float64)

    def rounding_product(a, b, transpose_a, transpose_b):
        of_a, of_b = a.astype("float32"), b.astype("float32")
        return paddle.matmul(of_a, of_b, transpose_a, transpose_b).astype(a.dtype)

    want = gradient("float32")
    monkeypatch.setattr(blocks, "on_device", lambda: True)
    monkeypatch.setattr(blocks, "_device_product", rounding_product)
    error = np.linalg.norm(gradient("bfloat16") - want) / np.linalg.norm(want)
    assert 0 < error < 5e-3, error
