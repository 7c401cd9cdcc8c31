"""The planner: shards and lines by hand, what fits and what pays, and the command with its calibration on one
process."""

import argparse
import json
import os
import re
from pathlib import Path

import pytest

from plsc.apps.plan import plan
from plsc.apps.plan.activations import counted
from plsc.apps.plan.calibration import SMALLEST
from plsc.config import load
from plsc.entry import Entry
from plsc.errors import MissingFileError, UserError
from plsc.training.groups import parameters_of
from plsc.training.head_bytes import head_bytes
from tests.helpers.launch import ROOT
from tests.helpers.tiny_runs import IMAGE_SHAPE, TINY, train
from tests.helpers.undrawn import undrawn

MB = 2**20
SMALL = "Model.widths=[3, 4]"


def case(classes=1001, ranks=2, batch=8, *overrides):
    return plan.Case(load(None, ["Model.embedding_size=16", *overrides]), classes, ranks, batch)


@pytest.mark.parametrize("x, y", [(10, 2.0), (5, 2.0), (15, 3.0), (20, 4.0), (60, 44 / 3 + 4)])
def test_a_line_through_the_points(x, y):
    """Between points on straight lines, before the first its own value, after the last on the line from the
    first."""
    assert plan.along([(10, 2.0), (20, 4.0), (40, 8 + 4 / 3 - 4 / 3)], x) == pytest.approx(
        {60: 12.0}.get(x, y)
    )


def test_one_point_is_a_line_through_nothing():
    assert plan.along([(10, 2.0)], 30) == pytest.approx(6.0)


def test_the_backbone_has_the_arrays_of_its_optimizer(monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "1")
    """Of a trained number its value, its gradient and the optimizer's; of a frozen one the value."""
    found = {
        "parameters": 1000,
        "frozen": 50,
        "backbone": [[1, None, 4 * 2050 + 7]],
        "kept": 7,
    }
    for name, arrays in (("Momentum", 3), ("LARS", 3), ("AdamW", 4)):
        asked = case(10, 1, 16, f"Optimizer.name={name}")
        assert plan.backbone_bytes(asked, found)["backbone"] == 4 * (1000 * arrays + 50)
        assert plan.backbone_bytes(asked, found)["activations"] == 7 * asked.batch
        disk = plan.disk_needs(asked, 1000, 50)["checkpoint"] - plan.disk_needs(asked, 0)["checkpoint"]
        assert disk == 4 * (1000 * (arrays - 1) + 50)
    averaged = case(10, 1, 16, "Global.ema={decay: 0.99}")
    assert plan.parts_bytes(averaged, found, 1.0) == {"averaged weights": 4 * 1050}
    assert plan.backbone_bytes(averaged, found).keys() == {"backbone", "activations"}
    monkeypatch.setenv("PLSC_KERNELS", "0")  # as on a GPU
    on_a_gpu = plan.backbone_bytes(averaged, {**found, "sample_bytes": 10})
    assert on_a_gpu["buffers of samples"] == 2 * 16 * 10
    disk = plan.disk_needs(averaged, 1000, 50)["checkpoint"] - plan.disk_needs(averaged, 0)["checkpoint"]
    assert disk == 4 * (1000 * 3 + 50 * 2)


@pytest.mark.parametrize(
    ("keys", "held"),
    [
        ([], 16 * 1000 - 4000),
        (["DataLoader.Train.accumulate=2"], 32 * 1000 - 4000 - 7 * 16),
        (["DataLoader.Train.accumulate=2", "DataLoader.Train.batch_size=4"], 0),
    ],
)
def test_a_teacher_takes_its_weights_and_what_it_holds_beyond_gradients_and_activations_to_come(keys, held):
    found = {"parameters": 1000, "frozen": 0, "backbone": [[1, None, 8007]], "kept": 7}
    asked = case(10, 1, 16, "Teacher={checkpoint: there}", *keys)
    assert plan.parts_bytes(asked, {**found, "passing": None}, 1.0) == {}
    parts = plan.parts_bytes(asked, {**found, "passing": {"numbers": 500, "held": 1000}}, 1.0)
    assert parts.pop("teacher") == 4 * 500
    assert parts.pop("activations of the teacher", 0) == held and parts == {}
    parts = plan.parts_bytes(asked, {**found, "passing": {"numbers": 500, "held": 0}}, 1.0)
    assert parts == {"teacher": 4 * 500}, "it embeds nothing, but is there"


