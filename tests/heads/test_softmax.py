"""The head on one process: the reference, edges, what it publishes. W ranks:
tests/distributed/test_head.py."""

import numpy as np
import paddle
import pytest

from plsc.heads.build import make_head
from plsc.heads.constants import whole
from plsc.heads.margins import ArcFace
from tests.heads.cases import Rounded, rounding, run
from tests.heads.classify_cases import classify_equals_a_sort
from tests.heads.errors import MARGINS, head_errors
from tests.helpers.bounds import EPS, assert_within, growth, perturbed
from tests.helpers.refusals import refusal


@pytest.mark.parametrize("name", list(MARGINS))
def test_equals_the_dense_reference(name):
    errors, bounds = head_errors(name, 37, [9]), rounding(name, 37, [9])
    assert all(error <= bounds.get(key, 0) for key, error in errors.items()), (errors, bounds)


def test_logits_shifted_by_ten_thousand():
    rng = np.random.default_rng(1)
    x, label = rng.standard_normal((6, 16)).astype(np.float32), rng.integers(0, 20, 6)
    losses = []
    for shift in (0.0, 1e4):
        head = make_head(20, 16, bias=True, init_std=0.5)
        state = head.bank.state()
        head.bank.load_rows(0, {**state, "bias": state["bias"] + np.float32(shift)})
        out, dx, dw = run(head, x, label)
        assert np.isfinite(out.loss.item()) and np.isfinite(dx).all() and np.isfinite(dw).all()
        losses.append(out.loss.item())
    # Each logit of either head is a sum of 16 products and the bias. A loss is the difference of two logits.
    largest = 1e4 + (np.abs(x) @ np.abs(state["centres"].T)).max()
    assert abs(losses[0] - losses[1]) <= 2 * growth(17) * EPS * largest


def test_four_dimensional_embeddings_and_one_class():
    head = make_head(1, 16, ArcFace(0.5), scale=64.0)
    out, dx, dw = run(head, np.ones((3, 16, 1, 1), np.float32), np.zeros(3, np.int64))
    assert out.loss.item() == 0 and (dx == 0).all() and (dw == 0).all() and dx.shape == (3, 16, 1, 1)


@pytest.mark.parametrize("name", list(MARGINS))
def test_inspect_publishes_the_four_pieces(name):
    margin, dense_margin, scale = MARGINS[name]
    rng = np.random.default_rng(2)
    x, label = rng.standard_normal((5, 16)).astype(np.float32), rng.integers(0, 12, 5)
    head = make_head(12, 16, margin, scale=scale, init_std=0.5)
    info = head.inspect(paddle.to_tensor(x), paddle.to_tensor(label))

    def dense(centres, x, factor):
        head = Rounded(factor, centres, None, dense_margin, scale)
        logits = head.logits(x, label)[0]
        return [logits, np.exp(logits - head.log_sum(logits))]

    found = [info.shard_logit.numpy(), info.shard_prob.numpy()]
    assert_within(found, *perturbed(dense, head.bank.state()["centres"], x, np.ones(12), terms=16))
    assert info.shard_label.numpy().tolist() == label.tolist() and info.shard_dim == 12


def test_classify_equals_a_sort():
    assert classify_equals_a_sort() == 48


def test_classify_with_sub_centres_takes_the_nearest_of_each_class():
    head = make_head(2, 2, ArcFace(0.5), scale=64.0, sub_centres=2)
    centres = np.array([[1, 0, -1, 0], [0, 1, 0, 1]], np.float32)  # class 0 at both ends of the first axis
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    x = paddle.to_tensor([[3.0, 1.0], [-3.0, 1.0], [1.0, 3.0]])
    assert head.classify(x)[0].flatten().tolist() == [0, 0, 1]


