"""plsc forget: nothing of the forgotten is in the new run, in the gallery, and the receipt says what was done."""

import json
import re
import shutil
from functools import partial

import numpy as np
import pytest

from plsc import cli
from plsc.apps.serving.gallery import Gallery
from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.data.corrections import Correction, write_corrections
from plsc.entry import Entry
from plsc.training.forget import repair_config
from plsc.utils.logging import setup
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures
from tests.datasets import dataset_of
from tests.pictures import drawn
from tests.tiny_runs import TINY, arrays, checkpoint, checkpoints
from tests.training.test_finetune import OLD, people

GONE = ["p3", "p10"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The output_dir of a run with eleven people."""
    folder = tmp_path_factory.mktemp("run") / "out"
    with drawn():
        Entry(TINY, [f"Global.output_dir={folder}", people(OLD), "Global.max_steps=4"]).train()
    setup()
    return folder


def forget(capsys, *arguments):
    capsys.readouterr()
    with drawn():
        code = cli.forget([str(argument) for argument in arguments])
    setup()
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery") / "faces"
    made = Gallery.build(
        folder, FakeEmbedder(), {name: [pictures(1, seed)[0]] for seed, name in enumerate(["p3", "p10", "x"])}
    )
    made.remove("p10")  # its row is still in the files
    return made


def is_in(folder, content):
    return any(content in path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_the_person_is_in_nothing_that_is_made(run, gallery, tmp_path, capsys):
    row = gallery.search(FakeEmbedder().embed(pictures(1, 0)), 1, -1)[0][0]
    assert row.name == "p3"
    # Together, as they were embedded: products of other sizes may be rounded otherwise.
    embeddings = FakeEmbedder().embed(np.concatenate([pictures(1, seed) for seed in range(3)]))
    gone = [embedding.tobytes() for embedding in embeddings[:2]]
    assert all(map(partial(is_in, gallery.folder), gone))
    new = tmp_path / "new"
    given = ["--to", new, "--gallery", gallery.folder, "-o", "Global.epochs=1"]
    code, said = forget(capsys, run, *GONE, *given)
    assert code == 0, said

    stays = [name for name in OLD if name not in GONE]
    for step in checkpoints(new):
        saved = Checkpoint.open(checkpoint(new, step))
        assert saved.classes() == stays and all(
            len(saved.head(0, 9)[name]) == 9 for name in saved.head_arrays
        )
    old = arrays(checkpoint(run, 4))["head: centres"]
    last = arrays(checkpoint(new, checkpoints(new)[-1]))["head: centres"]
    assert not any(np.array_equal(row, other) for row in old[[3, 10]] for other in last)
    assert not any(map(partial(is_in, gallery.folder), gone))
    assert Gallery.open(gallery.folder).names() == ["x"]

    receipt = json.loads((new / "forgotten.json").read_text())
    assert receipt["forgotten"] == GONE and receipt["images"] == 10 and receipt["strangers"]["images"] == 80
    assert receipt["galleries"] == {str(gallery.folder): ["p3"]} and receipt["deleted"] == []
    made = [*(checkpoint(run, step) for step in checkpoints(run)), run / "card.md", run / "card.json"]
    assert receipt["still there"] == [*map(str, made)]
    tests = receipt["membership"]
    assert list(tests) == ["as trained", "without the centres", "after the repair"]
    assert tests["as trained"]["nearest"] != tests["without the centres"]["nearest"]
    assert receipt["to"] == {
        "checkpoint": str(checkpoint(new, checkpoints(new)[-1])),
        "network": Checkpoint.open(checkpoint(new, checkpoints(new)[-1])).network,
        "classes": 9,
    }
    assert "| left out | 2 classes" in (new / "card.md").read_text()
    text = (new / "forgotten.txt").read_text()
    assert text in said and "2 forgotten: p3, p10" in text and "AUC: nearest centre" in text
    assert "never trained on is not checked" in text and not receipt["strangers"]["named"]


def test_the_repair_has_no_teacher_no_older_run_and_other_counts(tmp_path):
    others = ["Teacher={checkpoint: before, weight: 2}", "Global.compatible_with=before"]
    counts = ["DataLoader.Train.num_classes=11", "DataLoader.Train.num_samples=55"]
    cfg = repair_config(load(TINY, [*others, *counts]), tmp_path, ["Ann"], str(tmp_path))
    assert (cfg.Teacher.checkpoint, cfg.Global.compatible_with) == (None, None)
    assert (cfg.DataLoader.Train.num_classes, cfg.DataLoader.Train.num_samples) == (None, None)


@pytest.fixture
def untested(monkeypatch):
    """Whatever is refused is refused before any work."""
    monkeypatch.setattr("plsc.training.forget.test", lambda *_, **__: pytest.fail("a test has begun"))


def test_they_leave_several_sets_and_their_corrections(run, tmp_path, capsys):
    """The one dropped image of p3 is no image of theirs."""
    people = json.dumps([{"name": "tests.tiny_runs:People", "people": names} for names in (OLD, ["a", "p3"])])
    sets = f"DataLoader.Train.dataset={people}"
    data = dataset_of(load(TINY, [sets]))
    row = int(np.flatnonzero(data.labels == 3)[0])
    write_corrections(tmp_path / "some.tsv", data, [Correction("drop", row, -1, 4.0)])
    given = [sets, f"DataLoader.Train.corrections=[{tmp_path}/some.tsv]", "Global.max_steps=1"]
    code, said = forget(capsys, run, "p3", "--to", tmp_path / "new", "-o", *given)
    assert code == 0, said
    assert Checkpoint.open(checkpoint(tmp_path / "new", 1)).classes() == [*OLD[:3], *OLD[4:], "a"]
    assert json.loads((tmp_path / "new/forgotten.json").read_text())["images"] == 9


def test_a_repair_that_could_not_start_is_refused(run, tmp_path, capsys, untested):
    for given, why in {
        (f"Global.compatible_with={tmp_path}/gone",): "Global.compatible_with: .*there is no run",
        ("DataLoader.Train.global_batch=24",): "must be the samples of a step, 1 rank",
    }.items():
        code, said = forget(capsys, run, "p3", "--to", tmp_path / "new", "-o", *given)
        assert code == 2 and re.search(why, said) and not (tmp_path / "new").exists(), said


def test_an_older_run_that_is_left_out_is_named(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    text = load(copy / "config.yaml").edit({"Global.compatible_with": "gone"}).to_yaml()
    (copy / "config.yaml").write_text(text)
    code, said = forget(capsys, copy, "p3", "-o", "Global.max_steps=1")
    assert code == 0 and said.count("Global.compatible_with is left out of the repair, since gone may") == 1


def test_what_is_refused(run, tmp_path, capsys, untested):
    for arguments, why in {
        (tmp_path, "p3"): "has no config.yaml",
        (run, "Ann"): "has no class 'Ann'",
        (run, "p3", "--to", run): "has a run already",
        (
            run,
            "p3",
            "-o",
            "DataLoader.Eval.dataset=null",
        ): "must be pairs of people who were never trained on",
        (run, "p3", "-o", "Global.epoch=1"): "unknown key",
        (run, "p3", "-o", "DataLoader.Train.without=[p10]"): "lacks 'p3', who is to be forgotten",
        (run, "p3", "-o", f"Global.output_dir={tmp_path}/x"): "by --to",
        (run, "p3", "--ranks", "0"): "--ranks: must be at least 1, got 0",
    }.items():
        code, said = forget(capsys, *arguments)
        assert code == 2 and why in said and not (run.parent / "out-without").exists(), said


def test_two_ranks_repair_and_what_holds_them_is_deleted_on_request(
    run, tmp_path, capsys, launches_are_forked
):
    (run / "export").mkdir()
    given = ["--to", tmp_path / "new", "--ranks", "2", "--delete-old", "-o", "Global.epochs=1"]
    code, said = forget(capsys, run, "p3", *given)
    assert code == 0, said
    (saved,) = (tmp_path / "new/checkpoints").iterdir()
    assert len(list(saved.glob("head-*.safetensors"))) == 2
    assert Checkpoint.open(saved).classes() == [name for name in OLD if name != "p3"]
    assert not list((run / "checkpoints").glob("step-*")) and not (run / "export").exists()
    assert not (run / "card.md").exists() and (tmp_path / "new/card.md").exists()
    receipt = json.loads((tmp_path / "new/forgotten.json").read_text())
    assert receipt["still there"] == [] and str(run / "export") in receipt["deleted"]
    assert receipt["galleries"] == {} and (run / "metrics.jsonl").exists()
