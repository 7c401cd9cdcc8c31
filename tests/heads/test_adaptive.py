"""What the margins with a memory remember, and the filter. test_margins.py has their formulas."""

import numpy as np
import paddle
import pytest

from plsc.heads.adaptive import AdaFace
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from tests.heads.autograd import D, assert_equal_to_dense, gradients, head_of, samples
from tests.helpers.bounds import assert_within, perturbed


@pytest.mark.parametrize("kind", ["arcface", "magface", "curricularface"])
def test_inter_class_filtering(kind):
    head = head_of(kind, filter_above=0.2)
    assert_equal_to_dense(kind, head, *samples(), filter_above=0.2)


def test_adaface_follows_the_norms_and_gives_them_to_a_checkpoint():
    margin = AdaFace()
    norms = np.random.default_rng(0).uniform(5, 60, 64)
    for _ in range(3):
        margin.observe(paddle.to_tensor(norms, dtype="float32"))

    def follow(norms):
        keep = 0.99**3
        moments = {"mean": (20, norms.mean()), "deviation": (100, norms.std(ddof=1))}
        return {key: keep * start + (1 - keep) * seen for key, (start, seen) in moments.items()}

    assert_within(margin.state_dict(), *perturbed(follow, norms, terms=64))
    other = AdaFace()
    other.load_state_dict(margin.state_dict())
    other.observe(paddle.ones([1]))  # one sample has no deviation
    assert other.state_dict() == margin.state_dict()


def test_curricularface_remembers_the_mean_target_cosine():
    head = head_of("curricularface")
    x, label = samples()
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    mean = lambda x, centres: 0.01 * np.sum(unit(x) * unit(centres[label]), axis=1).mean()
    want = perturbed(mean, x, head.bank.state()["centres"].copy(), terms=24)
    gradients(head, x, label)
    assert_within(head.margin.state_dict()["t"], *want)


def test_an_inspection_leaves_a_margins_memory_alone_and_a_step_may_be_undone():
    for kind in ("adaface", "curricularface"):
        head = head_of(kind)
        before = head.margin.state_dict()
        x, label = samples()
        head.inspect(paddle.to_tensor(x), paddle.to_tensor(label))
        assert head.margin.state_dict() == before
        undo = head.prepare_undo()
        head(paddle.to_tensor(x), paddle.to_tensor(label))
        assert head.margin.state_dict() != before
        undo()
        assert head.margin.state_dict() == before


def test_top_1_looks_at_the_plain_cosines_where_others_are_changed():
    x, label = samples()
    plain = make_head(37, D, ArcFace(0.5), scale=16.0, init_std=0.5, seed=3)
    want = plain(paddle.to_tensor(x), paddle.to_tensor(label)).correct_B.numpy()
    for head in (head_of("curricularface"), head_of("arcface", filter_above=0.0)):
        assert np.array_equal(head(paddle.to_tensor(x), paddle.to_tensor(label)).correct_B.numpy(), want)
