"""The plan that a dry run prints, and what is refused before the first step."""

import re
import shlex
from unittest.mock import Mock

import pytest

from plsc import cli
from plsc.entry import Entry
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY


def entry(output, *overrides):
    return Entry(TINY, [f"Global.output_dir={output}", *overrides])


def test_a_plan_that_does_not_fit_ends_with_1_and_remedies_that_are_not_set(tmp_path, monkeypatch, capsys):
    plan = [
        "train",
        "--dry-run",
        "-c",
        str(TINY),
        "-o",
        f"Global.output_dir={tmp_path}/out",
        "Head.bank=disk",
    ]
    assert cli.main(plan) == 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: Mock(free=1000))
    assert cli.main(plan) == 1
    line = (
        "plan: too big  23 classes; set Head.bank_dtype=bfloat16, or lower Checkpoint.keep, or take a larger"
    )
    assert line in capsys.readouterr().out
    assert cli.main([*plan, "Head.bank_dtype=bfloat16", "Checkpoint.keep=1"]) == 1
    assert "plan: too big  23 classes; take a larger disk, or take" in capsys.readouterr().out


def test_a_plan_tells_a_warm_up_without_an_end_and_float16_on_a_cpu(tmp_path, capsys):
    said = entry(tmp_path, "LRScheduler.warmup_epochs=99").dry_run()
    assert "which is in the warm-up of 99 epochs: the full rate is never reached\n" in said
    assert "warm-up" not in entry(tmp_path, "LRScheduler.warmup_epochs=0.5").dry_run()
    plan = ["train", "--dry-run", "-c", str(TINY), "-o", f"Global.output_dir={tmp_path}/out"]
    assert cli.main([*plan, "Global.amp=float16", "Global.device=cpu"]) == 1
    assert "plan: refused  Global.amp is float16, which a CPU does not train in" in capsys.readouterr().out


def test_more_ranks_than_processors_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    lines = entry(tmp_path).dry_run(3).splitlines()
    assert "plan: slow     3 ranks share 1 processor of this machine" in lines
    assert not any(line.startswith("plan: slow") for line in entry(tmp_path).dry_run(1).splitlines())


@pytest.mark.parametrize(
    "verb, overrides, line",
    [
        (
            "evaluate",
            ["DataLoader.Eval.dataset=null"],  # which is the default: eval without -c
            "{folder}/checkpoints: no checkpoint there; train first, or name the run's folder by -c",
        ),
        (
            "evaluate",
            [],
            "{folder}/checkpoints: no checkpoint there; train first, or name the run's folder by -c",
        ),
        ("export", ["Global.checkpoint=no/such"], "no/such: there is no such checkpoint folder"),
        (
            "train",
            ["Global.output_dir=/dev/null"],
            "Global.output_dir: /dev/null: cannot be written: File exists",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path, verb, overrides, line):
    said = refusal(getattr(entry(tmp_path, *overrides), verb))
    assert said.startswith(line.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        (1, "96 each in 3 batches of 32"),
        (2, "48 each in 2 batches of 24"),
        (3, "32 each"),
        (5, "19 or 20 each"),
    ],
)
def test_the_plan_says_how_a_global_batch_is_kept(tmp_path, monkeypatch, ranks, shares):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", str(ranks))
    monkeypatch.setattr("plsc.training.dry_run.crowd_lines", lambda ranks: [])
    train = ["batch_size=32", "global_batch=96"]
    plan = entry(tmp_path, *(f"DataLoader.Train.{key}" for key in train)).dry_run().splitlines()[-8:]
    assert plan[0] == f"plan: ranks    {ranks}, global batch 96 ({shares})"
    assert plan[2].startswith("plan: steps    12, 2 an epoch")


@pytest.mark.parametrize(
    "name, ranks, classes", [("dist_arcface", 3, "7 or 8"), ("arcface", 3, "23"), ("dist_softmax", 1, "23")]
)
def test_the_plan_says_how_the_classes_are_spread_and_what_they_take(
    tmp_path, monkeypatch, name, ranks, classes
):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", str(ranks))
    monkeypatch.setattr("plsc.training.dry_run.crowd_lines", lambda ranks: [])
    plan = entry(tmp_path, f"Head={{name: {name}}}", "Model.embedding_size=50000").dry_run().splitlines()[-8:]
    assert plan[0] == f"plan: ranks    {ranks}, global batch {12 * ranks} (12 each)"
    assert plan[5] == f"plan: head     {name}, {classes} classes per rank"
    megabytes = 2 * 4 * int(classes.split(" or ")[-1]) * 50_000 / 1e6
    assert f", bank {megabytes:.1f} MB, and the activations; checkpoint " in plan[6]
    assert not list(tmp_path.iterdir())


def test_as_many_classes_fit_whatever_their_number_is_now(tmp_path):
    """What a checkpoint contains of the network does not grow with them."""
    data = "DataLoader.Train.dataset={{name: Synthetic, num_classes: {}, image_shape: [1, 12, 10]}}"
    plans = [entry(tmp_path, data.format(count), "Model.widths=[64, 64]").dry_run() for count in (20, 2000)]
    few, many = (int(re.search(r"room +([\d,]+)", plan)[1].replace(",", "")) for plan in plans)
    assert few == pytest.approx(many, rel=0.2)


@pytest.mark.parametrize(
    "override",
    [
        "Optimizer.freeze=[nowhere]",
        "Head={name: dist_magface, low: 9, high: 8}",
        'DataLoader.Eval.dataset={name: "tests.helpers.tiny_runs:NoisePairs", image_shape: [1, 16, 10]}',
    ],
)
def test_a_dry_run_refuses_what_building_the_parts_refuses(tmp_path, override):
    said = refusal(lambda: entry(tmp_path, override).dry_run())
    assert said == refusal(lambda: entry(tmp_path, override).train())


def test_a_dry_run_without_the_data_says_how_to_plan(tmp_path, capsys):
    config = tmp_path / "a.yaml"
    config.write_text(
        "Global: {output_dir: out}\n"
        "DataLoader:\n  Train: {dataset: {name: RecImages, path: no.rec}}\n"
        "  Eval: {more: {a: {name: BinPairs, path: b}}}\n"
    )
    plan = ["train", "--dry-run", "-c", str(config)]
    assert cli.main(plan) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR --dry-run: without the data, plan with N classes by -o ")
    overrides = shlex.split(line.partition(" -o ")[2].replace("N,", "300,").replace("112", "32"))
    assert cli.main([*plan, "-o", *overrides]) == 0
    assert "3,000 images of 300 classes" in capsys.readouterr().out