@pytest.mark.parametrize(
    "points, activations",
    [
        # One measured batch: its peak is mostly fixed, and each image adds what is kept of it.
        ([(2, 60)], 60 + 14 * 3),
        ([(16, 100)], 100),
        # Several: the line through them, but no less than what is kept.
        ([(2, 60), (4, 70)], 70 + 12 * 5),
        ([(2, 60), (4, 61)], 61 + 12 * 3),
        ([(2, 60), (16, 90)], 90),
    ],
)
def test_activations_beyond_the_measured_batches_grow_by_what_is_kept_of_an_image(points, activations):
    weights = 4 * 2 * MB
    backbone = [[batch, 0.1, weights + peak * MB] for batch, peak in points]
    found = {"parameters": MB, "frozen": 0, "backbone": backbone, "kept": 3 * MB}
    assert plan.backbone_bytes(case(10, 1, 16), found)["activations"] == activations * MB


FREE = {"bank": 10**9, "checkpoints": 10**9, "one": True}
FOUND = {
    "base": 300 * MB,
    "head": {"full": [[1000, 0.01], [2000, 0.02]], "sampled": [[100, 0.002], [1000, 0.011]]},
    "backbone": [[4, 0.4, 30 * MB], [8, 0.8, 50 * MB]],
    "kept": 4 * MB,
    "dtype": "float32",
    "parameters": 1_000_000,
    "frozen": 0,
    "ranks": 1,
    "threads": 2,
}


def test_the_plan_by_hand():
    planned = plan.plan(case(100_000, 1, 16), FOUND, 1000 * MB, FREE)
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
    assert (
        "100,000 classes on 1 rank, 16 samples each, rate 1, bank device, float32\n" in said
        and "does NOT fit" not in said
    )
    assert (
        "2 threads a rank), not of a GPU or another machine: the one rank; measured up to 2,000 classes"
        in said
    )
    said = plan.show(plan.plan(case(100_000, 32, 16), FOUND, 1000 * MB, FREE))
    assert "1 process in place of each of the 32 ranks" in said


def test_accumulated_batches_take_the_memory_of_one_and_the_time_of_all():
    once, often = (
        plan.plan(case(100_000, 1, 16, f"DataLoader.Train.accumulate={count}"), FOUND, 1000 * MB, FREE)
        for count in (1, 4)
    )
    assert often["backbone_seconds"] == pytest.approx(4 * once["backbone_seconds"])
    for part in ("backbone", "activations", "centres"):
        assert often["bytes"][part] == once["bytes"][part]
    assert often["bytes"]["embeddings"] == 4 * once["bytes"]["embeddings"]
    assert "100,000 classes on 1 rank, 4 x 16 samples each, rate 1" in plan.show(often)


def test_what_does_not_fit_is_said():
    planned = plan.plan(case(100_000, 1, 16), FOUND, 400 * MB, FREE)
    assert (
        "it does NOT fit the memory: more ranks, a lower embedding size, or another Head.bank"
        in plan.show(planned)
    )


def test_where_the_backbone_takes_the_time_a_lower_rate_does_not_pay():
    planned = plan.plan(case(1000, 1, 16), FOUND, 1000 * MB, FREE)
    assert plan.verdict(planned) == "a lower rate does not pay: it saves less than 10% of a step"


