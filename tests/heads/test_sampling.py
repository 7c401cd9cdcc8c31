"""Partial FC's draw, and what it does not touch. tests/distributed/test_head.py has its losses and
gradients."""

import numpy as np
import paddle
import pytest

from plsc.distributed.device import takes_device_path
from plsc.heads import sampling
from plsc.heads.banks.bank import initial_rows
from plsc.heads.build import make_head
from plsc.heads.margins import ArcFace
from plsc.heads.optimizer import Momentum
from plsc.heads.sampling import ClassShard, draw_classes, merge_classes
from plsc.utils.sharding import split
from tests.heads.ways import without_kernels
from tests.helpers.bounds import assert_within, perturbed


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(sampling, "_BLOCK", 64)


@without_kernels
@pytest.mark.parametrize("positives", [[], [0], [99], [0, 1, 2, 50, 98, 99], list(range(100))])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1, 0.001])
def test_holds_every_positive_and_the_draw(positives, rate):
    shard = ClassShard(1000, 300, 400)
    chosen = merge_classes(draw_classes(shard, rate, seed=1, step=2), np.array(positives, np.int64))
    assert chosen.dtype == np.int64 and (np.diff(chosen) > 0).all()
    assert set(chosen) == set(positives) | set(draw_classes(shard, rate, seed=1, step=2))


@without_kernels
@pytest.mark.parametrize(
    "rate,counts", [(1.0, {1003}), (0.3, {300, 301}), (0.1, {100, 101}), (0.001, {1, 2}), (1e-6, {0, 1})]
)
def test_as_many_distinct_classes_as_the_rate_says(rate, counts):
    for step in range(20):
        drawn = draw_classes(ClassShard(1003, 0, 1003), rate, 5, step)
        assert (np.diff(drawn) > 0).all() and len(drawn) in counts
        assert not len(drawn) or (drawn[0] >= 0 and drawn[-1] < 1003)


@without_kernels
@pytest.mark.parametrize("rate", [0.3, 0.01])
@pytest.mark.parametrize("num_classes", [1, 63, 64, 65, 128, 1003])
def test_any_number_of_ranks_draws_the_same(num_classes, rate, small_blocks):
    for step in range(5):
        whole = draw_classes(ClassShard(num_classes, 0, num_classes), rate, 5, step)
        for ranks in (1, 2, 3, 4, 7, 1100) if step == 0 else (2, 3, 4):
            shards = [ClassShard(num_classes, *part) for part in split(num_classes, ranks)]
            parts = [draw_classes(shard, rate, 5, step) + shard.start for shard in shards]
            assert np.array_equal(np.concatenate(parts), whole)


@without_kernels
def test_each_class_is_drawn_with_the_rate(small_blocks):
    """Whole block and tail, alone and in pairs: 0.13 x 64 = 8.32 from the block, 0.13 x 21 = 2.73 from the
    tail."""
    steps, rate = 20_000, 0.13
    taken = np.zeros((steps, 85), np.float32)
    for step in range(steps):
        taken[step, draw_classes(ClassShard(85, 0, 85), rate, 0, step)] = 1
    counts = taken.sum(0)
    assert np.abs(counts - steps * rate).max() < 4.5 * np.sqrt(steps * rate * (1 - rate))
    # Two classes in one block: E[k (k - 1)] / (n (n - 1)) if k are drawn from n. In two blocks: the squared
    # rate.
    pairs = taken.T @ taken / steps
    for block, n in ((slice(0, 64), 64), (slice(64, 85), 21)):
        whole, more = divmod(rate * n, 1)
        together = whole * (whole - 1 + 2 * more) / (n * (n - 1))
        found = pairs[block, block][~np.eye(n, dtype=bool)]
        assert np.abs(found - together).max() < 5 * np.sqrt(together / steps)
    assert np.abs(pairs[:64, 64:] - rate**2).max() < 5 * rate / np.sqrt(steps)
    # From one step to the next: as independent as two blocks.
    assert np.abs(taken[1:].T @ taken[:-1] / steps - rate**2).max() < 5 * rate / np.sqrt(steps)


@without_kernels
def test_the_draw_depends_on_seed_and_step_alone(small_blocks):
    shard = ClassShard(1000, 0, 1000)
    first = draw_classes(shard, 0.1, 1, 2)
    assert np.array_equal(first, draw_classes(shard, 0.1, 1, 2))
    for other in ((2, 2), (1, 3)):
        assert not np.array_equal(first, draw_classes(shard, 0.1, *other))
    assert not np.array_equal(first[first < 64], first[(first >= 64) & (first < 128)] - 64)  # blocks differ


def train(rate, steps, num_classes=60):
    head = make_head(
        num_classes, 8, ArcFace(0.3), scale=16.0, sample_rate=rate, rule=Momentum(0.9, 1e-3), seed=4
    )
    rng = np.random.default_rng(0)
    taken = np.zeros(num_classes, bool)
    for step in range(steps):
        emb = paddle.to_tensor(rng.standard_normal((6, 8)), dtype="float32", stop_gradient=False)
        out = head(emb, paddle.to_tensor(rng.integers(0, 12, 6)), step)
        out.loss.backward()
        head.update(0.1)
        taken[out.selection.index_K] = True
        yield head, taken


def test_unsampled_rows_keep_their_bytes():
    start = None
    for step, (head, taken) in enumerate(train(0.01, 50)):
        state = {name: rows.copy() for name, rows in head.bank.state().items()}
        start = start or {"centres": make_head(60, 8, ArcFace(0.3), seed=4).bank.state()["centres"].copy()}
        assert state["centres"][~taken].tobytes() == start["centres"][~taken].tobytes(), step
        assert not state["momentum"][~taken].any()
    assert 5 < taken.sum() < 60 and (state["centres"][taken] != start["centres"][taken]).all()


def test_a_rate_of_one_is_the_full_head():
    """Bit for bit: the same rows, although drawn and written back instead of used in place. If rows are
    selected on the device, there is room for more, and products with another shape round otherwise."""
    embeddings = np.random.default_rng(0).standard_normal((5, 64, 8)).astype(np.float32)

    def train(centres, embeddings, rate=1.0):
        head = make_head(60, 8, ArcFace(0.3), scale=16.0, sample_rate=rate, rule=Momentum(0.9, 1e-3), seed=4)
        head.bank.load_rows(0, {**head.bank.state(), "centres": centres.astype(np.float32)})
        for step in range(5):
            emb = paddle.to_tensor(embeddings[step], dtype="float32", stop_gradient=False)
            label = paddle.to_tensor(np.arange(64) % 60)  # all positives, so all are taken
            head(emb, label, step).loss.backward()
            head.update(0.1)
        return [head.bank.state()["centres"].copy(), emb.grad.numpy()]

    centres = initial_rows(4, 0, 60, 8, 0.5)
    full, sampled = train(centres, embeddings), train(centres, embeddings, rate=0.99999)
    if takes_device_path():
        _, bound = perturbed(train, centres, embeddings, terms=64)
        assert_within(sampled, full, bound, paths=2)
    else:
        assert all(got.tobytes() == want.tobytes() for got, want in zip(sampled, full))
