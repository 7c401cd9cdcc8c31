"""The head on one process: block sizes and modes, edges, labels, memory plan. W ranks: tests/distributed/test_head.py."""

import numpy as np
import paddle
import pytest

from plsc import reference
from plsc.errors import UserError
from plsc.heads import step as step_module
from plsc.heads.blocks import plan_blocks
from plsc.heads.margins import ArcFace, CosFace
from plsc.heads.softmax import SoftmaxHead
from plsc.selftest_parts import MARGINS, head_errors, relative
from tests.heads.classify_cases import classify_equals_argmax


def run(head, x, label, grad=True):
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out, emb.grad.numpy(), head.bank.gradients()["centres"].numpy()


@pytest.mark.parametrize("name", list(MARGINS))
def test_equals_the_dense_reference(name):
    errors = head_errors(name, 37, [9])
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("name", list(MARGINS))
def test_block_sizes_and_modes_give_the_same_numbers(name, monkeypatch):
    """Loss and updated centres to 1e-6 for any block; gradients to 1e-6 between the modes, and between block sizes to the
    rounding of a float32 logit: a matrix product of another shape may round it by an ulp, 4e-6 for a logit of 40."""
    margin, _, scale = MARGINS[name]
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal((8, 16)).astype(np.float32), rng.integers(0, 53, 8)
    whole = None
    for block in (53, 52, 26, 7, 2, 1):
        of_mode = {}
        for keep in (True, False):
            monkeypatch.setattr(step_module, "plan_blocks", lambda *_, b=block, k=keep: (b, k))
            head = SoftmaxHead(53, 16, margin, scale=scale, init_std=0.5)
            largest = (
                head.inspect(paddle.to_tensor(x), paddle.to_tensor(label)).shard_logit.abs().max().item()
            )
            out, dx, dw = run(head, x, label)
            head.step(0.01)
            of_mode[keep] = (out.loss.item(), head.bank.state()["centres"], dx, dw)
        assert all(relative(kept, again) < 1e-6 for kept, again in zip(of_mode[True], of_mode[False])), block
        whole = whole or of_mode[True]
        for got, want, bound in zip(
            of_mode[True], whole, [1e-6, 1e-6, *[2 * np.spacing(np.float32(largest))] * 2]
        ):
            assert relative(got, want) < bound, (block, bound)


