import numpy as np
import pytest

from plsc.data.pair_sampling import alternating, check_pairs, draw_negatives, draw_pairs
from plsc.data.transforms import generator
from plsc.errors import UserError


@pytest.mark.parametrize(
    "labels", [[0, 0, 1, 1], np.arange(60) // 3, [5, 2, 5, 2, 9, 9, 9, 2, 5, 5], np.arange(500) % 7]
)
def test_pairs_are_what_they_say_and_differ(labels):
    labels = np.array(labels)
    different = {(a, b) for a in range(len(labels)) for b in range(a) if labels[a] == labels[b]}
    for count in {1, 2, min(7, 2 * len(different)), 2 * min(len(different), 40)}:
        if (labels[:, None] != labels).sum() // 2 < count // 2:
            continue
        pairs, same = draw_pairs(labels, count, "x")
        assert pairs.shape == (count, 2) and pairs.dtype == np.int64
        assert same.tolist() == [index % 2 == 0 for index in range(count)], "every fold is balanced"
        assert np.array_equal(labels[pairs[:, 0]] == labels[pairs[:, 1]], same)
        assert len({frozenset(pair) for pair in pairs.tolist()}) == count, "no pair comes twice"
        assert np.array_equal(pairs, draw_pairs(labels, count, "x")[0])


def test_classes_give_as_many_positive_pairs_each_as_they_have():
    labels = np.repeat(np.arange(4), [2, 3, 10, 100])
    pairs, same = draw_pairs(labels, 2 * 12, "x")
    assert np.bincount(labels[pairs[same, 0]]).tolist() == [1, 3, 4, 4]


def test_more_pairs_than_there_are_is_refused():
    labels = np.array([0, 0, 0, 1])
    with pytest.raises(
        UserError,
        match=r"^num_pairs: must be at most 6 \(got 8\): the list has no more different pairs of a kind$",
    ):
        draw_pairs(labels, 8, "the list")


@pytest.mark.parametrize("labels", [np.arange(4), np.zeros(9, int)], ids=["a picture each", "one class"])
@pytest.mark.parametrize("count", [None, 2])
def test_images_without_any_pair_are_refused_and_not_counted_in_the_log(labels, count, capsys):
    with pytest.raises(UserError, match="^x: has no pairs; these need two classes, and two images of one "):
        draw_pairs(labels, count, "x")
    assert capsys.readouterr().out == ""


def test_few_and_many_negatives_are_drawn_without_repetition():
    labels = np.arange(30) // 2
    every = {(a, b) for a in range(30) for b in range(a + 1, 30) if labels[a] != labels[b]}
    for count in (1, len(every) // 5, len(every)):
        drawn = draw_negatives(labels, count, "x", generator(3))
        assert len({*map(tuple, drawn.tolist())} & every) == count == len(drawn)


def test_kinds_are_spread_evenly_and_keep_their_own_order():
    same = np.array([True] * 3 + [False] * 3)
    assert alternating(same).tolist() == [0, 3, 1, 4, 2, 5]
    assert alternating(~same).tolist() == [3, 0, 4, 1, 5, 2]
    rng = np.random.default_rng(0)
    for positives, negatives in ((500, 500), (100, 900), (700, 33), (5, 0), (0, 5)):
        same = rng.permutation(np.arange(positives + negatives) < positives)
        order = alternating(same)
        assert sorted(order.tolist()) == list(range(len(same)))
        assert (np.diff(order[same[order]]) > 0).all() and (np.diff(order[~same[order]]) > 0).all()
        counts = [int(fold.sum()) for fold in np.array_split(same[order], 5)]
        assert max(counts) - min(counts) <= 2  # the folds themselves differ by one


def test_pairs_that_prove_nothing_are_said_and_contradictions_refused(capsys):
    pairs = np.array([[0, 1], [2, 2], [1, 0], [3, 4], [0, 1]])
    same = np.array([True, True, True, False, True])
    check_pairs(pairs, same, "pairs.csv", lambda number: f"line {number + 1}")
    said = capsys.readouterr().out
    assert "pairs.csv: 1 pair of one with itself, which proves nothing: line 2" in said
    assert "pairs.csv: 2 pairs given before, or turned round, which proves nothing: line 3, line 5" in said
    check_pairs(np.array([[0, 1], [0, 2]]), np.array([True, False]), "pairs.csv", str)
    assert capsys.readouterr().out == ""
    same[2] = False
    with pytest.raises(UserError) as raised:
        check_pairs(pairs, same, "pairs.csv", lambda number: f"line {number + 1}")
    assert str(raised.value).startswith(
        "pairs.csv: line 1 and line 3; line 3 and line 5: the same two, of one"
    )