def test_a_head_on_every_rank_knows_no_rates():
    found = {**FOUND, "head": {"full": [[1000, 0.01]]}, "backbone": []}
    planned = plan.plan(case(1000, 1, 16, "Head.name=arcface"), found, 1000 * MB, FREE)
    assert [row["rate"] for row in planned["rates"]] == [1.0] and planned["backbone_seconds"] is None
    assert "activations" not in planned["bytes"]


@pytest.mark.parametrize(
    "ranks, rate, heads", [(1, 1.0, 1), (2, 0.1, 1), (2, 0.1, 2)], ids=["whole", "sampled", "compatible"]
)
def test_one_class_more_than_the_largest_number_does_not_fit(ranks, rate, heads):
    old = ["Global.compatible_with=there"] if heads == 2 else []
    asked = case(10, ranks, 8, f"Head.sample_rate={rate}", "Head.logits_budget_mb=32", *old)
    found = {**FOUND, "head": {}, "backbone": []}
    most = plan.plan(asked, found, 90 * MB, FREE)["largest_classes"]

    def bytes_of(classes):
        there = plan.Case(asked.cfg, classes, ranks, 8)
        sizes = there.shard, there.selected(rate), 16, there.samples
        parts = [head_bytes(asked.cfg, *sizes, second=second) for second in (False, True)[:heads]]
        return sum(sum({**each, "blocks": 32 * MB}.values()) for each in parts)

    assert bytes_of(most) <= 90 * MB < bytes_of(most + 2 * ranks)


# ---- a teacher, and the head of an older run's classes


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run of one step: its folder, and a config's keys that make it teacher and older run of another."""
    folder = tmp_path_factory.mktemp("before")
    train(folder, "Global.max_steps=1", "DataLoader.Eval.dataset=null")
    return [f"Teacher={{checkpoint: {folder}, centres: false}}", f"Global.compatible_with={folder}"]


@pytest.mark.parametrize("device", ["cpu", "a100"])
def test_the_networks_of_other_runs_are_planned(before, tmp_path, monkeypatch, device):
    monkeypatch.setenv("PLSC_KERNELS", "0")  # the command sets it for its process
    teacher, old = before

    def planned(*keys):
        how = {
            "cpu": ["--seconds", "0", "--memory", "80", "--disk", "1"],
            "a100": ["--device", "a100", "--gpus", "1"],
        }
        file = tmp_path / "plan.json"
        asked = ["-c", str(TINY), "--classes", "3000", "--json", str(file), *how[device]]
        assert plan.main([*asked, "-o", *keys, SMALL]) == 0
        return json.loads(file.read_text())

    alone, both = planned("Global.seed=3"), planned(teacher, old)
    of_teacher, of_student = (
        parameters_of(load(TINY, keys).Model.build(embedding_size=8, image_shape=IMAGE_SHAPE)).values()
        for keys in ([], [SMALL])
    )
    gradients = 4 * sum(p.size for p in of_student)
    largest_map = 4 * 4 * 6 * 5  # bytes of 4 channels
    more = {name: size for name, size in both["bytes"].items() if name not in alone["bytes"]}
    second = more.pop("head of compatible_with")
    assert more == {
        "teacher": 4 * sum(p.size for p in of_teacher),
        "activations of the teacher": 12 * 3 * largest_map - gradients,
    }
    first = sum(alone["bytes"][part] for part in ("centres", "gradient", "embeddings"))
    # No momentum; of blocks exponentials and rows, which are kept for the backward pass.
    samples, width = (12, 8)
    assert second == first + 4 * 3000 * (samples + width)
    assert {name: both["bytes"][name] for name in alone["bytes"]} == alone["bytes"]
    assert both["largest_classes"] < 0.8 * alone["largest_classes"]
    if device == "a100":
        seconds, of_both = (each["scaling"][0]["seconds"] for each in (alone, both))
        assert of_both.keys() - seconds.keys() == {"network of another run", "head of compatible_with"}
        assert min(of_both["network of another run"], of_both["head of compatible_with"]) > 0
        assert 0 < of_both["forward"] == seconds["forward"]


