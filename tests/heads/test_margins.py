"""Each margin against its paper's formula by dense float64 autograd, at random points and at the edges; by itself where it helps."""

import inspect
import math

import numpy as np
import paddle
import pytest

from plsc.config import load
from plsc.config_sections import OPTIONS
from plsc.heads import MARGINS, build_head, build_margin
from plsc.heads.adaptive import AdaFace, CurricularFace
from plsc.heads.margins import ArcFace, CombinedMargin
from plsc.heads.softmax import SoftmaxHead
from plsc.selftest_parts import relative
from tests.heads.autograd import TARGETS, dense_gradients

D, GRID = 16, np.linspace(-1, 1, 2001)
COMBINED = {"options": {"margin1": 0.9, "margin2": 0.4, "margin3": 0.15}}


def head_of(kind, num_classes=37, scale=16.0, **more):
    more = {**(COMBINED if kind == "combined" else {}), **more}
    cfg = load(None, [f"Head.name=dist_{kind}", f"Head.scale={scale}", "Head.init_std=0.5"])
    cfg = cfg.edit({f"Head.{key}": value for key, value in more.items()})
    return build_head(cfg.Head, cfg.Optimizer, num_classes, D, seed=3)


def gradients(head, x, label):
    emb = paddle.to_tensor(x, dtype="float32", stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return out.losses_B.numpy(), emb.grad.numpy(), head.bank.gradients()["centres"].numpy()


def assert_equal_to_dense(kind, head, x, label, **options):
    want = dense_gradients(kind, x, head.bank.state()["centres"], label, scale=head.scale, **options)
    for got, wanted in zip(gradients(head, x, label), want):
        assert relative(got, wanted) < 1e-5


def samples(seed=0, norm=30.0, count=24):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, D)).astype(np.float32)
    return x * np.float32(norm / 4) * rng.uniform(0.2, 3, (count, 1)).astype(np.float32), rng.integers(
        0, 37, count
    )


def test_every_margin_has_a_reference_and_its_options_in_the_config():
    assert set(TARGETS) == set(MARGINS)
    for kind, cls in MARGINS.items():
        arguments = set(inspect.signature(cls).parameters) - {"margin"}
        assert arguments == set(OPTIONS.get(kind, ())), kind


@pytest.mark.parametrize("kind", list(TARGETS))
def test_loss_and_gradients(kind):
    assert_equal_to_dense(kind, head_of(kind), *samples())


@pytest.mark.parametrize("kind", list(TARGETS))
@pytest.mark.parametrize("towards", [1, -1])
def test_loss_and_gradients_near_the_axis(kind, towards):
    """Embeddings almost along their centres, or almost opposite: there angle + margin passes pi."""
    head = head_of(kind)
    x, label = samples()
    x = (towards * 20 * head.bank.state()["centres"][label] + 0.1 * x).astype(np.float32)
    losses, dx, dw = dense_gradients(kind, x, head.bank.state()["centres"], label, scale=head.scale)
    got = gradients(head, x, label)
    # A float32 cosine of 0.99 knows its angle to about 5e-7 only, and the tangent is a small difference.
    bounds = (2e-5, 1e-3, 1e-3)
    assert all(relative(a, b) < bound for a, b, bound in zip(got, (losses, dx, dw), bounds))


@pytest.mark.parametrize("kind", list(TARGETS))
def test_finite_on_the_axis_and_for_zero_embeddings(kind):
    head = head_of(kind, num_classes=4)
    centres = np.eye(4, D, dtype=np.float32)
    head.bank.load_rows(0, {"centres": centres, "momentum": np.zeros_like(centres)})
    x = np.zeros((4, D), np.float32)
    x[0, 0], x[1, 1], x[2, 0] = 30, -30, 30
    for numbers in gradients(head, x, np.array([0, 1, 1, 2])):
        assert np.isfinite(numbers).all()


@pytest.mark.parametrize("kind", ["arcface", "combined", "sphereface"])
def test_the_target_falls_with_the_angle_everywhere(kind):
    margin = build_margin(head_config(kind))
    found = margin(paddle.to_tensor(GRID, dtype="float32"), paddle.ones([len(GRID)]))
    assert (np.diff(found.cosine.numpy()) > -1e-5).all()
    assert (found.slope.numpy() >= 0).all() and np.isfinite(found.slope.numpy()).all()