def test_kept_mode_runs_three_products_and_recomputing_four(monkeypatch):
    calls = []
    product = paddle.matmul
    monkeypatch.setattr(paddle, "matmul", lambda *a, **k: calls.append(1) or product(*a, **k))
    for budget, products in ((64 << 20, 3), (4 * (3 * 8 + 4 * 16) * 53 - 1, 4)):
        calls.clear()
        head = SoftmaxHead(53, 16, budget=budget)
        run(head, np.ones((8, 16), np.float32), np.arange(8))
        blocks = -(-53 // plan_blocks(8, 53, 16, 1, budget)[0])
        assert len(calls) == products * blocks


@pytest.mark.parametrize(
    "num_samples,size,width,budget",
    [(256, 100_000, 512, 64 << 20), (256, 10_000, 128, 64 << 20), (8, 3, 16, 1)],
)
def test_plan_stays_within_the_budget(num_samples, size, width, budget):
    block, keep = plan_blocks(num_samples, size, width, 1, budget)
    assert 1 <= block <= size
    need = 4 * block * (3 * num_samples + 4 * width) + keep * 4 * num_samples * size
    assert need <= budget or block == 1  # less than one class at a time does not go


def test_logits_shifted_by_ten_thousand():
    rng = np.random.default_rng(1)
    x, label = rng.standard_normal((6, 16)).astype(np.float32), rng.integers(0, 20, 6)
    losses = []
    for shift in (0.0, 1e4):
        head = SoftmaxHead(20, 16, bias=True, init_std=0.5)
        state = head.bank.state()
        head.bank.load_rows(0, {**state, "bias": state["bias"] + np.float32(shift)})
        out, dx, dw = run(head, x, label)
        assert np.isfinite(out.loss.item()) and np.isfinite(dx).all() and np.isfinite(dw).all()
        losses.append(out.loss.item())
    assert abs(losses[0] - losses[1]) < 1e-3


@pytest.mark.parametrize("margin", [ArcFace(0.5), CosFace(0.35)])
def test_zero_embeddings_and_cosines_of_one_and_minus_one(margin):
    head = SoftmaxHead(4, 3, margin, scale=64.0, init_std=0.5)
    centres = np.eye(4, 3, dtype=np.float32) * 2
    centres[3] = 0  # a class centre of length zero
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    x = np.array([[0, 0, 0], [5, 0, 0], [-5, 0, 0], [0, 3, 0], [1, 1, 1]], np.float32)
    out, dx, dw = run(head, x, np.array([0, 0, 0, 3, 3]))
    assert np.isfinite(out.losses_B.numpy()).all() and np.isfinite(dx).all() and np.isfinite(dw).all()
    assert (dx[0] == 0).all() and (dw[3] == 0).all()  # nothing to turn
    head.step(0.1)
    assert np.isfinite(head.bank.state()["centres"]).all()


def test_a_sure_prediction_has_a_small_loss_and_an_exact_gradient():
    """1 - p is not found as a difference: a loss of 1e-9 and its gradient keep their digits in float32."""
    head = SoftmaxHead(2, 2, init_std=0.5)
    head.bank.load_rows(
        0, {"centres": np.array([[20, 0], [0, 0]], np.float32), "momentum": np.zeros((2, 2), np.float32)}
    )
    out, dx, _ = run(head, np.array([[1, 0]], np.float32), np.array([0]))
    assert out.loss.item() == pytest.approx(np.log1p(np.exp(-20.0)), rel=1e-5)
    assert dx[0, 0] == pytest.approx(-20 * np.exp(-20.0), rel=1e-5)


@pytest.mark.parametrize("label,shown", [(20, 20), (-1, -1), (2**40, 2**40)])
def test_a_label_out_of_range_is_refused_with_the_sample_named(label, shown):
    head = SoftmaxHead(20, 16, CosFace(0.35), scale=64.0)
    labels = paddle.to_tensor([3, 5, label, label])
    with pytest.raises(
        UserError,
        match=rf"sample 2 of the 4 in this step has label {shown}, but labels must be in \[0, 20\); 2 such",
    ):
        head(paddle.ones([4, 16]), labels)


def test_four_dimensional_embeddings_and_one_class():
    head = SoftmaxHead(1, 16, ArcFace(0.5), scale=64.0)
    out, dx, dw = run(head, np.ones((3, 16, 1, 1), np.float32), np.zeros(3, np.int64))
    assert out.loss.item() == 0 and (dx == 0).all() and (dw == 0).all() and dx.shape == (3, 16, 1, 1)


def test_the_callers_labels_are_not_touched():
    head = SoftmaxHead(10, 16)
    label = paddle.to_tensor([9, 0, 4])
    head(paddle.ones([3, 16]), label)
    assert label.numpy().tolist() == [9, 0, 4]


@pytest.mark.parametrize("name", list(MARGINS))
def test_inspect_publishes_the_four_pieces(name):
    margin, dense_margin, scale = MARGINS[name]
    rng = np.random.default_rng(2)
    x, label = rng.standard_normal((5, 16)).astype(np.float32), rng.integers(0, 12, 5)
    head = SoftmaxHead(12, 16, margin, scale=scale, init_std=0.5)
    info = head.inspect(paddle.to_tensor(x), paddle.to_tensor(label))
    dense = reference.DenseHead(head.bank.state()["centres"], None, dense_margin, scale)
    want = dense.logits(x.astype(np.float64), label)[0]
    assert relative(info.shard_logit.numpy(), want) < 1e-6
    prob = np.exp(want - want.max(1, keepdims=True))
    assert relative(info.shard_prob.numpy(), prob / prob.sum(1, keepdims=True)) < 1e-5
    assert info.shard_label.numpy().tolist() == label.tolist() and info.shard_dim == 12


def test_classify_equals_argmax():
    assert classify_equals_argmax() == 48


def test_classify_with_sub_centres_takes_the_nearest_of_each_class():
    head = SoftmaxHead(2, 2, ArcFace(0.5), scale=64.0, sub_centres=2)
    centres = np.array([[1, 0, -1, 0], [0, 1, 0, 1]], np.float32)  # class 0 at both ends of the first axis
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    x = paddle.to_tensor([[3.0, 1.0], [-3.0, 1.0], [1.0, 3.0]])
    assert head.classify(x).numpy().tolist() == [0, 0, 1]


def test_classify_without_a_finite_logit():
    assert SoftmaxHead(3, 2).classify(paddle.to_tensor([[float("nan"), 1.0]])).numpy().tolist() == [3]