def test_a_teacher_that_does_not_fit_is_refused(before):
    with pytest.raises(UserError, match="has embeddings of 8 numbers, this run of 9"):
        plan.main(["-c", str(TINY), "--seconds", "0", "-o", before[0], "Model.embedding_size=9"])


# ---- a bank on disk


ON_DISK = ["Head.bank=disk", "Head.sample_rate=0.01", "Head.bank_dtype=bfloat16"]
SECONDS = [[100, 0.2, 0.3, 0.1], [1000, 0.2, 1.2, 1.0]]


def test_what_the_disk_has_to_do_follows_from_what_the_page_cache_holds():
    asked = case(1_000_000, 1, 16, *ON_DISK)  # 64 MB
    assert plan.disk_of(asked, 100 * MB, 30 * MB) == (0, pytest.approx(1 - 0.2 * 70 * MB / 64e6))
    assert plan.disk_of(asked, 500 * MB, 30 * MB) == (0, 0)
    assert plan.disk_of(asked, 10 * MB, 30 * MB) == (1, 1)
    half = plan.disk_of(asked, 32e6 + 1, 1)
    assert half == pytest.approx((0.5, 0.9))
    found = {"head": {"sampled": SECONDS, "full": SECONDS}}
    assert asked.selected(0.0985) == 98_514 and plan.head_seconds(asked, found, 0.01) == pytest.approx(0.2)
    small = case(100_000, 1, 0, *ON_DISK)
    assert plan.head_seconds(small, found, 0.01, plan.Disk(0.5, 0.1)) == pytest.approx(0.5 * 1.0 + 0.2)
    assert plan.head_seconds(small, found, 0.01, plan.Disk(0.5, 0.9)) == pytest.approx(0.5 * 1.0 + 0.9 * 1.0)
    assert plan.disk_of(case(), 1, 2) == (0, 0)


def test_the_disk_holds_the_bank_and_as_many_checkpoints_as_there_are_at_a_time():
    asked = case(1_000_000, 1, 16, *ON_DISK, "Checkpoint.keep=2", "DataLoader.Eval.dataset=null")
    needs = plan.disk_needs(asked, parameters=1000)
    assert needs == {"bank": 64_000_000, "checkpoint": 64_008_000, "checkpoints": 3}
    whole = 64_000_000 + 3 * 64_008_000
    for most, fits in ((whole, True), (whole - 1, False)):
        assert plan.fits_disk(needs, {"bank": 0, "checkpoints": most, "one": True}) == fits
    apart = {"bank": 64_000_000, "checkpoints": 3 * 64_008_000, "one": False}
    assert plan.fits_disk(needs, apart)
    for place in ("bank", "checkpoints"):
        assert not plan.fits_disk(needs, {**apart, place: apart[place] - 1})
    with_best = plan.disk_needs(case(10, 1, 16, "Checkpoint.keep=2"), 0)
    assert (with_best["bank"], with_best["checkpoints"]) == (0, 4)


def test_a_plan_for_the_disk_by_hand():
    asked = case(1_000_000, 1, 16, *ON_DISK, "Checkpoint.keep=1", "DataLoader.Eval.dataset=null")
    found = {
        **FOUND,
        "head": {"full": SECONDS, "sampled": SECONDS},
        "backbone": [],
        "parameters": 0,
        "frozen": 0,
    }
    planned = plan.plan(asked, found, 400 * MB, {**FREE, "checkpoints": 200_000_000})
    assert planned["bytes"]["centres"] == planned["bytes"]["momentum"] == 0 < planned["bytes"]["buffers"]
    assert planned["disk"]["fits"] and planned["largest_classes_on_disk"] == 200_000_000 // (3 * 64)
    said = plan.show(planned)
    assert "rate 0.01, bank disk, bfloat16\n" in said and "NOT fit" not in said
    assert (
        "disk: at most 2 checkpoints of 0.05960 GB, bank 0.05960 GB, of 0.1863 GB free; up to 1,041,666 classes fit\n"
        in said
    )
    assert "\nof a step's rows the disk reads 0% and writes " in said
    little = plan.plan(asked, found, 400 * MB, {"bank": 10**6, "checkpoints": 10**9, "one": False})
    said = plan.show(little)
    assert (
        "2 checkpoints of 0.05960 GB of 0.9313 GB free, bank 0.05960 GB of 0.0009313 GB free; up to 15,625 classes fit"
        in said
    )
    assert said.endswith(
        "it does NOT fit the disk: a lower Checkpoint.keep, Head.bank_dtype=bfloat16, or another folder"
    )


