"""The two ways through a shard against each other: over 50 steps of training, and where a block, a thread or the budget ends."""

import numpy as np
import paddle
import pytest

from plsc.cli.commands.selftest.parts import relative
from plsc.heads import make_head
from plsc.heads.adaptive import CurricularFace, MagFace
from plsc.heads.backends import KernelBackend, PaddleBackend, Workspace
from plsc.heads.kernels import softmax
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import Momentum
from plsc.heads.step import Step
from plsc.utils import kernels

C, D, N = 157, 24, 12
HEADS = {
    "arcface": {"margin": ArcFace(), "scale": 30.0},
    "sampled": {"margin": ArcFace(), "scale": 30.0, "sample_rate": 0.3},
    "host": {"margin": ArcFace(), "scale": 30.0, "sample_rate": 0.3, "bank": "host"},
    "norm": {"margin": MagFace(), "scale": 30.0},
    "bias": {"bias": True},
    "replicated": {"sharded": False},
}


def train(steps=50, threads=1, **options):
    """Losses, the last gradient by the embeddings, and what the head holds at the end."""
    paddle.base.core.set_num_threads(threads)
    head = make_head(C, D, seed=3, rule=Momentum(0.9, 1e-3), init_std=0.5, **options)
    rng, losses = np.random.default_rng(5), []
    for number in range(steps):
        emb = paddle.to_tensor(rng.standard_normal((N, D)), dtype="float32", stop_gradient=False)
        out = head(emb, paddle.to_tensor(rng.integers(0, C, N) % 40), number)
        out.loss.backward()
        head.step(0.05, number)
        losses.append(out.loss.item())
    paddle.base.core.set_num_threads(1)
    state = {name: array.copy() for name, array in head.bank.state().items()}
    return np.array(losses), emb.grad.numpy(), state


def backend_of(options):
    step = Step(make_head(C, D, **options), paddle.ones([2, D]), paddle.to_tensor([1, 2]), 0)
    return step.forward()[1].backend


@pytest.mark.parametrize("name", HEADS)
def test_both_ways_agree_over_50_steps(way, name, monkeypatch):
    if way == "ops":
        pytest.skip("compared in the other run")
    losses, grad, state = train(**HEADS[name])
    monkeypatch.setenv("PLSC_KERNELS", "0")
    other_losses, other_grad, other_state = train(**HEADS[name])
    assert relative(losses, other_losses) < 1e-5 and relative(grad, other_grad) < 1e-5
    assert {key: relative(state[key], other_state[key]) < 1e-5 for key in state} == dict.fromkeys(state, True)


@pytest.mark.parametrize("init_std", [0.5, 0.01])
@pytest.mark.parametrize("sample_rate", [1.0, 0.3])
def test_each_step_agrees_at_scale_64(way, init_std, sample_rate, monkeypatch):
    """Over 50 steps rounding grows there, for either way as much (docs/history/log.md); from the same centres it has nothing to grow from."""
    if way == "ops":
        pytest.skip("compared in the other run")
    heads = [
        make_head(C, D, ArcFace(), scale=64.0, seed=3, init_std=init_std, sample_rate=sample_rate)
        for _ in "ab"
    ]
    rng = np.random.default_rng(5)
    for number in range(50):
        heads[1].bank.load_rows(0, {name: array.copy() for name, array in heads[0].bank.state().items()})
        x, label, found = rng.standard_normal((N, D)), paddle.to_tensor(rng.integers(0, C, N) % 40), []
        for head, kernels_on in zip(heads, "10"):
            monkeypatch.setenv("PLSC_KERNELS", kernels_on)
            emb = paddle.to_tensor(x, dtype="float32", stop_gradient=False)
            loss = head(emb, label, number).loss
            loss.backward()
            grads = head.bank.gradients()["centres"].numpy()[: len(head.bank.index)].copy()
            head.step(0.05, number)
            found.append((loss.numpy(), emb.grad.numpy(), grads, head.bank.state()["centres"].copy()))
        # Either way is within 1e-5 of float64; by the rows, where gradients are small differences, they come close to that.
        bounds = 1e-5, 1e-5, 2e-5, 1e-5
        assert all(relative(got, want) < bound for got, want, bound in zip(*found, bounds)), number


@pytest.mark.parametrize("name", ["arcface", "sampled", "bias"])
@pytest.mark.parametrize("block", [1, 7, 156, 157, 512])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_threads_and_budget_do_not_matter(way, name, block, threads, monkeypatch):
    if way == "ops":
        pytest.skip("the kernels' own blocks")
    want = train(steps=3, **HEADS[name])
    monkeypatch.setattr(softmax, "BLOCK", block)
    for budget in (1 << 20, 1):  # exponentials kept, computed again
        losses, grad, state = train(steps=3, threads=threads, budget=budget, **HEADS[name])
        assert relative(losses, want[0]) < 1e-6 and relative(grad, want[1]) < 1e-5
        assert all(relative(state[key], want[2][key]) < 1e-5 for key in state)


def test_two_steps_may_be_open_at_once():
    head, emb = make_head(C, D, ArcFace(), scale=64.0), paddle.to_tensor(np.eye(N, D, dtype=np.float32))
    emb.stop_gradient = False
    label = paddle.arange(N)
    head(emb, label).loss.backward()
    want = emb.grad.numpy()
    first, second = head(emb, label), head(emb * 2.0 + 1.0, label)
    emb.clear_grad()
    first.loss.backward()
    assert np.array_equal(emb.grad.numpy(), want) and second.loss.item() != first.loss.item()


@pytest.mark.parametrize(
    "options",
    [{"margin": CurricularFace(), "scale": 64.0}, {"margin": ArcFace(), "scale": 64.0, "sub_centres": 2}],
    ids=["others", "sub-centres"],
)
def test_what_the_kernels_cannot_do_goes_by_blocks(options):
    assert isinstance(backend_of(options), PaddleBackend)


def test_the_kernels_are_taken_where_they_can(way):
    assert isinstance(backend_of(HEADS["sampled"]), KernelBackend if way == "kernels" else PaddleBackend)


def test_the_workspace_is_used_again():
    space = Workspace()
    first = space.take(100)
    assert 50 <= len(space.take(50)) < 100  # the first is out
    space.give_back(first)
    assert space.take(80) is first
    space.give_back(first)
    assert space.take(106) is first  # sampling takes a few more or less each step


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernels_multiply_bfloat16_where_the_processor_does_else_ops_round(
    way, dtype, monkeypatch, caplog
):
    options = {**HEADS["sampled"], "compute_dtype": dtype}
    for processor in (True, False):
        monkeypatch.setattr(kernels, "has_bfloat16", lambda has=processor: has and way == "kernels")
        caplog.clear()
        by_kernels = dtype == "bfloat16" and kernels.has_bfloat16()
        assert isinstance(backend_of(options), KernelBackend if by_kernels else PaddleBackend)
        assert ("is slower than float32" in caplog.text) == (not by_kernels)


@pytest.mark.parametrize("name", ["sampled", "host", "bias"])
@pytest.mark.parametrize("dtype,bound", [("bfloat16", 0.1), ("float16", 0.01)])
def test_16_bits_train_as_float32_does_within_their_rounding(way, name, dtype, bound):
    losses, grad, state = train(steps=5, **HEADS[name], compute_dtype=dtype)
    want_losses, want_grad, want_state = train(steps=5, **HEADS[name])
    assert 0 < relative(losses, want_losses) < bound / 10 and relative(grad, want_grad) < bound
    assert relative(state["centres"], want_state["centres"]) < bound / 10
