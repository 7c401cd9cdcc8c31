"""plsc plan with a GPU of the table: its memory is the plan's for a GPU, its scaling starts at one machine,
and what it refuses."""

import json
import re

import pytest

from plsc.apps.plan import plan
from plsc.apps.plan.activations import counted
from plsc.apps.plan.paper import on_paper
from plsc.apps.plan.paper.devices import DEVICES
from plsc.apps.plan.paper.on_paper import CONTEXT
from plsc.config import load
from plsc.errors import UserError
from tests.helpers.tiny_runs import IMAGE_SHAPE, TINY

GB = 2**30


@pytest.fixture(autouse=True)
def _kernels_as_before(monkeypatch, tmp_path):
    monkeypatch.setenv("PLSC_KERNELS", "0")  # the command sets it for its process
    monkeypatch.chdir(tmp_path)


def planned(*words):
    assert plan.main(["-c", str(TINY), "--json", "plan.json", *words]) == 0
    with open("plan.json") as file:
        return json.load(file)


@pytest.mark.parametrize("keys", [[], ["Global.amp={dtype: float16}"], ["Head.bank=host"]])
def test_the_memory_is_that_of_the_plan_for_a_gpu(keys):
    asked = ["--classes", "100000", "--rate", "0.5", "-o", "Global.seed=3", *keys]
    on_paper = planned(*asked, "--device", "a100", "--gpus", "1")
    here = planned(*asked, "--device", "gpu", "--seconds", "0", "--memory", "80")
    assert on_paper["bytes"]["CUDA and libraries"] == CONTEXT
    for key in ("bytes", "memory", "machine_bytes", "largest_classes"):
        assert on_paper[key] == here[key]
    assert here["memory"] == 80 * GB


def test_the_scaling_starts_with_the_plan_of_one_machine(capsys):
    many = planned("--device", "v100", "--nodes", "6", "--gpus", "4", "--network", "100", "--loader", "1e9")
    assert [row["nodes"] for row in many["scaling"]] == [1, 2, 4, 6]
    one = planned("--device", "v100", "--nodes", "1", "--gpus", "4", "--loader", "1e9")
    assert many["scaling"][0] == one["scaling"][0]
    assert one["scaling"][0]["efficiency"] == 1 > many["scaling"][-1]["efficiency"]
    for row in many["scaling"]:
        assert row["step_seconds"] == pytest.approx(sum(row["seconds"].values()))
    said = capsys.readouterr().out
    assert (
        "23 classes on 6 x 4 v100, 12 samples each, rate 1, bank device, float32, network in float32" in said
    )
    assert DEVICES["v100"].source in said and "nothing was measured" in said
    assert "not modelled" not in said


def test_an_epoch_has_the_images_and_the_price_that_are_given():
    epoch = planned("--device", "h100", "--images", "1000000", "--price", "2")["epoch"]
    assert epoch["images"] == 10**6 and epoch["cost"] == pytest.approx(epoch["seconds"] / 3600 * 8 * 2)
    epoch = planned("--device", "h100")["epoch"]
    assert epoch["images"] == 115 and epoch["cost"] is None


def test_what_loading_has_to_reach_is_said_where_it_is_not_modelled(capsys):
    whole = planned("--device", "a100", "-o", "DataLoader.Train.num_workers=2")
    said = capsys.readouterr().out
    assert re.search(r"\ndata +-  not modelled without --loader\n", said)
    images = whole["scaling"][0]["images_per_second"] / 16
    assert "each of a machine's 16 processes that prepare batches" in said
    planned("--device", "a100")
    assert "each of a machine's 8 threads that prepare batches" in capsys.readouterr().out
    assert f"has to read and decode {images:,.0f} images/s" in said


def test_slow_loading_is_waited_for():
    (row,) = planned("--device", "a100", "--loader", "96")["scaling"]
    assert row["step_seconds"] == pytest.approx(1.0) and row["images_per_second"] == pytest.approx(96)
    assert row["seconds"]["data"] > 0.9


def test_one_class_more_than_the_largest_does_not_fit():
    asked = ["--device", "v100-16gb", "--gpus", "1", "-o", "Head.logits_budget_mb=64"]
    most = planned(*asked)["largest_classes"]
    for classes, fits in ((most - 1, True), (round(1.01 * most), False)):
        (row,) = planned(*asked, "--classes", str(classes))["scaling"]
        assert row["fits"] == fits


def test_a_bank_in_the_machines_memory_takes_none_of_the_gpus(capsys):
    asked = ["--device", "a100", "--classes", "10M", "--rate", "0.01"]
    device, host, disk = (planned(*asked, "--bank", bank) for bank in ("device", "host", "disk"))
    rows = 2 * 4 * 8 * 10**7  # centres and momentum of 8 numbers
    assert device["machine_bytes"] == 0 and host["machine_bytes"] == rows and disk["machine_disk"] == rows
    assert "centres" not in host["bytes"] and "momentum" not in disk["bytes"]
    assert device["scaling"][0]["seconds"]["bank"] == 0 < host["scaling"][0]["seconds"]["bank"]
    assert "of each machine 0.5960 GB for the bank" in capsys.readouterr().out
    little = planned(*asked, "--bank", "host", "--machine-memory", "1")["largest_classes"]
    assert little == pytest.approx(GB / (2 * 4 * 8), rel=0.01)
    assert little < host["largest_classes"]


