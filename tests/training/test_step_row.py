"""What ranks pack into their rows is what every rank reads from them."""

import numpy as np
import paddle
import pytest

from plsc.training.step_row import StepRow, unpack

GOOD = {
    "bad_before_step": False,
    "bad_backbone": False,
    "bad_loss": False,
    "alike": False,
    "waited": 0.1,
    "signal": 0,
    "replaced": 0,
    "label_B": np.arange(0),
}


def row(**changed):
    """One rank's row: GOOD, with some fields changed."""
    fields = GOOD | changed
    flags = {name: paddle.to_tensor([value]) for name, value in fields.items() if isinstance(value, bool)}
    return StepRow(**fields | flags, loss=paddle.to_tensor(0.1), accuracy=paddle.to_tensor(0.75))


def summary(rows, most=0, counts=()):
    return unpack(np.concatenate([row.pack(most).numpy() for row in rows]), counts)


def test_a_row_is_one_line_of_float64():
    packed = row(label_B=np.array([7])).pack(3)
    assert (packed.dtype, packed.shape) == (paddle.float64, [1, 12])
    assert packed.stop_gradient


def test_good_ranks_take_the_step():
    read = summary([row(), row()])
    assert read.finite and not read.alike
    assert read.loss == float(np.float32(0.1)) and read.accuracy == 0.75
    assert (read.waited, read.signal, read.replaced, read.label_N) == (0.1, 0, 0, None)


@pytest.mark.parametrize("name", ["bad_before_step", "bad_backbone", "bad_loss"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_bad_rank_stops_the_step_of_all(name, rank):
    rows = [row(**{name: number == rank}) for number in range(3)]
    read = summary(rows)
    assert not read.finite
    assert [field for field in GOOD if field.startswith("bad") and getattr(read, field)] == [name]


def test_ranks_are_alike_only_together():
    assert summary([row(alike=True), row(alike=True)]).alike
    assert not summary([row(alike=True), row()]).alike


def test_waits_and_signals_are_the_largest_and_replaced_images_the_sum():
    read = summary([row(waited=2.5, replaced=3), row(signal=15), row(replaced=4)])
    assert (read.waited, read.signal, read.replaced) == (2.5, 15, 7)


def test_labels_follow_one_another_without_the_padding():
    largest = 2**31 + 1  # more than a float32 holds exactly
    rows = [row(label_B=np.array(labels)) for labels in ([largest, 0, 5], [4], [8, 9])]
    read = summary(rows, 3, [3, 1, 2])
    assert read.label_N.dtype == np.int64
    assert read.label_N.tolist() == [largest, 0, 5, 4, 8, 9]
