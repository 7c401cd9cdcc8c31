"""Each margin against its paper's formula by dense float64 autograd, at random points and at the edges, and
on its own where that helps."""

import re

import numpy as np
import paddle
import pytest

from plsc.config import load
from plsc.errors import UserError
from plsc.heads.adaptive import AdaFace
from plsc.heads.build import build_margin, make_head
from plsc.heads.config import MARGINS, MarginCfg
from plsc.heads.margins import ArcFace, Margin, Target, apply_margin, check_slopes
from plsc.utils.section import arguments_of
from tests.heads.autograd import (
    COMBINED,
    TARGETS,
    D,
    assert_equal_to_dense,
    gradients,
    head_of,
    samples,
)
from tests.heads.errors import relative
from tests.heads.ways import without_kernels
from tests.helpers.bounds import EPS, roundings
from tests.helpers.refusals import refusal

GRID = np.linspace(-1, 1, 2001)


@without_kernels
def test_every_built_in_margin_has_a_reference_and_its_constants_in_the_config():
    assert set(TARGETS) == set(MARGINS.builtin)
    for name in MARGINS.builtin:
        cls, section = MARGINS.get(name), type(load(None, [f"Head.name={name}"]).Head)
        assert section.model_fields.keys() - MarginCfg.model_fields.keys() == arguments_of(cls)[0].keys()


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
    assert_equal_to_dense(kind, head, x, label)


@pytest.mark.parametrize("kind", list(TARGETS))
def test_finite_on_the_axis_and_for_embeddings_and_centres_of_zero(kind):
    head = head_of(kind, num_classes=4)
    centres = 2 * np.eye(4, D, dtype=np.float32)
    centres[3] = 0
    head.bank.load_rows(0, {"centres": centres})
    x = np.zeros((5, D), np.float32)
    x[0, 0], x[1, 1], x[2, 0], x[4, 2] = 30, -30, 30, 3
    losses, dx, dw = gradients(head, x, np.array([0, 1, 1, 2, 3]))
    head.update(0.1)
    for numbers in (losses, dx, dw, head.bank.state()["centres"]):
        assert np.isfinite(numbers).all()
    assert (dx[3] == 0).all() and (dw[3] == 0).all()  # nothing to turn


@without_kernels
@pytest.mark.parametrize("kind", ["arcface", "combined", "sphereface"])
def test_the_target_falls_with_the_angle_everywhere(kind):
    margin = build_margin(head_config(kind))
    found = margin(paddle.to_tensor(GRID, dtype="float32"), paddle.ones([len(GRID)]))
    cosine = found.cosine.numpy().astype(np.float64)
    assert (np.diff(cosine) > -2 * roundings(1) * EPS * np.abs(cosine).max()).all()
    assert (found.slope.numpy() >= 0).all() and np.isfinite(found.slope.numpy()).all()


def head_config(kind):
    cfg = load(None, [f"Head.name={kind}"])
    return (
        load(cfg, {f"Head.{key}": value for key, value in COMBINED.items()}) if kind == "combined" else cfg
    ).Head


def test_straight_through_has_the_value_with_margin_and_the_gradient_without():
    x, label = samples()
    exact, through = head_of("arcface"), head_of("arcface", gradient="straight_through")
    losses, dx, _ = gradients(through, x, label)
    assert np.array_equal(losses, gradients(exact, x, label)[0])
    assert relative(dx, gradients(exact, x, label)[1]) > 1e-2
    head = make_head(37, D, Straight(), scale=16.0, init_std=0.5, seed=3)
    assert np.array_equal(dx, gradients(head, x, label)[1])


class Straight(ArcFace):
    def __call__(self, cos_N, norm_N):
        return Target(super().__call__(cos_N, norm_N).cosine, paddle.ones_like(cos_N))


class Formula(Margin):
    def __call__(self, cos_N, norm_N):
        return cos_N * cos_N - 0.1


@without_kernels
def test_a_margin_that_gives_its_formula_alone_has_the_slope_of_autograd():
    cos = paddle.to_tensor(GRID, dtype="float32")
    with paddle.no_grad():
        found = apply_margin(Formula(), cos, paddle.ones([len(GRID)]))
    np.testing.assert_allclose(found.slope.numpy(), 2 * GRID, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.cosine.numpy(), GRID**2 - 0.1, rtol=1e-6, atol=1e-7)
    assert not found.norm_slope.numpy().any() and found.cosine.stop_gradient


