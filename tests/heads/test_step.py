"""One step of the head: its blocks and their two modes, its numerics, and the labels that it refuses."""

import numpy as np
import paddle
import pytest

from plsc.errors import UserError
from plsc.heads import backends as backends_module
from plsc.heads.banks import build_bank
from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard
from plsc.heads.softmax import SoftmaxHead
from plsc.heads.spec import HeadSpec
from tests.heads.cases import exact, run
from tests.heads.errors import MARGINS
from tests.helpers.bounds import assert_within, perturbed


@pytest.mark.parametrize("name", list(MARGINS))
def test_block_sizes_and_modes_give_the_same_numbers(name, monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")  # theirs: test_backends.py
    margin, dense_margin, scale = MARGINS[name]
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal((8, 16)).astype(np.float32), rng.integers(0, 53, 8)
    centres = make_head(53, 16, margin, scale=scale, init_std=0.5).bank.state()["centres"].copy()
    want = exact(centres, x, label, dense_margin, scale, lr=0.01, terms=53)
    for block in (53, 52, 26, 7, 2, 1):
        for keep in (True, False):
            monkeypatch.setattr(backends_module, "plan_blocks", lambda *_, b=block, k=keep: (b, k))
            head = make_head(53, 16, margin, scale=scale, init_std=0.5)
            out, dx, dw = run(head, x, label)
            head.update(0.01)
            assert_within([out.losses_B.numpy(), dx, dw, head.bank.state()["centres"]], *want)


@pytest.mark.parametrize("label,shown", [(20, 20), (-1, -1), (2**40, 2**40)])
def test_a_label_out_of_range_is_refused_with_the_sample_named(label, shown):
    head = make_head(20, 16, CosFace(0.35), scale=64.0)
    labels = paddle.to_tensor([3, 5, label, label])
    with pytest.raises(
        UserError,
        match=rf"sample 2 of the 4 in this step has label {shown}, but labels must be in \[0, 20\); 2 such",
    ):
        head(paddle.ones([4, 16]), labels)


@pytest.mark.parametrize(("margin", "sub_centres"), [(None, 1), (CosFace(0.35), 1), (CosFace(0.35), 3)])
@pytest.mark.parametrize("kind", ["device", "host", "disk"])
def test_a_shard_without_classes_gives_nothing_to_the_gradient(kind, margin, sub_centres, tmp_path):
    options = {"bias": margin is None, "rule": Momentum(), "std": 1.0, "seed": 0}
    bank = build_bank(kind, "float32", tmp_path, ClassShard(2, 2, 2), 4 * sub_centres, **options)
    head = SoftmaxHead(bank, HeadSpec(margin, sub_centres=sub_centres))
    emb = paddle.to_tensor(np.ones((3, 4), np.float32), stop_gradient=False)
    labels = paddle.to_tensor([0, 1, 1])
    if not paddle.__version__.startswith("2."):  # which has no products with empty matrices
        assert head.inspect(emb, labels).shard_prob.shape == [3, 0]
    out = head(emb, labels)
    out.loss.backward()
    assert not emb.grad.numpy().any() and out.selection.gradients() == {}
    head.update(0.1)
    assert bank.state()["centres"][:].shape == (0, 4 * sub_centres)


def test_a_sure_prediction_has_a_small_loss_and_an_exact_gradient():
    """1 - p is not found as a difference: a loss of 1e-9 and its gradient keep their digits in float32."""
    head = make_head(2, 2, init_std=0.5)
    head.bank.load_rows(
        0, {"centres": np.array([[20, 0], [0, 0]], np.float32), "momentum": np.zeros((2, 2), np.float32)}
    )
    out, dx, _ = run(head, np.array([[1, 0]], np.float32), np.array([0]))
    sure = lambda logit: [np.log1p(np.exp(-logit)), -20 * np.exp(-logit) / (1 + np.exp(-logit))]
    assert_within([out.loss.item(), dx[0, 0]], *perturbed(sure, np.float64(20), terms=2))
