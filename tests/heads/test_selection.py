"""A step and its rows are a value: nothing that is called between its passes changes its numbers."""

import numpy as np
import paddle
import pytest

from plsc.errors import UserError
from plsc.heads.build import make_head
from plsc.heads.margins import CosFace
from plsc.heads.optimizer import Momentum
from plsc.heads.step import HeadStep
from tests.heads.orders import IN_BACKWARD, run_orders
from tests.heads.ways import with_kernels
from tests.helpers.launch import ROOT, launch

C, D, N = 2000, 16, 300
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
LABELS = np.random.default_rng(1).permutation(C)[:N]
BANKS = ["device", "host", "disk"]


def head_of(folder, bank="device", rate=0.1):
    options = {"scale": 8.0, "init_std": 0.5, "seed": 1, "rule": Momentum(0.0)}
    return make_head(C, D, CosFace(0.35), bank=bank, bank_folder=folder, sample_rate=rate, **options)


def forward(head, count=N, number=0):
    emb = paddle.to_tensor(X[:count], stop_gradient=False)
    return emb, head(emb, LABELS[:count], number, counts=[count])


def read(head):
    head.classify(paddle.to_tensor(X))
    head.inspect(paddle.to_tensor(X[:5]), paddle.to_tensor(LABELS[:5]))


@pytest.mark.parametrize("bank", BANKS)
def test_reading_between_the_passes_moves_no_other_row(bank, tmp_path):
    moved = []
    for between in (lambda head: None, read):
        head = head_of(tmp_path, bank)
        before = np.array(head.bank.state()["centres"][:])
        _, out = forward(head)
        between(head)
        out.loss.backward()
        between(head)
        head.update(1.0)
        after = np.array(head.bank.state()["centres"][:])
        moved.append(after)
        assert np.count_nonzero((after != before).any(axis=1)) == out.selection.count < 500
    assert np.array_equal(*moved)


@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("bank", BANKS)
def test_two_forward_passes_have_their_own_gradients(bank, rate, tmp_path):
    """The second selects fewer rows: the first must not write to its memory."""
    head = head_of(tmp_path, bank, rate)
    want = []
    for count, number in ((N, 0), (2, 1)):
        emb, out = forward(head, count, number)
        out.loss.backward()
        want.append([emb.grad.numpy(), out.selection.gradients()["centres"].numpy().copy()])
        head.clear_gradients()
    opened = [forward(head, N, 0), forward(head, 2, 1)]
    for (emb, out), (by_emb, by_centres) in zip(opened, want):
        out.loss.backward()
        assert np.array_equal(emb.grad.numpy(), by_emb)
        assert np.array_equal(out.selection.gradients()["centres"].numpy(), by_centres)
        head.clear_gradients()


def test_a_backward_pass_that_would_lose_gradients_is_refused(tmp_path):
    head = head_of(tmp_path)
    opened = [forward(head)[1] for _ in range(2)]
    opened[0].loss.backward()
    with pytest.raises(IN_BACKWARD, match=r"no update\(\) has used the class centres' gradients"):
        opened[1].loss.backward()
    head.clear_gradients()
    with pytest.raises(UserError, match="^the head has no gradients for the class centres; "):
        head.update(0.1)
    forward(head)[1].loss.backward()
    head.update(0.1)


@pytest.mark.parametrize("change", ["update", "load"])
def test_a_step_whose_rows_have_changed_is_refused(change, tmp_path):
    head = head_of(tmp_path)
    _, first = forward(head)
    _, second = forward(head)
    second.loss.backward()
    if change == "load":
        head.bank.load_rows(0, {"centres": X[:1]})
        with pytest.raises(UserError, match="^the class centres have changed since"):
            head.update(0.1)
    else:
        head.update(0.1)
    with pytest.raises(IN_BACKWARD, match="the class centres have changed since"):
        first.loss.backward()


def test_an_update_without_gradients_is_refused(tmp_path):
    head = head_of(tmp_path)
    _, out = forward(head)
    for _ in range(2):
        with pytest.raises(UserError, match="^the head has no gradients for the class centres; "):
            head.update(0.1)
        before = np.array(head.bank.state()["centres"])
        out = forward(head)[1]
        out.loss.backward()
        head.update(0.1)
        assert not np.array_equal(head.bank.state()["centres"], before)


def test_a_second_backward_pass_of_a_step_is_refused(tmp_path):
    head = head_of(tmp_path)
    step = HeadStep(head.spec, head.memory, paddle.to_tensor(X), LABELS, 0, [N])
    with paddle.no_grad():
        step.forward()
        step.backward(paddle.ones([]))
        with pytest.raises(UserError, match="^a head's step has one backward pass; "):
            step.backward(paddle.ones([]))


@with_kernels
def test_random_orders_of_calls_give_the_plain_numbers():
    assert run_orders(range(50)) > 20


@pytest.mark.slow
@with_kernels
def test_random_orders_on_two_ranks(tmp_path):
    launch(ROOT / "tests/distributed/run_orders.py", 2, tmp_path, 0, 50)


@pytest.mark.parametrize("value, name", [("centres", "centre"), ("bias", "bias")])
def test_a_value_that_is_not_finite_is_named(value, name):
    head = make_head(C, D, bias=True, bank="host", seed=1)
    assert head.bank.select(None).first_not_finite() == ""
    head.bank.state()[value][1234] = np.nan
    assert head.bank.select(None).first_not_finite() == f"the {name} of class 1,234"
    assert head.bank.select(np.array([5, 1234])).first_not_finite() == f"the {name} of class 1,234"
