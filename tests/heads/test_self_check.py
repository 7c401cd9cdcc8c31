"""The comparison before a training: a right head passes on both ways, a wrong one is refused in one line."""

import pytest

from plsc.errors import UserError
from plsc.heads import self_check
from plsc.heads.banks import device
from plsc.heads.self_check import head_errors, refuse_a_wrong_head
from plsc.heads.step import Step


@pytest.mark.parametrize("views", [True, False])
def test_a_right_head_differs_by_rounding(views, request):
    if not views:
        request.getfixturevalue("without_views")
    errors = head_errors()
    assert max(errors.values()) < 1e-5, errors
    refuse_a_wrong_head()


def writes_are_lost(monkeypatch):
    monkeypatch.setattr(device.DeviceBank, "_update", lambda *_: None)


def gradients_are_too_long(monkeypatch):
    right = Step._embedding_gradient
    monkeypatch.setattr(Step, "_embedding_gradient", lambda *args: right(*args) * 1.001)


def losses_are_no_number(monkeypatch):
    right = Step._join_ranks

    def wrong(*args):
        loss_N, *others = right(*args)
        return loss_N * float("nan"), *others

    monkeypatch.setattr(Step, "_join_ranks", wrong)


@pytest.mark.parametrize(
    "break_it,what,difference",
    [
        (writes_are_lost, ".+", r"\S+"),
        (gradients_are_too_long, "gradients by the embeddings", r"0\.00\d+"),
        (losses_are_no_number, "losses", "inf"),
    ],
)
def test_a_wrong_head_is_refused_in_one_line(break_it, what, difference, monkeypatch):
    break_it(monkeypatch)
    monkeypatch.setenv("FLAGS_use_stride_kernel", "0")
    with pytest.raises(UserError) as refused:
        refuse_a_wrong_head()
    refused.match(
        f"^this machine computes the head wrongly: {what} of a tiny case "
        f"differ from float64's by {difference} of "
    )
    assert str(refused.value).endswith("shows which parts are wrong; unset FLAGS_use_stride_kernel=0")
    assert "\n" not in str(refused.value)


def test_the_worst_rank_is_named(monkeypatch):
    monkeypatch.setattr(self_check.distributed, "gather_objects", lambda own: [own, {"losses": 2.0}, own])
    with pytest.raises(UserError, match="losses of a tiny case differ from float64's by 2 of the largest"):
        refuse_a_wrong_head()
