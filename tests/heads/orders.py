"""Call a head in random orders, and compare each number with a head that is called in the plain order.

    run_orders(range(50))       # on every rank

The plain head gets the rows and statistics that the head under test has at a forward pass, and takes that
step at once: forward, backward, update. So each call in an order has one right answer. It is the plain head's
numbers, or a UserError if a step's rows have changed since its forward pass, if an update has no gradients,
or if a backward pass would replace gradients that no update has used.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from unittest import mock

import numpy as np
import paddle
import pytest

from plsc import distributed
from plsc.errors import UserError
from plsc.heads.adaptive import CurricularFace
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import AdamW, Momentum
from plsc.heads.softmax import SoftmaxHead

C, D, CALLS = 70, 8, 14
BANKS = [("device", "float32"), ("host", "float32"), ("disk", "float32"), ("disk", "bfloat16")]
# Paddle turns what a PyLayer's backward pass raises into an OSError with its text.
IN_BACKWARD = (UserError, OSError)
OPERATIONS = ["forward"] * 3 + ["backward"] * 3 + ["update"] * 2
OPERATIONS += ["classify", "inspect", "save", "load", "skip", "clear"]


@dataclass
class State:
    """What a head is made of: its rows, the count of updates, the margin's statistics."""

    rows: dict[str, np.ndarray]
    updates: int
    statistics: dict | None


@dataclass
class OpenStep:
    """A forward pass of the head under test, and what the plain head found in that step."""

    emb_BD: paddle.Tensor
    out: object
    lr: float
    number: int
    version: int
    gradients: list[np.ndarray]
    after: State
    has_run: bool = False


def state_of(head: SoftmaxHead) -> State:
    rows = {name: np.array(array[:]) for name, array in head.bank.state().items()}
    return State(rows, head.bank.updates, head.margin.state_dict() if head.margin else None)


def put(head: SoftmaxHead, state: State) -> None:
    head.bank.load_rows(0, state.rows)
    head.load_state_dict({"updates": state.updates})
    if head.margin:
        head.margin.load_state_dict(dict(state.statistics))


def assert_same(found: State, want: State) -> None:
    assert found.updates == want.updates and found.statistics == want.statistics
    for name, rows in want.rows.items():
        assert np.array_equal(found.rows[name], rows), name


