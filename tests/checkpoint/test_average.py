"""The mean of checkpoints: what is averaged, what is the newest's, what it can be used for, and what is
refused."""

import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint.average import _mean_of, average
from plsc.checkpoint.store import Checkpoint
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.native.bfloat16 import float32_of, nearest
from tests.helpers.checkpoints import content, full_disk, save_one, save_ranks
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY


def test_network_and_centres_are_means_the_rest_is_the_newests(tmp_path):
    contents = [content(seed) for seed in range(3)]
    for seed, ranks in enumerate((2, 1, 3)):
        save_ranks(tmp_path / "checkpoints", 10 * seed, contents[seed], ranks)
    said = average(str(tmp_path), None, str(tmp_path / "mean"))
    mean = f"{tmp_path}/mean/step-00000020"
    use = f"use it by plsc eval -c {tmp_path} -o Global.checkpoint={mean}"
    assert said == f"{mean}: the mean of 3 checkpoints, steps 0, 10, 20; {use}"
    made = Checkpoint.open(tmp_path / "mean" / "step-00000020")
    weights, rows = made.weights(), made.head(0, made.num_classes)
    for got, of in (
        (weights["stem.weight"], [each["backbone"]["stem.weight"] for each in contents]),
        (rows["centres"], [each["head"]["centres"] for each in contents]),
        (rows["bias"], [each["head"]["bias"] for each in contents]),
    ):
        want = np.mean(np.array(of, np.float64), axis=0).astype(of[0].dtype)
        assert got.dtype == of[0].dtype and np.array_equal(got, want)
    assert weights["steps"] == 2 and rows.keys() == {"centres", "bias"}
    assert (
        made.step == 20 and made.preprocessing == contents[2]["preprocessing"] and made.manifest.state == {}
    )
    assert set(made.manifest.files) == {"backbone.safetensors", "head-00000-of-00001.safetensors"}


def test_weights_to_use_are_averaged(tmp_path):
    contents = [content(seed) for seed in (0, 1)]
    for step, each in enumerate(contents):
        each["ema"] = {name: np.asarray(array + 5) for name, array in each["backbone"].items()}
        save_one(tmp_path / "checkpoints", step, each)
    average(str(tmp_path), None, str(tmp_path / "mean"))
    want = np.mean([each["ema"]["stem.weight"].astype(np.float64) for each in contents], axis=0)
    made = Checkpoint.open(tmp_path / "mean" / "step-00000001")
    assert made.manifest.weights == "backbone"
    assert np.array_equal(made.weights()["stem.weight"], want.astype(np.float32))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average") / "output"
    Entry(TINY, [f"Global.output_dir={folder}", "Checkpoint.keep=9"]).train()
    return folder


def test_a_run_is_averaged_and_used_but_not_resumed(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ckpt", "average", str(run), "--last", "2", "--output", "mean"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "mean/step-00000012: the mean of 2 checkpoints, steps 10, 12; use it by plsc eval "
    )
    use = [f"Global.output_dir={run}", "Global.checkpoint=mean"]
    assert 0 <= Entry(run / "config.yaml", use).evaluate()["accuracy"] <= 1
    new = [f"Global.output_dir={tmp_path}/new", "Global.init_from=mean", "Global.max_steps=1"]
    assert Entry(run / "config.yaml", new).train()["accuracy"] is not None
    with pytest.raises(UserError, match="has no 'run'|run"):
        Entry(run / "config.yaml", [*use, "Global.resume=true"]).train()


def test_what_has_no_mean_is_refused(run, tmp_path):
    (tmp_path / "there").mkdir()
    for last, target, line in (
        (99, "mean", "output: has 4 checkpoints, cannot average 99: give --last 2 or more"),
        (1, "mean", "output: has 4 checkpoints, cannot average 1: "),
        (2, "there", "there: exists already"),
    ):
        assert line in refusal(average, str(run), last, str(tmp_path / target))
    assert "has 0 checkpoints" in refusal(average, str(tmp_path), None, str(tmp_path / "mean"))


def test_a_full_disk_leaves_nothing_and_a_second_try_works(tmp_path):
    for step in (1, 2):
        save_one(tmp_path / "run" / "checkpoints", step, content(step))
    asked = str(tmp_path / "run"), None, str(tmp_path / "new" / "mean")
    with full_disk():
        line = refusal(average, *asked)
    assert line == f"{asked[2]}: cannot be written: No space left on device; make space, and try again"
    assert [*(tmp_path / "new").iterdir()] == []
    average(*asked)
    assert Checkpoint.open(tmp_path / "new" / "mean" / "step-00000002").step == 2


def test_bfloat16_is_rounded_to_the_nearest():
    values = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    bits = [nearest(row) for row in values]
    want = np.mean([float32_of(row).astype(np.float64) for row in bits], axis=0).astype(np.float32)
    assert np.array_equal(_mean_of(bits), nearest(want))