def test_mixed_precision_keeps_less_and_is_faster():
    amp = ["-o", "Global.amp={dtype: bfloat16}"]
    plain, mixed = (planned("--device", "a100", *keys) for keys in ([], amp))
    assert mixed["bytes"]["activations"] == pytest.approx(0.6 * plain["bytes"]["activations"], abs=1)
    assert mixed["scaling"][0]["step_seconds"] < plain["scaling"][0]["step_seconds"]
    exact = planned("--device", "a100", "-o", "Global.tf32=false")
    assert exact["scaling"][0]["seconds"]["forward"] > plain["scaling"][0]["seconds"]["forward"]


def test_accumulated_batches_take_the_memory_of_one():
    once, often = (
        planned("--device", "a100", "-o", f"DataLoader.Train.accumulate={count}") for count in (1, 4)
    )
    assert often["bytes"]["activations"] == once["bytes"]["activations"]
    (short,), (long,) = once["scaling"], often["scaling"]
    assert long["seconds"]["forward"] == pytest.approx(4 * short["seconds"]["forward"])
    assert long["seconds"]["backward"] > 4 * short["seconds"]["backward"]


def test_what_is_recomputed_is_not_kept_and_yet_moved():
    plain, again = (
        counted(load(None, ["Model.name=IResNet18", f"Model.recompute={flag}"]), (3, 32, 32))
        for flag in ("false", "true")
    )
    assert again["kept"] < plain["kept"] == plain["made"] == again["made"]


def test_the_global_batch_can_stay_on_any_number_of_machines():
    keys = ["DataLoader.Train.global_batch=96", "DataLoader.Train.keep_global_batch=true"]
    many = planned("--device", "a100", "--nodes", "2", "--network", "100", "-o", *keys)
    assert [row["images_per_second"] * row["step_seconds"] for row in many["scaling"]] == pytest.approx(
        [96, 96]
    )


def test_replicated_centres_are_summed():
    (row,) = planned("--device", "a100", "-o", "Head.name=arcface")["scaling"]
    assert row["seconds"]["gather"] == 0 < row["seconds"]["reduce"]


def test_transformers_move_more_than_they_keep():
    measured = {"attention": True}
    assert on_paper.kind_of(measured).passes > on_paper.kind_of({"attention": False}).passes
    vit = load(None, ["Model.name=FaceViT_tiny", "Model.embedding_size=8"])
    assert counted(vit, (3, 112, 112))["attention"]
    assert not counted(load(TINY), IMAGE_SHAPE)["attention"]


def test_the_picture_is_a_png(tmp_path):
    planned("--device", "a100", "--nodes", "2", "--network", "100", "--plot", "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


ON = ["--device", "a100"]


@pytest.mark.parametrize(
    "asked, said",
    [
        (["--nodes", "2"], r"^--nodes: plans on paper; name a GPU with it, --device v100-16gb or v100 or "),
        (["--device", "gpu", "--price", "2"], r"^--price: plans on paper"),
        ([*ON, "--nodes", "2"], r"^--network: give the Gbit/s of each machine's network, such as 100"),
        ([*ON, "--network", "100"], r"^--network: one machine sends nothing over it"),
        ([*ON, "--gpus", "0"], r"^--gpus: must be more than 0 \(got 0\)$"),
        ([*ON, "--nodes", "20000"], r"^--nodes x --gpus: must be at most 100,000 \(got 160,000\)$"),
        ([*ON, "--nodes", "2", "--network", "nan"], r"^--network: must be more than 0 \(got nan\)$"),
        ([*ON, "--ranks", "8"], r"^--ranks: has no meaning with --device a100: they are --nodes x --gpus$"),
        ([*ON, "--memory", "8"], r"^--memory: has no meaning with --device a100: it is that of the table$"),
        ([*ON, "--seconds", "0"], r"^--seconds: has no meaning .* nothing is measured there$"),
        ([*ON, "--machine-memory", "8"], r"^--machine-memory: has a meaning with Head.bank=host only"),
        (
            ["--device", "v100", "-o", "Global.amp={dtype: bfloat16}"],
            r"^--device v100: computes no bfloat16; it has float32, float16$",
        ),
        (
            [*ON, "-o", "DataLoader.Train.global_batch=24"],
            r"global_batch: must be the samples of a step, 8 ranks",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(asked, said):
    with pytest.raises(UserError, match=said) as refused:
        plan.main(["-c", str(TINY), *asked])
    assert "\n" not in str(refused.value)
