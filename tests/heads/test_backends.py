"""The two ways through a shard against each other: over 50 steps of training, and where a block, a thread or
the budget ends."""

import itertools
from functools import partial

import numpy as np
import paddle
import pytest

from plsc.heads.adaptive import CurricularFace, MagFace
from plsc.heads.backends import KernelBackend, PaddleBackend
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import Momentum
from plsc.heads.step import HeadStep
from plsc.native import onednn
from plsc.native.heads import softmax
from tests.heads.errors import relative
from tests.heads.ways import with_kernels, without_kernels
from tests.helpers.bounds import EPS, assert_within, perturbed

C, D, N = 157, 24, 12
HEADS = {
    "arcface": {"margin": ArcFace(), "scale": 30.0},
    "sampled": {"margin": ArcFace(), "scale": 30.0, "sample_rate": 0.3},
    "host": {"margin": ArcFace(), "scale": 30.0, "sample_rate": 0.3, "bank": "host"},
    "norm": {"margin": MagFace(), "scale": 30.0},
    "bias": {"bias": True},
    "replicated": {"sharded": False},
}


CENTRES = initial_rows(3, 0, C, D, 0.5)
EMBEDDINGS = np.random.default_rng(5).standard_normal((50, N, D)).astype(np.float32)
LABELS = np.random.default_rng(6).integers(0, 40, (50, N))


def train(centres=CENTRES, embeddings=EMBEDDINGS, threads=1, **options):
    """Losses, the last gradient by the embeddings, and what the head holds at the end."""
    paddle.base.core.set_num_threads(threads)
    head, losses = make_head(C, D, seed=3, rule=Momentum(0.9, 1e-3), **options), []
    head.bank.load_rows(0, {**head.bank.state(), "centres": centres.astype(np.float32)})
    for number, numbers in enumerate(embeddings):
        emb = paddle.to_tensor(numbers, dtype="float32", stop_gradient=False)
        out = head(emb, paddle.to_tensor(LABELS[number]), number)
        out.loss.backward()
        head.update(0.05, number)
        losses.append(out.loss.item())
    paddle.base.core.set_num_threads(1)
    return [losses, emb.grad.numpy(), {name: array.copy() for name, array in head.bank.state().items()}]


def backend_of(options):
    head = make_head(C, D, **options)
    step = HeadStep(head.spec, head.memory, paddle.ones([2, D]), np.array([1, 2]), 0, [2])
    step.forward()
    return step.backend


@with_kernels
@pytest.mark.parametrize("name", HEADS)
def test_both_ways_agree_over_50_steps(name, monkeypatch):
    """Rounding grows there as far as numbers do that are off from the start."""
    found = train(**HEADS[name])
    monkeypatch.setenv("PLSC_KERNELS", "0")
    compute = partial(train, **HEADS[name])
    assert_within(found, *perturbed(compute, CENTRES, EMBEDDINGS, terms=C, times=2), paths=2)


@with_kernels
@pytest.mark.parametrize("name", ["arcface", "sampled", "bias"])
def test_blocks_threads_and_budget_do_not_matter(name, monkeypatch):
    want, bound = perturbed(partial(train, **HEADS[name]), CENTRES, EMBEDDINGS[:3], terms=C, times=2)
    # Budgets: exponentials kept, computed again.
    for block, threads, budget in itertools.product((1, 7, 156, 157, 512), (1, 2), (1 << 20, 1)):
        monkeypatch.setattr(softmax, "BLOCK", block)
        found = train(embeddings=EMBEDDINGS[:3], threads=threads, budget=budget, **HEADS[name])
        assert_within(found, want, bound, paths=2)


def test_two_steps_may_be_open_at_once():
    head, emb = make_head(C, D, ArcFace(), scale=64.0), paddle.to_tensor(np.eye(N, D, dtype=np.float32))
    emb.stop_gradient = False
    label = paddle.arange(N)
    head(emb, label).loss.backward()
    want = emb.grad.numpy()
    head.clear_gradients()
    first, second = head(emb, label), head(emb * 2.0 + 1.0, label)
    emb.clear_grad()
    first.loss.backward()
    assert np.array_equal(emb.grad.numpy(), want) and second.loss.item() != first.loss.item()


@pytest.mark.parametrize(
    "options, can",
    [
        (HEADS["sampled"], True),
        ({"margin": CurricularFace(), "scale": 64.0}, False),
        ({"margin": ArcFace(), "scale": 64.0, "sub_centres": 2}, False),
    ],
    ids=["sampled", "others", "sub-centres"],
)
def test_the_kernels_are_taken_where_they_can_else_blocks(options, can, way):
    assert isinstance(backend_of(options), KernelBackend if can and way == "kernels" else PaddleBackend)


def test_the_kernels_multiply_bfloat16_where_onednn_does_else_ops_round(way, monkeypatch):
    """With ONEDNN_MAX_CPU_ISA=AVX2 the oneDNN of Paddle 2.6 does not, whatever the processor has."""
    options = {**HEADS["sampled"], "compute_dtype": "bfloat16"}
    for multiplies in {onednn.has_bfloat16(), False}:
        monkeypatch.setattr(onednn, "has_bfloat16", lambda has=multiplies: has)
        by_kernels = multiplies and way == "kernels"
        assert isinstance(backend_of(options), KernelBackend if by_kernels else PaddleBackend)


@pytest.mark.parametrize("name", ["sampled", "host", "bias"])
def test_bfloat16_trains_as_float32_does_within_its_rounding(way, name):
    bound = 0.1
    losses, grad, state = train(embeddings=EMBEDDINGS[:5], **HEADS[name], compute_dtype="bfloat16")
    want_losses, want_grad, want_state = train(embeddings=EMBEDDINGS[:5], **HEADS[name])
    assert 0 < relative(losses, want_losses) < bound / 10 and relative(grad, want_grad) < bound
    assert relative(state["centres"], want_state["centres"]) < bound / 10


@without_kernels
@pytest.mark.parametrize("gap", [10.0, 80.0, 200.0])
def test_a_block_with_a_tiny_part_of_the_probability_has_exact_gradients(gap):
    """The budget gives each class a block. The targets' blocks have no other class, and one has e^-gap."""
    head = make_head(3, 2, budget=1)
    rows = np.array([[gap, 0], [0, 0], [-1, 1]], np.float32)
    head.bank.load_rows(0, {"centres": rows})
    x, label = np.array([[1, 0.5], [0.5, 1], [1, 1]], np.float32), np.array([1, 2, 0])
    emb = paddle.to_tensor(x, stop_gradient=False)
    out = head(emb, label, 0, counts=[3])
    out.loss.backward()
    logits = x.astype(np.float64) @ rows.T
    dlogits = np.exp(logits - logits.max(1, keepdims=True))
    dlogits = (dlogits / dlogits.sum(1, keepdims=True) - np.eye(3)[label]) / 3
    bound = 64 * EPS * gap
    assert np.abs(emb.grad.numpy() - dlogits @ rows).max() <= bound * np.abs(rows).max()
    got = out.selection.gradients()
    assert np.abs(got["centres"].numpy() - dlogits.T @ x).max() <= bound