class Order:
    """One random order of calls.

    Args:
        seed: for the order, the head's options and all batches. It is the same on every rank.
        folder: for banks on disk.
    """

    def __init__(self, seed: int, folder: str):
        self.rng = np.random.default_rng(seed)
        pick = lambda options: options[self.rng.integers(len(options))]
        bank, dtype = pick(BANKS)
        margins = [lambda: None, ArcFace, CurricularFace]
        margin = pick(margins)
        self.kernels = pick(["0", "1"])
        options = {
            "bank": bank,
            "bank_dtype": dtype,
            "bank_folder": folder,
            "sample_rate": pick([1.0, 0.2]),
            "budget": pick([2000, 1 << 20]),
            "rule": pick([Momentum(0.9, 1e-3), AdamW(0.9, 0.999, 1e-8, 0.1)]),
            "scale": 1.0 if margin() is None else 16.0,
            "bias": margin() is None,
            "init_std": 0.5,
        }
        self.head, self.plain = (make_head(C, D, margin(), seed=seed, **options) for _ in range(2))
        self.open: list[OpenStep] = []
        self.ready: OpenStep | None = None
        self.version = 0
        self.saved = state_of(self.head)
        self.rows = self.saved.rows  # those that the calls so far should have left
        self.refused = 0

    def run(self) -> int:
        """Make the calls -> how many were refused."""
        with mock.patch.dict(os.environ, {"PLSC_KERNELS": self.kernels}):
            for _ in range(CALLS):
                getattr(self, OPERATIONS[self.rng.integers(len(OPERATIONS))])()
                now = state_of(self.head)
                assert_same(now, State(self.rows, now.updates, now.statistics))
        return self.refused

    def _batch(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Draw the samples of all ranks -> embeddings, labels, counts."""
        counts = self.rng.integers(1, 9, distributed.world_size()).tolist()
        count = sum(counts)
        emb = self.rng.standard_normal((count, D)).astype(np.float32)
        return emb, self.rng.integers(0, C, count), counts

    def _call(self, head, emb_ND, label_N, counts, number):
        start = sum(counts[: distributed.rank()])
        own = emb_ND[start : start + counts[distributed.rank()]]
        emb_BD = paddle.to_tensor(own, stop_gradient=False)
        return emb_BD, head(emb_BD, label_N, number, counts=counts)

    def _gradients(self, emb_BD, out) -> list[np.ndarray]:
        return [emb_BD.grad.numpy(), *(grad.numpy().copy() for grad in out.selection.gradients().values())]

    def _refuses(self, call, errors: type | tuple) -> None:
        with pytest.raises(errors, match=r"have changed since|has no gradients|no update\(\) has used"):
            call()
        self.refused += 1

    def forward(self) -> None:
        batch, number, lr = self._batch(), int(self.rng.integers(6)), float(self.rng.uniform(0.01, 0.3))
        put(self.plain, state_of(self.head))
        plain_BD, want = self._call(self.plain, *batch, number)
        want.loss.backward()
        gradients = self._gradients(plain_BD, want)
        self.plain.update(lr, number)
        emb_BD, out = self._call(self.head, *batch, number)
        for name in ("loss", "accuracy", "losses_B", "correct_B"):
            assert np.array_equal(getattr(out, name).numpy(), getattr(want, name).numpy()), name
        after = state_of(self.plain)
        self.open.append(OpenStep(emb_BD, out, lr, number, self.version, gradients, after))

    def backward(self) -> None:
        waiting = [step for step in self.open if not step.has_run]
        if not waiting:
            return
        step = waiting[self.rng.integers(len(waiting))]
        step.has_run = True
        if self.ready:
            self._refuses(step.out.loss.backward, IN_BACKWARD)
            return
        if step.version != self.version:
            self._refuses(step.out.loss.backward, IN_BACKWARD)
            return
        step.out.loss.backward()
        for found, want in zip(self._gradients(step.emb_BD, step.out), step.gradients, strict=True):
            assert np.array_equal(found, want)
        self.ready = step

    def update(self) -> None:
        step, self.ready = self.ready, None
        if step is None or step.version != self.version:
            self._refuses(lambda: self.head.update(0.1), UserError)
            return
        self.head.update(step.lr, step.number)
        assert self.head.bank.updates == step.after.updates
        self.version += 1
        self.rows = step.after.rows

    def skip(self) -> None:
        before = state_of(self.head)
        self.clear()
        undo = self.head.prepare_undo()
        _, out = self._call(self.head, *self._batch(), int(self.rng.integers(6)))
        out.loss.backward()
        undo()
        self.ready = None
        assert_same(state_of(self.head), before)

    def clear(self) -> None:
        self.head.clear_gradients()
        self.ready = None

    def classify(self) -> None:
        before, emb_ND = state_of(self.head), self._batch()[0]
        put(self.plain, before)
        found, want = (head.classify(paddle.to_tensor(emb_ND)) for head in (self.head, self.plain))
        assert [np.array_equal(*both) for both in zip(found, want)] == [True, True]
        assert_same(state_of(self.head), before)

    def inspect(self) -> None:
        before, (emb_ND, label_N, counts) = state_of(self.head), self._batch()
        start = sum(counts[: distributed.rank()])
        own = slice(start, start + counts[distributed.rank()])
        self.head.inspect(paddle.to_tensor(emb_ND[own]), paddle.to_tensor(label_N[own]))
        assert_same(state_of(self.head), before)

    def save(self) -> None:
        self.saved = state_of(self.head)

    def load(self) -> None:
        put(self.head, self.saved)
        self.version += 1
        self.rows = self.saved.rows


def run_orders(seeds: range) -> int:
    """Run an order for each seed -> how many calls were refused."""
    with tempfile.TemporaryDirectory() as folder:
        refused = 0
        for seed in seeds:
            try:
                refused += Order(seed, folder).run()
            except Exception as error:
                raise AssertionError(f"order {seed}") from error
        return refused