def test_on_a_cpu_mixed_precision_changes_the_heads_blocks_and_no_activation():
    found = {**FOUND, "head": {"full": SECONDS, "sampled": SECONDS}}
    amp = "Global.amp={dtype: float16}"
    plain, mixed = (
        plan.plan(case(100_000, 1, 16, "DataLoader.Eval.dataset=null", *keys), found, 10**9, FREE)
        for keys in ([], [amp])
    )
    assert {key for key in plain["bytes"] if plain["bytes"][key] != mixed["bytes"][key]} <= {"blocks"}
    assert mixed["amp"] == "float16"


def test_a_lower_rate_that_takes_more_memory_is_explained():
    found = {**FOUND, "head": {}, "backbone": []}
    text = [
        plan.show(plan.plan(case(10_000_000, 8, 128, f"Head.logits_budget_mb={budget}"), found, 10**10, FREE))
        for budget in (256, 0.001)
    ]
    reason = "a lower rate takes more memory where the exponentials of its logits fit Head.logits_budget_mb"
    assert reason in text[0] and reason not in text[1]


@pytest.mark.parametrize(
    "keys, reason",
    [
        (["-o", "Global.amp={dtype: float16}"], "Global.amp is float16"),
        (["--ranks", str((os.cpu_count() or 1) + 1)], " ranks on "),
        (["--device", "gpu", "-o", "Global.amp={dtype: float16}"], None),
        ([], None),
    ],
)
def test_a_plan_for_this_processor_that_seems_meant_for_gpus_is_warned_of(keys, reason, capsys, monkeypatch):
    monkeypatch.setenv("PLSC_KERNELS", "0")  # the command sets it for its process
    plan.main(["-c", str(TINY), "--seconds", "0", "--memory", "1", "--disk", "1", *keys])
    warnings = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    if reason is None:
        assert warnings == []
    else:
        (line,) = warnings
        assert reason in line and "for GPUs give --device gpu, or the name of one: v100-16gb, " in line


def test_where_files_are_missing_the_plan_without_them_is_named():
    recipe = ROOT / "configs" / "recipes" / "ms1mv3_r50.yaml"
    for act in (lambda: plan.main(["-c", str(recipe)]), Entry(recipe).dry_run):
        with pytest.raises(MissingFileError, match="to plan without these files: --stand-in, noise in the"):
            act()
    with pytest.raises(MissingFileError) as refused:  # a typing error in a config that states no counts
        plan.main(["-c", str(TINY), "-o", "DataLoader.Train.dataset={name: ImageFolder, folder: nowhere}"])
    assert "--stand-in" not in str(refused.value)


def test_where_the_run_would_write_is_looked_at(tmp_path):
    cfg = load(None, [f"Global.output_dir={tmp_path}/new/run", "Head.bank=disk", "Head.bank_folder=/dev/shm"])
    free = plan.disk_free(cfg)
    assert free["one"] == (tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev)
    assert free["bank"] > 0 < free["checkpoints"] and not (tmp_path / "new").exists()
    assert plan.disk_free(load(None, [f"Global.output_dir={tmp_path}"]))["one"]


