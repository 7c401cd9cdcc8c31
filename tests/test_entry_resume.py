"""What training does in a folder that has a run already: resume, go back, delete, or refuse."""

import json
import re
import shutil

import numpy as np

from plsc.checkpoint.evaluation import Evaluation
from plsc.checkpoint.store import newest_step
from plsc.config import load
from plsc.entry import Entry
from plsc.training.run_folder import how_to_resume, locate_checkpoint, write_config
from tests.helpers.image_files import write_folder
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, checkpoint, checkpoints, rows, steps

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 1, 12, 10), np.uint8)


def entry(output, *overrides):
    return Entry(TINY, [f"Global.output_dir={output}", *overrides])


def test_a_finished_run_is_deleted_only_where_that_is_asked_for(tmp_path):
    short = ["Global.max_steps=1", "DataLoader.Eval.dataset=null"]
    own = ["notes.txt", "test/ann.png", "export/mine.txt", "predict"]  # the user's, and with names of ours
    for name in own:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "log").mkdir()  # as Paddle's launcher makes it before it starts ranks
    (tmp_path / "train.log").write_text("mine")
    said = "has train.log, which no run wrote and a new run would delete; name another"
    assert said in refusal(entry(tmp_path, *short).train)
    (tmp_path / "train.log").unlink()
    entry(tmp_path, *short).train()
    assert re.search(
        "contains a finished run, step 1; .* Global.overwrite=true to ",
        refusal(entry(tmp_path, *short).train),
    )
    (tmp_path / "test/results.json").write_text("{}")  # as plsc eval writes it
    for damaged in ("", "[]"):  # as after a power cut
        (tmp_path / "results.json").write_text(damaged)
        entry(tmp_path, *short).train()
    assert json.loads((tmp_path / "results.json").read_text())["step"] == 1
    entry(tmp_path, *short, "Global.max_steps=2", "Global.overwrite=true").train()
    assert "contains a finished run, step 2" in refusal(Entry(tmp_path).train)
    assert {(tmp_path / name).read_text() for name in own} == {"mine"} and checkpoints(tmp_path) == [2]
    assert steps(rows(tmp_path)) == [1, 2] and not (tmp_path / "test/results.json").exists()
    (tmp_path / "export/mine.txt").rename(tmp_path / "export/preprocessing.json")  # as plsc export writes it
    entry(tmp_path, *short, "Global.overwrite=true").train()
    assert (tmp_path / "test/ann.png").exists() and not (tmp_path / "export").exists()


def test_a_run_that_goes_back_keeps_what_it_saves_then(tmp_path, capsys):
    entry(tmp_path, "Global.max_steps=9", "Checkpoint.every_steps=3").train()
    assert checkpoints(tmp_path) == [3, 6, 9]
    mine = checkpoint(tmp_path, 3).rename(tmp_path / "mine")  # as from a backup
    back = ["Global.resume=true", f"Global.checkpoint={mine}", "Checkpoint.every_steps=1"]
    capsys.readouterr()
    entry(tmp_path, *back, "Global.max_steps=4").train()
    assert newest_step(tmp_path / "checkpoints") == 4
    assert sorted(path.name for path in tmp_path.glob("checkpoints/*.bad")) == [
        "step-00000006.bad",
        "step-00000009.bad",
    ]
    assert (
        "resuming from step 3: later checkpoints are set aside, the last one as " in capsys.readouterr().out
    )


def test_a_resumed_run_names_the_settings_that_have_changed(tmp_path, capsys):
    short = ["DataLoader.Eval.dataset=null", "Global.resume=true"]
    entry(tmp_path, *short, "Global.max_steps=1").train()
    entry(tmp_path, *short, "Global.max_steps=2").train()
    assert "was made with" not in capsys.readouterr().out
    entry(tmp_path, *short, "Global.max_steps=3", "Head.margin=0.3", "LRScheduler.learning_rate=0.01").train()
    said = capsys.readouterr().out
    assert "WARNING Head.margin is 0.3, and step-00000002 was made with 0.5\n" in said
    assert "WARNING LRScheduler.learning_rate is 0.01, and step-00000002 was made with " in said