def by_numpy(cos_N):
    return paddle.to_tensor(np.cos(np.arccos(cos_N.numpy()) + 0.1))


@without_kernels
@pytest.mark.parametrize(
    "returned, said",
    [
        (
            lambda cos: None,
            "a NoneType; a margin must return the new cosines (float32 [3]), or a ",
        ),
        (lambda cos: cos[:2], "float32 [2]; "),
        (lambda cos: cos.astype("float64"), "float64 [3]; "),
        (lambda cos: Target(cos, 1.0), "float32 [3] and a float; "),
        (
            by_numpy,
            (
                "cosines that autograd cannot differentiate with respect to the old cosines; compute the new "
                "cosines with Paddle's operators, or return a "
            ),
        ),
    ],
)
def test_a_margin_that_returns_something_else_is_one_line(returned, said):
    class Wrong(Margin):
        def __call__(self, cos_N, norm_N):
            return returned(cos_N)

    with pytest.raises(UserError, match=f"^Head.name: Wrong returned {re.escape(said)}"), paddle.no_grad():
        apply_margin(Wrong(), paddle.full([3], 0.5), paddle.ones([3]))


class InPlace(Margin):
    def __call__(self, cos_N, norm_N):
        return cos_N.subtract_(paddle.full([1], 0.3))


def test_a_margin_that_changes_the_cosines_is_refused():
    assert refusal(check_slopes, InPlace()) == (
        "Head.name: InPlace changes its arguments, which the head still needs; compute new tensors, for "
        "example with cos - 0.3 instead of cos.subtract_"
    )


class Halved(Margin):
    """With a slope of its own, by `factor` the right one."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, cos_N, norm_N):
        return Target(cos_N * cos_N / 2, self.factor * cos_N)


@without_kernels
def test_a_slope_that_the_cosines_do_not_have_is_refused():
    for right in (Halved(1.0), Formula(), ArcFace()):
        check_slopes(right)
    said = (
        "Halved returns the slope -0.66 at the cosine -0.6, but the derivative of its cosines is -0.6; return"
    )
    with pytest.raises(UserError, match=f"^Head.name: {said}"):
        check_slopes(Halved(1.1))


class ByNorm(Margin):
    """Falls with the norm, and says so by `slope` (None: autograd does)."""

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, cos_N, norm_N):
        moved_N = cos_N - 0.01 * norm_N
        if self.slope == "autograd":
            return moved_N
        slope_N = None if self.slope is None else paddle.full_like(norm_N, self.slope)
        return Target(moved_N, paddle.ones_like(cos_N), slope_N)


@without_kernels
@pytest.mark.parametrize("slope", [None, 0.02])
def test_a_slope_by_the_norm_that_the_cosines_do_not_have_is_refused(slope):
    check_slopes(ByNorm(-0.01))
    check_slopes(AdaFace())
    said = (
        f"ByNorm returns the norm_slope {slope or 0:.3g} at the norm 18, but the derivative of its cosines is"
    )
    with pytest.raises(UserError, match=f"^Head.name: {re.escape(said)}"):
        check_slopes(ByNorm(slope))


@pytest.mark.parametrize("slope", [-0.01, "autograd"])
def test_the_slope_by_the_norm_is_trained_without_a_penalty(slope):
    """Longer embeddings have a smaller target: the loss grows along them, whatever their angles."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 8)).astype(np.float32)
    head = make_head(9, 8, ByNorm(slope), scale=4.0, init_std=0.5)

    def loss_of(x):
        emb = paddle.to_tensor(x.astype(np.float32), stop_gradient=False)
        out = head(emb, paddle.arange(6))
        return emb, out

    emb, out = loss_of(x)
    out.loss.backward()
    along = (emb.grad.numpy() * x).sum()
    step = 1e-2
    longer, shorter = (loss_of(x * (1 + sign * step))[1].loss.item() for sign in (1, -1))
    assert along == pytest.approx((longer - shorter) / (2 * step), rel=1e-2) and along > 0.01