@pytest.mark.usefixtures("launches_are_forked")
def test_the_command_plans_a_bank_on_disk_and_leaves_nothing_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--classes 3000 --batch 4 --rate 0.5 --bank disk --bank-dtype bfloat16 --memory 2 --disk 0.001 --seconds 1"
    assert (
        plan.main(["-c", str(TINY), *words.split(), "--json", "plan.json", "-o", "Head.bank_folder=rows/a"])
        == 0
    )
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert planned["bank"] == ["disk", "bfloat16"] and planned["disk"]["bank"] == 3000 * 2 * 8 * 2
    assert all(len(point) == 4 and min(point) > 0 for point in planned["calibration"]["head"]["sampled"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.json",
        "stderr",
    }  # that of the forked processes
    said = capsys.readouterr().out
    assert "bank disk, bfloat16\n" in said and "of 0.001000 GB free" in said


def test_a_folder_that_can_hold_no_bank_is_told():
    asked = ["-c", str(TINY), "--bank", "disk", "-o", "Head.bank_folder=/proc/nowhere"]
    with pytest.raises(
        UserError, match=r"^Head\.bank_folder: /proc: cannot be written: .*; name another folder$"
    ):
        plan.main(asked)


@pytest.mark.usefixtures("launches_are_forked")
def test_the_command_plans_and_writes(before, tmp_path, capsys, monkeypatch):
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
    assert plan.main([*asked, "--json", "plan.json", "-o", *before]) == 0
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert (planned["classes"], planned["batch"], planned["rate"], planned["memory"]) == (
        3000,
        4,
        0.5,
        2 * 2**30,
    )
    found = planned["calibration"]
    assert found["head"].keys() == {"full", "sampled"} and found["parameters"] > 0 and found["backbone"]
    assert found["kept"] > 0
    assert found["head"]["full"][0][0] == SMALLEST and all(y > 0 for _, y in found["head"]["full"])
    assert found["passing"]["seconds"][-1][0] == 4 and planned["passing_seconds"] > 0
    said = capsys.readouterr().out
    assert said.startswith("3,000 classes on 1 rank, 4 samples each, rate 0.5, bank device, float32\n")
    assert " ms, that of compatible_with included, network of another run " in said


@pytest.mark.parametrize(
    "asked, said",
    [
        (["--ranks", "0"], r"--ranks: must be 1 or more \(got 0\)"),
        (["--classes", "-3"], r"--classes: must be 1 or more \(got -3\)"),
        (["--memory", "-1"], r"--memory: must be more than 0, and finite \(got -1\)"),
        (["--memory", "inf"], r"--memory: must be more than 0, and finite \(got inf\)"),
        (["--disk", "0"], r"--disk: must be more than 0, and finite \(got 0\)"),
        (["--seconds", "nan"], r"--seconds: must be 0 or more, and finite \(got nan\)"),
        (["--seconds", "-1"], r"--seconds: must be 0 or more, and finite \(got -1\)"),
        (["--rate", "2"], r"Head\.sample_rate"),
        (["--bank", "attic"], r"Head\.bank"),
        (["--json", "no/p.json"], "^no/p.json: there is no folder no; make it first$"),
        (["--device", "a100", "--plot", "no/p.png"], "^no/p.png: there is no folder no; make it first$"),
        (["--seconds", "0", "--memory", "1", "--json", "/"], "^/: cannot be written: Is a directory$"),
        (["--device", "gpu", "--seconds", "0"], "--device gpu: with --seconds 0 no GPU is looked at"),
        (["--bank-dtype", "bfloat16"], r"Head\.bank_dtype: has no meaning with the bank device"),
    ],
)
def test_what_it_refuses(asked, said):
    with pytest.raises(UserError, match=said):
        plan.main(["-c", str(TINY), *asked])


@pytest.mark.parametrize(
    "text, number",
    [
        ("10M", 10**7),
        ("1.5e6", 1_500_000),
        ("100k", 10**5),
        ("1,000,000", 10**6),
        ("0.5M", 500_000),
        ("7", 7),
    ],
)
def test_large_numbers_may_be_written_short(text, number):
    assert plan.whole_number(text) == number


@pytest.mark.parametrize("text", ["1.5", "many", "", "k", "nan", "inf", "1e-3", "1e15", "1e999999999"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"must be a whole number below 1e\+15, .* \(got '.*'\)"
    ):
        plan.whole_number(text)


def test_without_a_config_it_says_what_it_plans(capsys, monkeypatch, tmp_path):
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "calibrate", lambda case, *_: asked.append(case) or FOUND)
    assert plan.main(["--classes", "10M", "--ranks", "1", "--memory", "100", "--disk", "100"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no config given (-c): planned are the defaults") and asked[0].classes == 10**7
    assert "the network SmallResNet on images of 1 x 32 x 32 from Glyphs" in said
    plan.main(["-c", str(TINY), "--memory", "100", "--disk", "100"])
    assert "no config" not in capsys.readouterr().out


def test_without_times_memory_is_counted(capsys, tmp_path):
    asked = ["-c", str(TINY), "--seconds", "0", "--memory", "1", "--json", str(tmp_path / "plan.json")]
    assert plan.main([*asked, "--classes", "3000", "--ranks", "8", "--disk", "1"]) == 0
    said = capsys.readouterr().out
    assert "head, ms" not in said and "time of a step" not in said and "nothing is measured" in said
    base = json.loads((tmp_path / "plan.json").read_text())["calibration"]["base"]
    assert base > 0 and f"Paddle itself ({plan.gigabytes(base)} of this process" in said
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert planned["head_seconds"] is None and planned["bytes"]["activations"] > 0
    assert [row["rate"] for row in planned["rates"]] == sorted({*plan.RATES, planned["rate"]}, reverse=True)


def test_several_sets_are_planned_with_the_classes_of_all(capsys, tmp_path):
    one = "{name: Synthetic, num_classes: 7, image_shape: [1, 12, 10], head: %s}"
    for heads, classes in ((("own", "own"), 14), (("merge",), 7)):
        sets = ", ".join(one % head for head in heads)
        asked = [
            "-c",
            str(TINY),
            "-o",
            f"DataLoader.Train.dataset=[{sets}]",
            "--seconds",
            "0",
            "--memory",
            "1",
        ]
        assert plan.main(asked) == 0
        said = capsys.readouterr().out
        assert f"{classes} classes on 1 rank" in said
        assert ("classes lie in 2 ranges with a softmax each" in said) == (len(heads) == 2)


def test_the_recipes_are_planned_as_their_pages_say(capsys, monkeypatch, tmp_path):
    """The command in a recipe's header says the GB that docs/recipes.md has."""
    monkeypatch.setenv("PLSC_KERNELS", "0")  # the command sets it for its process
    networks = {}

    def counted_once(cfg, dataset):
        key = cfg.Model.model_dump_json()
        if key not in networks:
            with undrawn():
                networks[key] = counted(cfg, dataset.preprocessing.shape)
        return networks[key]

    monkeypatch.setattr(plan, "_counted", counted_once)
    page = (ROOT / "docs" / "recipes.md").read_text()
    rows = re.findall(r"(?m)^\|[^`\n]*`(\w+)`[^|]*\| (\d+) \| ([\d.]+) \|", page)
    assert len(rows) == len(list((ROOT / "configs" / "recipes").glob("*.yaml")))
    for name, ranks, gigabytes in rows:
        path = ROOT / "configs" / "recipes" / f"{name}.yaml"
        (command,) = re.findall(r"(?m)^# plsc plan (.*)$", path.read_text())
        words = command.replace(f"configs/recipes/{name}.yaml", str(path)).split()
        assert plan.main([*words, "--disk", "1000", "--json", str(tmp_path / "plan.json")]) == 0
        planned = json.loads((tmp_path / "plan.json").read_text())
        assert planned["ranks"] == int(ranks)
        assert f"{sum(planned['bytes'].values()) / 2**30:.1f}" == gigabytes
    assert "WARNING" not in capsys.readouterr().out
