import numpy as np
import pytest

from plsc.data.pair_sampling import draw_negatives, draw_pairs
from plsc.data.transforms import generator
from tests.helpers.refusals import refusal


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
    assert (
        refusal(draw_pairs, labels, 8, "the list")
        == "num_pairs: must be at most 6 (got 8): the list has no more different pairs of a kind"
    )


@pytest.mark.parametrize("labels", [np.arange(4), np.zeros(9, int)], ids=["a picture each", "one class"])
@pytest.mark.parametrize("count", [None, 2])
def test_images_without_any_pair_are_refused_and_not_counted_in_the_log(labels, count, capsys):
    assert refusal(draw_pairs, labels, count, "x").startswith(
        "x: has no pairs; pairs need two classes, and two images of one "
    )
    assert capsys.readouterr().out == ""


def test_few_and_many_negatives_are_drawn_without_repetition():
    labels = np.arange(30) // 2
    every = {(a, b) for a in range(30) for b in range(a + 1, 30) if labels[a] != labels[b]}
    for count in (1, len(every) // 5, len(every)):
        drawn = draw_negatives(labels, count, generator(3))
        assert len({*map(tuple, drawn.tolist())} & every) == count == len(drawn)