def test_a_resumed_run_names_the_keys_of_the_training_set_that_have_changed(tmp_path, capsys):
    """Its files may have been moved, so texts are no difference."""
    write_folder(tmp_path / "one", {"Ann": 12, "Bob": 12})
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    def said(steps, keys):
        data = f"DataLoader.Train.dataset={{name: ImageFolder, size: [12, 10], channels: grey, {keys}}}"
        short = ["DataLoader.Eval.dataset=null", "Global.resume=true", f"Global.max_steps={steps}"]
        entry(tmp_path / "out", *short, data).train()
        return re.findall("WARNING (.*was made with.*)", capsys.readouterr().out)

    assert said(1, f"folder: {tmp_path}/one, crop: 0.1") == []
    assert said(2, f"folder: {tmp_path}/two, crop: 0.1") == []
    end = "and step-00000002 was made with"
    assert said(3, f"folder: {tmp_path}/one, crop: 0.2, flip: true") == [
        f"DataLoader.Train.dataset.crop is 0.2, {end} 0.1",
        f"DataLoader.Train.dataset.flip is True, {end} its default",
    ]


def test_resuming_where_nothing_is_starts_at_the_beginning(tmp_path, capsys):
    entry(tmp_path, "Global.resume=true", "Global.max_steps=1").train()
    assert f"nothing to resume in {tmp_path}, starting at step 0" in capsys.readouterr().out
    assert steps(rows(tmp_path)) == [1]


def test_the_same_command_resumes_from_the_newest_and_says_where_it_would_not(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr("plsc.checkpoint.store.find", lambda folder, name, rename: names.append(name))
    stopped = entry(tmp_path, "Global.checkpoint=best").config.Global
    back = entry(tmp_path, "Global.checkpoint=best", "Global.resume=true").config
    for section in (stopped, back.Global):
        locate_checkpoint(section, writes=True)
    assert names == ["newest", "best"] and how_to_resume(stopped) == "rerun the same command to resume"
    assert how_to_resume(back.Global) == "rerun the same command without Global.checkpoint to resume"
    write_config(back)  # which does not go back again
    folders = f"Global.folders={back.folders}"
    assert load(tmp_path / "config.yaml") == entry(tmp_path, folders).config


def test_a_damaged_only_checkpoint_is_not_started_over(tmp_path):
    entry(tmp_path, "Global.max_steps=1", "DataLoader.Eval.dataset=null").train()
    (checkpoint(tmp_path, 1) / "manifest.json").write_text("{}")
    assert "no checkpoint is usable" in refusal(entry(tmp_path).export)
    assert checkpoint(tmp_path, 1).exists(), "a verb that only reads has renamed it"
    assert "no checkpoint is usable" in refusal(entry(tmp_path, "Global.resume=true").train)


def test_newest_and_best_are_words_for_checkpoints(tmp_path, capsys):
    values = ["Global.eval_every_steps=4", "Checkpoint.keep=9", "LRScheduler.learning_rate=0.001"]
    entry(tmp_path, *values).train()
    best = json.loads((tmp_path / "results.json").read_text())["best"]
    for word, step in (("newest", 12), ("best", best["step"])):
        capsys.readouterr()
        found = entry(tmp_path, f"Global.checkpoint={word}").evaluate()
        assert f"reading checkpoint {checkpoint(tmp_path, step)} ({word})" in capsys.readouterr().out
        content = json.loads((tmp_path / "test" / "results.json").read_text())
        assert (content["step"], content["checkpoint"]) == (step, str(checkpoint(tmp_path, step)))
        assert content["sets"]["noise pairs"]["accuracy"] == found["accuracy"]
    assert found["accuracy"] == best["value"]
    for step, value in ((4, 0.75), (8, 0.5), (12, 0.5)):
        made = Evaluation.read(checkpoint(tmp_path, step))
        made.model_copy(update={"value": value}).write(checkpoint(tmp_path, step))
    line = (
        "step-00000004 has the best accuracy on noise pairs, 80 images: 0.7500, step-00000012 0.5000; set "
        "Global.checkpoint=best to use it"
    )
    for use in (lambda one: one.predict(PIXELS), Entry.evaluate, Entry.export):
        use(entry(tmp_path, "Export.formats=[paddle]"))
        assert capsys.readouterr().out.count(line) == 1
    entry(tmp_path, "Global.checkpoint=newest").predict(PIXELS)  # which asks for it
    made.model_copy(update={"value": 0.75}).write(checkpoint(tmp_path, 12))  # as good as the best
    entry(tmp_path).predict(PIXELS)
    assert "to use it" not in capsys.readouterr().out
    entry(tmp_path, f"Global.checkpoint={checkpoint(tmp_path, 8)}").predict(PIXELS)
    assert f"reading checkpoint {checkpoint(tmp_path, 8)}\n" in capsys.readouterr().out
