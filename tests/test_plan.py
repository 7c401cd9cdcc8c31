"""The planner: shards and lines by hand, what fits and what pays, and the command with its calibration on one process."""

import json

import pytest

from plsc import plan
from plsc.config import load
from plsc.errors import UserError
from plsc.heads.cost import memory
from tests.training import TINY

MB = 2**20


def case(classes=1001, ranks=2, batch=8, *overrides):
    return plan.Case(load(None, ["Model.embedding_size=16", *overrides]), classes, ranks, batch)


def test_a_spread_head_and_one_on_every_rank():
    spread, whole = case(), case(1001, 2, 8, "Head.name=arcface")
    assert (spread.shard, spread.samples) == (501, 16)
    assert (whole.shard, whole.samples) == (1001, 8)
    assert spread.selected(1.0) == 501
    assert spread.selected(0.5) == 250 + 4  # half of the 8 positives of this shard were drawn anyhow
    assert case(8, 2).selected(0.1) == 4  # no more than there are


@pytest.mark.parametrize("x, y", [(10, 2.0), (5, 2.0), (15, 3.0), (20, 4.0), (60, 44 / 3 + 4)])
def test_a_line_through_the_points(x, y):
    """Between points on straight lines, before the first its own value, after the last on the line from the first."""
    assert plan.along([(10, 2.0), (20, 4.0), (40, 8 + 4 / 3 - 4 / 3)], x) == pytest.approx(
        {60: 12.0}.get(x, y)
    )


def test_one_point_is_a_line_through_nothing():
    assert plan.along([(10, 2.0)], 30) == pytest.approx(6.0)


FOUND = {
    "base": 300 * MB,
    "head": {"full": [[1000, 0.01], [2000, 0.02]], "sampled": [[100, 0.002], [1000, 0.011]]},
    "backbone": [[4, 0.4, 30 * MB], [8, 0.8, 50 * MB]],
    "parameters": 1_000_000,
    "ranks": 1,
    "threads": 2,
}


def test_the_plan_by_hand():
    planned = plan.plan(case(100_000, 1, 16), FOUND, memory=1000 * MB)
    assert planned["head_seconds"] == pytest.approx(1.0)
    assert planned["backbone_seconds"] == pytest.approx(1.6)
    sizes = planned["bytes"]
    assert sizes["Paddle"] == 300 * MB and sizes["backbone"] == 12_000_000
    assert sizes["activations"] == 90 * MB - 8_000_000  # weights and gradient are in what was measured
    assert sizes["centres"] == sizes["momentum"] == sizes["gradient"] == 4 * 100_000 * 16
    tenth = next(row for row in planned["rates"] if row["rate"] == 0.1)
    assert tenth["selected"] == 10_000 + 14 and tenth["head_seconds"] == pytest.approx(
        0.001 + 10.014e-3 + 90.126e-3 - 0.00014, rel=0.01
    )
    assert tenth["bytes"] < sum(sizes.values())
    assert plan.verdict(planned) == "a rate of 0.2 saves 31% of a step"
    said = plan.show(planned)
    assert "100,000 classes on 1 ranks, 16 samples each, rate 1" in said and "does NOT fit" not in said
    assert "calibrated on 1 of 1 ranks x 2 threads, up to 2,000 classes in a step" in said


def test_what_does_not_fit_is_said():
    planned = plan.plan(case(100_000, 1, 16), FOUND, memory=400 * MB)
    assert "it does NOT fit: more ranks, a lower embedding size, or another Head.bank" in plan.show(planned)


def test_where_the_backbone_takes_the_time_a_lower_rate_does_not_pay():
    planned = plan.plan(case(1000, 1, 16), FOUND, memory=1000 * MB)
    assert plan.verdict(planned) == "a lower rate does not pay: it saves less than 10% of a step"


def test_a_head_on_every_rank_knows_no_rates():
    found = {**FOUND, "head": {"full": [[1000, 0.01]]}, "backbone": []}
    planned = plan.plan(case(1000, 1, 16, "Head.name=arcface"), found, memory=1000 * MB)
    assert [row["rate"] for row in planned["rates"]] == [1.0] and planned["backbone_seconds"] is None
    assert "activations" not in planned["bytes"]


@pytest.mark.parametrize("ranks, rate", [(1, 1.0), (2, 0.1)])
def test_one_class_more_than_the_largest_number_does_not_fit(ranks, rate):
    asked = case(10, ranks, 8, f"Head.sample_rate={rate}", "Head.logits_budget_mb=64")
    most = plan.largest(asked, others=10 * MB, memory=100 * MB)

    def bytes_of(classes):
        there = plan.Case(asked.cfg, classes, ranks, 8)
        parts = memory(asked.cfg.Head, there.shard, there.selected(rate), 16, there.samples)
        return sum({**parts, "blocks": 64 * MB}.values())

    assert bytes_of(most) <= 90 * MB < bytes_of(most + 2 * ranks)


def test_the_command_plans_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = [
        "-c",
        str(TINY),
        "--classes",
        "3000",
        "--batch",
        "4",
        "--rate",
        "0.5",
        "--memory",
        "2",
        "--seconds",
        "1",
    ]
    assert plan.main([*asked, "--json", "plan.json"]) == 0
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert (planned["classes"], planned["batch"], planned["rate"], planned["memory"]) == (
        3000,
        4,
        0.5,
        2 * 2**30,
    )
    found = planned["calibration"]
    assert found["head"].keys() == {"full", "sampled"} and found["parameters"] > 0 and found["backbone"]
    assert found["head"]["full"][0][0] == plan.SMALLEST and all(y > 0 for _, y in found["head"]["full"])
    assert capsys.readouterr().out.startswith("3,000 classes on 1 ranks, 4 samples each, rate 0.5\n")


@pytest.mark.parametrize(
    "asked, said",
    [
        (["--ranks", "0"], r"--ranks: must be 1 or more \(got 0\)"),
        (["--classes", "-3"], r"--classes: must be 1 or more \(got -3\)"),
        (["--rate", "2"], r"Head\.sample_rate"),
        (["--bank", "attic"], r"Head\.bank"),
    ],
)
def test_what_it_refuses(asked, said):
    with pytest.raises(UserError, match=said):
        plan.main(["-c", str(TINY), *asked])
