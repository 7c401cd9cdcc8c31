"""Classes by name: rows of one list in another, and reading no others."""

import numpy as np
import pytest

from plsc.checkpoint.class_names import format_names, match_names, pick_rows, refuse_duplicates
from plsc.errors import UserError


def test_names_are_found_wherever_they_stand():
    rows, dropped = match_names(["Ann", "Bob", "Cy"], ["Zoe", "Cy", "Ann"])
    assert rows.tolist() == [-1, 2, 0] and rows.dtype == np.int64 and dropped == ["Bob"]
    rng = np.random.default_rng(0)
    there, here = (rng.permutation(200)[:120].astype(str).tolist() for _ in range(2))
    rows, dropped = match_names(there, here)
    assert [row if row >= 0 else None for row in rows.tolist()] == [
        there.index(name) if name in there else None for name in here
    ]
    assert dropped == [name for name in there if name not in here]


def test_only_the_rows_that_are_asked_for_are_read():
    table, read = np.arange(40).reshape(20, 2), []

    def reader(start, stop):
        read.append((start, stop))
        return table[start:stop]

    wanted = np.array([7, 3, 4, 19, 5, 0])
    assert pick_rows(reader, wanted).tolist() == table[wanted].tolist()
    assert read == [(0, 1), (3, 6), (7, 8), (19, 20)]


def test_twins_are_refused():
    refuse_duplicates(["Ann", "Bob"], "here")
    refuse_duplicates([], "here")
    with pytest.raises(
        UserError, match="^here: 2 classes are called 'Ann'; each class needs a name of its own$"
    ):
        refuse_duplicates(["Ann", "Bob", "Ann"], "here")


def test_few_names_are_listed_in_full():
    assert format_names(["a", "b"]) == "a, b"
    assert format_names(list("abcdefghijkl")) == "a, b, c, d, e, f, g, h, i, j, and 2 more"
