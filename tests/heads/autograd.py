"""Every margin once more, written as its paper has it: dense, float64, gradients by Paddle's autograd. Slow
and obvious."""

from __future__ import annotations

import math

import numpy as np
import paddle
import paddle.nn.functional as F

from plsc.config import load
from plsc.heads.build import build_head
from tests.helpers.bounds import assert_within, perturbed


def angular(cos, m, paste=True):
    """cos(theta + m), continued beyond pi as ArcFace's authors do."""
    inside = (cos.acos() + m).cos()
    m = m if isinstance(m, paddle.Tensor) else paddle.full_like(cos, m)
    return paddle.where(cos > (math.pi - m).cos(), inside, cos - m * m.sin()) if paste else inside


def falling(cos, m1, m2, m3):
    phi = m1 * cos.acos() + m2
    k = (phi / math.pi).floor().detach()
    return (-1.0) ** k * phi.cos() - 2 * k - m3


def adaface(cos, norm, m=0.4, h=0.333, keep=0.99):
    norm = norm.detach().clip(1e-3, 100.0)
    mean = keep * 20.0 + (1 - keep) * norm.mean()
    deviation = keep * 100.0 + (1 - keep) * norm.std()
    z = ((norm - mean) / (deviation + 1e-3) * h).clip(-1, 1)
    return (cos.acos() - m * z).clip(1e-3, math.pi - 1e-3).cos() - (m + m * z)


def magface(cos, norm, low=10.0, high=110.0, low_margin=0.45, high_margin=0.8):
    m = (high_margin - low_margin) / (high - low) * (norm.clip(low, high) - low) + low_margin
    return angular(cos, m)


TARGETS = {
    "arcface": lambda cos, norm: angular(cos, 0.5),
    "cosface": lambda cos, norm: cos - 0.35,
    "sphereface": lambda cos, norm: falling(cos, 1.7, 0.0, 0.0),
    "combined": lambda cos, norm: falling(cos, 0.9, 0.4, 0.15),
    "adaface": adaface,
    "magface": magface,
    "curricularface": lambda cos, norm: angular(cos, 0.5),
}


def rounded(x, dtype):
    """x in a float dtype, still as float64. Its gradient is computed as if it were x."""
    return x + (x.astype("float32").astype(dtype).astype("float64") - x).detach()


def dense_loss(
    kind,
    x,
    w,
    label,
    scale=64.0,
    sub_centres=1,
    filter_above=None,
    compute_dtype="float32",
    off=None,
):
    """x [N, D], w [C, J D] float64 tensors with gradients, label [N] numpy -> (losses [N], plain cosines [N,
    C]).

    compute_dtype: the unit rows are rounded to it before the product. The target's cosine is exact.
    off: factors [N, C] on the cosines.
    """
    norm = (x * x).sum(axis=1).sqrt()
    unit_x = x / norm.unsqueeze(1)
    w = w.reshape([len(w) * sub_centres, -1])
    unit_w = w / (w * w).sum(axis=1, keepdim=True).sqrt()
    cos = _cosines(unit_x, unit_w, sub_centres)
    cos = cos if off is None else (cos * paddle.to_tensor(off)).clip(-1, 1)
    hot = F.one_hot(paddle.to_tensor(label), cos.shape[1]).astype("float64")
    own = (cos * hot).sum(axis=1)
    if compute_dtype != "float32":
        cos = _cosines(rounded(unit_x, compute_dtype), rounded(unit_w, compute_dtype), sub_centres)
    target = TARGETS[kind](own, norm)
    others = cos
    if kind == "curricularface":
        t = 0.01 * own.mean().detach()
        others = paddle.where(cos.detach() > target.detach().unsqueeze(1), cos * (t + cos), cos)
    if filter_above is not None:
        others = paddle.where(cos.detach() > filter_above, paddle.zeros_like(cos), others)
    logits = scale * (others * (1 - hot) + target.unsqueeze(1) * hot)
    losses = paddle.logsumexp(logits, axis=1) - (logits * hot).sum(axis=1)
    if kind == "magface":
        a = norm.clip(10.0, 110.0)
        losses = losses + 35.0 * (a / 110.0**2 + 1.0 / a)
    return losses, cos


def _cosines(unit_x, unit_w, sub_centres):
    return paddle.matmul(unit_x, unit_w, transpose_y=True).reshape([len(unit_x), -1, sub_centres]).max(axis=2)


def exact_gradients(kind, x, w, label, **options):
    """-> what `dense_gradients` gives, and its bounds. A float32 cosine near 1 knows its angle less well than
    the numbers."""
    off = np.ones((len(x), len(w)))
    compute = lambda x, w, off: dense_gradients(kind, x, w, label, off=off, **options)
    return perturbed(compute, x, w, off, terms=64)


def dense_gradients(kind, x, w, label, **options):
    """Float64 numpy: losses [N], and the gradients of their mean by x and by w."""
    x = paddle.to_tensor(np.asarray(x, np.float64), stop_gradient=False)
    w = paddle.to_tensor(np.asarray(w, np.float64), stop_gradient=False)
    losses, _ = dense_loss(kind, x, w, label, **options)
    losses.mean().backward()
    return [losses.numpy(), x.grad.numpy(), w.grad.numpy()]


D = 16
COMBINED = {"margin1": 0.9, "margin2": 0.4, "margin3": 0.15}


def head_of(kind, num_classes=37, scale=16.0, **more):
    more = {**(COMBINED if kind == "combined" else {}), **more}
    cfg = load(None, [f"Head.name=dist_{kind}", f"Head.scale={scale}", "Head.init_std=0.5"])
    cfg = load(cfg, {f"Head.{key}": value for key, value in more.items()})
    return build_head(cfg.Head, cfg.Optimizer.build_rule(), num_classes, D, seed=3)


def gradients(head, x, label):
    head.clear_gradients()
    emb = paddle.to_tensor(x, dtype="float32", stop_gradient=False)
    out = head(emb, paddle.to_tensor(label))
    out.loss.backward()
    return [out.losses_B.numpy(), emb.grad.numpy(), out.selection.gradients()["centres"].numpy()]


def assert_equal_to_dense(kind, head, x, label, **options):
    want = exact_gradients(kind, x, head.bank.state()["centres"], label, scale=head.spec.scale, **options)
    assert_within(gradients(head, x, label), *want)


def samples(seed=0, norm=30.0, count=24):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, D)).astype(np.float32)
    return x * np.float32(norm / 4) * rng.uniform(0.2, 3, (count, 1)).astype(np.float32), rng.integers(
        0, 37, count
    )
