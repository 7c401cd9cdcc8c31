"""Every margin with products of 16 bits, against dense float64 autograd on the same rounded rows."""

import numpy as np
import paddle
import pytest

from plsc.heads.config import MARGINS
from plsc.native import onednn
from tests.heads.autograd import exact_gradients, gradients, head_of, samples
from tests.heads.errors import relative
from tests.helpers.bounds import assert_within


@pytest.fixture(autouse=True)
def no_bfloat16_kernels(monkeypatch):
    """They round rows before these are normalised; tests/native/heads compares them."""
    monkeypatch.setattr(onednn, "has_bfloat16", lambda: False)


# Of the gradients: here the logits' gradients are rounded too, once for either product.
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
    assert plain.classify(emb_ND).tolist() == rounded.classify(emb_ND).tolist()
