"""Partial FC's draw by itself, and what it leaves alone; its losses and gradients: tests/distributed/test_head.py."""

import numpy as np
import paddle
import pytest

from plsc.heads.margins import ArcFace
from plsc.heads.sampling import choose_classes
from plsc.heads.softmax import SoftmaxHead


@pytest.mark.parametrize("positives", [[], [0], [99], [0, 1, 2, 50, 98, 99], list(range(100))])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1, 0.001])
def test_holds_every_positive_and_the_right_number_of_distinct_classes(positives, rate):
    positives = np.array(positives, np.int64)
    chosen = choose_classes(positives, 100, rate, seed=1, step=2, rank=3)
    assert len(chosen) == max(len(positives), int(rate * 100))
    assert (np.diff(chosen) > 0).all() and np.isin(positives, chosen).all()
    assert not len(chosen) or (chosen[0] >= 0 and chosen[-1] < 100)


def test_negatives_are_uniform():
    counts = np.zeros(20)
    for step in range(4000):
        counts[choose_classes(np.array([3, 4, 17]), 20, 0.4, 0, step, 0)] += 1
    assert (counts[[3, 4, 17]] == 4000).all()
    negatives = np.delete(counts, [3, 4, 17])  # 5 of 17 each time: 1176 expected, deviation 29
    assert np.abs(negatives - 4000 * 5 / 17).max() < 4.5 * 29


def test_the_draw_depends_on_seed_step_and_rank_alone():
    first = choose_classes(np.array([5]), 1000, 0.1, 1, 2, 3)
    assert np.array_equal(first, choose_classes(np.array([5]), 1000, 0.1, 1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(first, choose_classes(np.array([5]), 1000, 0.1, *other))


def train(rate, steps, num_classes=60):
    head = SoftmaxHead(num_classes, 8, ArcFace(0.3), scale=16.0, sample_rate=rate, weight_decay=1e-3, seed=4)
    rng = np.random.default_rng(0)
    taken = np.zeros(num_classes, bool)
    for step in range(steps):
        emb = paddle.to_tensor(rng.standard_normal((6, 8)), dtype="float32", stop_gradient=False)
        head(emb, paddle.to_tensor(rng.integers(0, 12, 6)), step).loss.backward()
        head.step(0.1)
        taken[head.bank.index] = True
        yield head, taken


def test_unsampled_rows_keep_their_bytes():
    start = None
    for step, (head, taken) in enumerate(train(0.01, 50)):
        state = {name: rows.copy() for name, rows in head.bank.state().items()}
        start = start or {"centres": SoftmaxHead(60, 8, ArcFace(0.3), seed=4).bank.state()["centres"].copy()}
        assert state["centres"][~taken].tobytes() == start["centres"][~taken].tobytes(), step
        assert not state["momentum"][~taken].any()
    assert 5 < taken.sum() < 60 and (state["centres"][taken] != start["centres"][taken]).all()


def test_the_state_does_not_grow():
    sizes = [sum(rows.nbytes for rows in head.bank.state().values()) for head, _ in train(0.3, 100)]
    assert set(sizes) == {2 * 60 * 8 * 4}


def test_a_rate_of_one_is_the_full_head():
    """Bit for bit: the same rows, although drawn and written back instead of used in place."""
    results = []
    for rate in (1.0, 0.99999):
        head = SoftmaxHead(60, 8, ArcFace(0.3), scale=16.0, sample_rate=rate, weight_decay=1e-3, seed=4)
        rng = np.random.default_rng(0)
        for step in range(5):
            emb = paddle.to_tensor(rng.standard_normal((64, 8)), dtype="float32", stop_gradient=False)
            head(
                emb, paddle.to_tensor(np.arange(64) % 60), step
            ).loss.backward()  # all positives, so all are taken
            head.step(0.1)
        results.append((head.bank.state()["centres"].tobytes(), emb.grad.numpy().tobytes()))
    assert results[0] == results[1]
