import math

import pytest

from plsc.utils.text import duration, number, table


@pytest.mark.parametrize(
    "value, text",
    [
        (7.00004, "7.000"), (0.0123456, "0.01235"), (999.99, "1000"), (15123.7, "15124"),
        (1.5e-7, "1.500e-07"), (2e9, "2.000e+09"), (0, "0.000"), (-3.14159, "-3.142"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


def test_durations():
    assert [duration(s) for s in (0.4, 62, 3600 * 27 + 59.6)] == ["0:00:00", "0:01:02", "27:01:00"]


def test_table_lines_up():
    text = table([["alef", 12, 0.5], ["bet", None, 15.25]], ["set", "pairs", "score"])
    assert text.splitlines() == [
        "set   pairs  score",
        "----  -----  ------",
        "alef  12     0.5000",
        "bet   -      15.25",
    ]
    assert table([], ["set"]) == "set\n---"
