"""Times of collectives against closed forms."""

import pytest

from plsc.apps.plan.paper.collectives import (
    Link,
    Machines,
    all_gather,
    all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)

FREE = Link(0.0, 1e9)
SLOW_START = Link(1e-3, 1e9)


@pytest.mark.parametrize("ranks, seconds", [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75), (1000, 1.998)])
def test_a_ring_sends_each_byte_twice_but_for_a_piece(ranks, seconds):
    assert ring_all_reduce(1e9, ranks, FREE) == pytest.approx(seconds)
    assert all_gather(1e9, ranks, FREE) == pytest.approx(seconds / 2)


def test_latency_counts_once_a_step():
    assert ring_all_reduce(0, 8, SLOW_START) == pytest.approx(14e-3)
    assert all_gather(0, 8, SLOW_START) == pytest.approx(7e-3)
    assert tree_all_reduce(0, 8, SLOW_START) == pytest.approx(6e-3)
    assert tree_all_reduce(1e9, 1, SLOW_START) == 0


def test_a_tree_is_taken_for_few_bytes_and_a_ring_for_many():
    few, many = 1e3, 1e9
    assert all_reduce(few, 64, SLOW_START) == tree_all_reduce(few, 64, SLOW_START)
    assert all_reduce(many, 8, SLOW_START) == ring_all_reduce(many, 8, SLOW_START)
    assert all_reduce(few, 1, SLOW_START) == 0


def test_machines_send_all_bytes_over_their_network_and_the_inside_twice():
    machines = Machines(2, 4, FREE, Link(0.0, 1e8))
    inside, between = machines.all_reduce(1e9)
    assert inside == pytest.approx(2 * 3 / 4) and between == pytest.approx(10.0)
    assert machines.all_gather(1e9) == (pytest.approx(0.75), pytest.approx(5.0))


def test_one_machine_with_one_rank_sends_nothing():
    assert Machines(1, 1, SLOW_START, SLOW_START).all_reduce(1e9) == (0, 0)
    assert Machines(1, 1, SLOW_START, SLOW_START).all_gather(1e9) == (0, 0)
