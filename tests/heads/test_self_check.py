"""The comparison before a training: a right head passes on both ways, a wrong one is refused in one line."""

from dataclasses import replace

import pytest

from plsc.errors import UserError
from plsc.heads import self_check
from plsc.heads.banks import device
from plsc.heads.self_check import check_head, head_error
from plsc.heads.step import HeadStep


@pytest.mark.parametrize("views", [True, False])
def test_a_right_head_differs_by_rounding(views, request):
    if not views:
        request.getfixturevalue("without_views")
    assert head_error() < 1e-5
    check_head()


def writes_are_lost(monkeypatch):
    monkeypatch.setattr(device.DeviceSelection, "_update", lambda *_: None)


def gradients_are_too_long(monkeypatch):
    right = HeadStep._embedding_gradient
    monkeypatch.setattr(HeadStep, "_embedding_gradient", lambda *args: right(*args) * 1.001)


def losses_are_no_number(monkeypatch):
    right = HeadStep._compute_losses

    def wrong(*args):
        losses, correct_N = right(*args)
        return replace(losses, loss_N=losses.loss_N * float("nan")), correct_N

    monkeypatch.setattr(HeadStep, "_compute_losses", wrong)


@pytest.mark.parametrize(
    "break_it,difference",
    [(writes_are_lost, r"\S+"), (gradients_are_too_long, r"0\.00\d+"), (losses_are_no_number, "inf")],
)
def test_a_wrong_head_is_refused_in_one_line(break_it, difference, monkeypatch):
    break_it(monkeypatch)
    said = f"incorrectly: in a tiny case its numbers differ from float64's by {difference} of the largest"
    with pytest.raises(UserError, match=f"^rank 0 computes the head {said}[^\n]*$"):
        check_head()


def test_the_worst_rank_counts(monkeypatch):
    monkeypatch.setattr(self_check.distributed, "gather_objects", lambda own: [own, 2.0, own])
    with pytest.raises(UserError, match="rank 1 computes .* float64's by 2 of the largest"):
        check_head()