def head_config(kind):
    cfg = load(None, [f"Head.name={kind}"])
    return (
        cfg.edit({f"Head.{key}": value for key, value in COMBINED.items()}) if kind == "combined" else cfg
    ).Head


def test_combined_with_a_zero_margin_is_the_cosine():
    found = CombinedMargin(1.0, 0.0, 0.0)(paddle.to_tensor(GRID, dtype="float32"), None)
    assert np.abs(found.cosine.numpy() - GRID).max() < 1e-6
    assert np.abs(found.slope.numpy() - 1)[1:-1].max() < 2e-2 and found.slope.numpy()[-1] == 1


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("sub_centres", [2, 3])
def test_sub_centres(kind, sub_centres):
    head = head_of(kind, sub_centres=sub_centres)
    assert head.bank.state()["centres"].shape == (37, sub_centres * D)
    assert_equal_to_dense(kind, head, *samples(), sub_centres=sub_centres)


@pytest.mark.parametrize("kind", ["arcface", "magface"])
def test_inter_class_filtering(kind):
    head = head_of(kind, filter_above=0.2)
    assert_equal_to_dense(kind, head, *samples(), filter_above=0.2)


def test_straight_through_has_the_value_with_margin_and_the_gradient_without():
    x, label = samples()
    exact, through = head_of("arcface"), head_of("arcface", gradient="straight_through")
    losses, dx, _ = gradients(through, x, label)
    assert np.array_equal(losses, gradients(exact, x, label)[0])
    cos = paddle.to_tensor(GRID, dtype="float32")
    assert (through.margin(cos, None).slope.numpy() == 1).all()
    assert relative(dx, gradients(exact, x, label)[1]) > 1e-2


def test_adaface_follows_the_norms_and_gives_them_to_a_checkpoint():
    margin = AdaFace()
    norms = np.random.default_rng(0).uniform(5, 60, 64)
    for _ in range(3):
        margin.observe(paddle.to_tensor(norms, dtype="float32"))
    keep = 0.99**3
    assert margin.mean == pytest.approx(keep * 20 + (1 - keep) * norms.mean(), rel=1e-5)
    assert margin.deviation == pytest.approx(keep * 100 + (1 - keep) * norms.std(ddof=1), rel=1e-5)
    other = AdaFace()
    other.load_state(margin.state())
    assert other.state() == margin.state()


def test_a_good_picture_gets_an_angle_and_a_bad_one_an_addition():
    margin = AdaFace(margin=0.4)
    margin.mean, margin.deviation = 20.0, 1.0
    cos = paddle.full([2], 0.5)
    good, bad = margin(cos, paddle.to_tensor([90.0, 0.1])).cosine.numpy()
    assert good == pytest.approx(math.cos(math.acos(0.5) - 0.4) - 0.8, abs=1e-5)
    assert bad == pytest.approx(math.cos(math.acos(0.5) + 0.4), abs=1e-5)


def test_curricularface_remembers_the_mean_target_cosine():
    head = head_of("curricularface")
    x, label = samples()
    cos = np.sum(x * head.bank.state()["centres"][label], axis=1)
    cos /= np.linalg.norm(x, axis=1) * np.linalg.norm(head.bank.state()["centres"][label], axis=1)
    gradients(head, x, label)
    assert head.margin.t == pytest.approx(0.01 * cos.mean(), abs=1e-7)
    other = CurricularFace()
    other.load_state(head.margin.state())
    assert other.t == head.margin.t


def test_an_inspection_leaves_a_margins_memory_alone():
    for kind in ("adaface", "curricularface"):
        head = head_of(kind)
        before = head.margin.state()
        x, label = samples()
        head.inspect(paddle.to_tensor(x), paddle.to_tensor(label))
        assert head.margin.state() == before


def test_top_1_looks_at_the_plain_cosines_where_others_are_changed():
    x, label = samples()
    plain = SoftmaxHead(37, D, ArcFace(0.5), scale=16.0, init_std=0.5, seed=3)
    want = plain(paddle.to_tensor(x), paddle.to_tensor(label)).correct_B.numpy()
    for head in (head_of("curricularface"), head_of("arcface", filter_above=0.0)):
        assert np.array_equal(head(paddle.to_tensor(x), paddle.to_tensor(label)).correct_B.numpy(), want)