@pytest.mark.parametrize("first", [2**24 + 1, 99_999_997])
def test_classes_that_float32_cannot_number_are_exact(first):
    head = make_head(3, 2)
    head.bank.load_rows(
        0,
        {"centres": np.eye(3, 2, k=0, dtype=np.float32)[[1, 0, 2]], "momentum": np.zeros((3, 2), np.float32)},
    )
    head.shard = head.shard._replace(start=first, stop=first + 3, num_classes=first + 3)
    found, _ = head.classify(paddle.to_tensor([[1.0, 0.1], [0.1, 1.0]]))
    assert found.flatten().tolist() == [first + 1, first]
    column_N = paddle.to_tensor(np.arange(first - 1, first + 3))
    assert (column_N - whole(first)).tolist() == [-1, 0, 1, 2]
    assert (column_N < whole(first)).tolist() == [True, False, False, False]


def test_small_similarities_are_no_tie():
    """Paddle's == takes numbers for equal that differ by less than 1e-8."""
    head = make_head(2, 1)
    head.bank.load_rows(0, {"centres": np.array([[1e-9], [2e-9]], np.float32)})
    assert head.classify(paddle.to_tensor([[1.0]]))[0].tolist() == [[1]]


def test_classify_without_a_finite_logit():
    assert make_head(3, 2).classify(paddle.to_tensor([[float("nan"), 1.0]]))[0].flatten().tolist() == [3]


def test_mistakes_in_a_loop_of_ones_own_are_one_line():
    """Without the step's number, every step would draw the same classes."""
    head = make_head(10, 4, ArcFace(0.5), sample_rate=0.5)
    emb, labels = paddle.ones([2, 4]), paddle.to_tensor([1, 2])
    assert "must know the step: call head(embeddings, labels, number)" in refusal(head, emb, labels)
    head(emb, labels, 0)
    said = refusal(head, paddle.ones([2, 6]), labels, 0)
    assert said == "an embedding has 6 numbers, but the head was made for 4"
    for form, wrong in {
        "int64 [1]": paddle.to_tensor([1]),
        "int64 [3]": np.arange(3),
        "int32 [2]": paddle.to_tensor([1, 2], "int32"),
        "float32 [4]": paddle.eye(2),  # one-hot
    }.items():
        want = f"labels must be int64 [2], one class number for each embedding; these are {form}"
        assert refusal(head, emb, wrong, 0) == want
    said = refusal(head, emb, labels, 0, counts=[2, 0, 3])
    assert said == "rank 1 has no samples in this step; give each rank at least one"
    said = refusal(head, emb, [1, 2], 0)
    assert said == "labels must be a Paddle tensor or a NumPy array, not a list"
    said = refusal(make_head, 10, 4, "arcface")
    assert said == "the margin must be an object such as ArcFace(0.5), not 'arcface'"


@pytest.mark.parametrize(
    ("margin", "options", "said"),
    [
        (None, {"scale": 64.0}, "scale=64.0 without a margin: only a margin uses it"),
        (None, {"sub_centres": 3}, "sub_centres=3 without a margin: only a margin uses it"),
        (None, {"straight_through": True}, "straight_through=True without a margin"),
        (None, {"filter_above": 0.4}, "filter_above=0.4 without a margin"),
        (ArcFace(0.5), {"bias": True}, "bias=True with a margin: a margin works on cosines"),
        (ArcFace(0.5), {"sharded": False, "sample_rate": 0.1}, "sample_rate=0.1 with sharded=False"),
        (ArcFace(0.5), {"sample_rate": 1.5}, "sample_rate=1.5: it must be above 0 and at most 1"),
        (ArcFace(0.5), {"sample_rate": 0.0}, "sample_rate=0: it must be above 0 and at most 1"),
    ],
)
def test_arguments_that_contradict_each_other_are_one_line(margin, options, said):
    """A config cannot ask for such a head. It would compute wrong numbers, or ignore an argument."""
    assert refusal(make_head, 10, 4, margin, **options).startswith(said)
