"""join.yaml: a live run that takes people in has the bits of one that was stopped and started from the checkpoint; what is refused."""

import json
import logging

import pytest

from plsc.checkpoint.pieces import step_of
from plsc.checkpoint.store import Checkpoint, completed
from plsc.config import load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training.divergence import DivergedError
from plsc.training.join import is_before_join, with_joined
from tests.faults import FaultyNet
from tests.tiny_runs import TINY, assert_same_arrays, checkpoint, make_trainer, rows, steps
from tests.training.test_finetune import NEW, NO_PAIRS, OLD, people

SETTINGS = [people(OLD), NO_PAIRS, "Head.sample_rate=0.5", "Checkpoint.keep=9"]
JOIN = f"DataLoader: {{Train: {{dataset: {{people: {json.dumps(NEW)}}}}}}}\n"


class Diverges(FaultyNet):
    """Its fourth and fifth step, and its first two after the join, have embeddings that are not finite."""

    def forward(self, images):
        emb_BD = super().forward(images)
        bad = (1, 2) if (self.marks / "0:8:join").exists() else (4, 5)
        return emb_BD * float("nan") if self.training and self.steps in bad else emb_BD


def net(folder, *plan, name="tests.faults:FaultyNet"):
    return [f"Model.name={name}", f"Model.plan={list(plan)}", f"Model.marks={folder}"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """The output_dir of a run that people have joined after step 5."""
    folder = tmp_path_factory.mktemp("joined")
    (folder / "join.yaml").write_text(JOIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Entry(TINY, ["Global.output_dir=out", *SETTINGS, *net(folder, "0:5:join")]).train()
    return folder / "out"


def test_a_join_equals_a_stop_and_a_start_from_the_checkpoint(joined, tmp_path):
    start = [f"Global.init_from={checkpoint(joined, 5)}", "Global.keep_step=true"]
    other = [f"Global.output_dir={tmp_path}", *SETTINGS, people(NEW), *net(tmp_path), *start]
    Entry(TINY, other).train()
    assert_same_arrays(checkpoint(joined), checkpoint(tmp_path))
    assert rows(joined)[5:] == rows(tmp_path)


def test_a_run_that_diverges_after_a_join_does_not_go_back_behind_it(tmp_path, capsys):
    """But ends; started again it goes on with the people who joined, and with the rate of the rollback before."""
    (tmp_path / "join.yaml").write_text(JOIN)
    run = [*SETTINGS, *net(tmp_path, "0:8:join", name="tests.training.test_join:Diverges")]
    run += ["Global.output_dir=out", "Global.rollbacks=2", "Global.max_skipped=2", "Checkpoint.every_steps=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(DivergedError, match="at step 7"):
            Entry(TINY, run).train()
        said = capsys.readouterr().out
        assert "rolled back from step 5 to step 2" in said and "no way back behind step 5" in said
        assert [step_of(path.name) for path in completed(tmp_path / "out/checkpoints")] == [2, 4, 5, 6]
        Entry(TINY, [*run, "Global.resume=true", "Model.name=tests.faults:FaultyNet"]).train()
    assert Checkpoint.open(checkpoint(tmp_path / "out", 12)).classes() == NEW
    assert [row["lr"] for row in rows(tmp_path / "out")[2:]] == [0.025] * 10


def test_the_files_go_on(joined):
    assert steps(rows(joined)) == list(range(1, 13))
    assert Checkpoint.open(checkpoint(joined, 5)).classes() == OLD
    assert Checkpoint.open(checkpoint(joined, 8)).classes() == NEW
    assert load(joined / "config.yaml").DataLoader.Train.dataset.keywords["people"] == NEW
    assert not (joined / "join.yaml").exists() and (joined / "joined/00000005.yaml").read_text() == JOIN
    assert json.loads((joined / "identities.json").read_text())["new"] == ["x", "y", "z"]


def test_a_run_that_is_started_again_has_the_people_who_joined(joined):
    cfg = load(TINY, [f"Global.output_dir={joined}", *SETTINGS])
    again = with_joined(cfg).Global
    assert with_joined(cfg).DataLoader.Train.dataset.keywords["people"] == NEW
    assert again.keep_step and again.init_from == str(checkpoint(joined, 5))
    assert is_before_join(cfg, checkpoint(joined, 5)) and not is_before_join(cfg, checkpoint(joined, 8))


def test_a_start_after_the_last_step_is_refused(joined, tmp_path):
    start = [f"Global.init_from={checkpoint(joined, 12)}", "Global.keep_step=true"]
    with pytest.raises(UserError, match="nothing is left to train after step 12"):
        Entry(TINY, [f"Global.output_dir={tmp_path}", *SETTINGS, people(NEW), *net(tmp_path), *start]).train()


def test_an_empty_file_is_not_taken_yet(tmp_path):
    joins = make_trainer(tmp_path, *SETTINGS).joins
    (tmp_path / "join.yaml").touch()
    assert not joins.asked
    (tmp_path / "join.yaml").write_text(JOIN)
    assert joins.asked


def refused(trainer, text, caplog):
    """What is said of a join.yaml with this text."""
    folder = trainer.joins._file.parent
    taken = sorted(folder.glob("joined/*"))
    (folder / "join.yaml").write_text(text)
    caplog.clear()
    logging.getLogger("plsc").addHandler(caplog.handler)
    try:
        assert trainer.joins.asked and trainer.joins.take(3) is None
    finally:
        logging.getLogger("plsc").removeHandler(caplog.handler)
    assert not (folder / "join.yaml").exists() and (folder / "join.refused.yaml").read_text() == text
    assert sorted(folder.glob("joined/*")) == taken and not trainer.joins.asked
    return caplog.text


def test_nobody_joins_before_the_last_join(tmp_path, caplog):
    """As in a run that was killed before it had saved that step: in the order of their steps the older file would win."""
    trainer = make_trainer(tmp_path, *SETTINGS)
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined/00000003.yaml").write_text(JOIN)
    assert "people have joined after step 3 already" in refused(trainer, JOIN, caplog)


def test_a_bad_file_is_refused_and_the_run_goes_on(tmp_path, caplog):
    trainer = make_trainer(tmp_path, *SETTINGS)
    same = JOIN.replace(json.dumps(NEW), json.dumps(OLD[::-1]))
    for text, why in {
        "DataLoader: {Train: {datset: {}}}": "join.yaml:1: DataLoader.Train.datset: unknown key",
        "Head: {margin: 0.1}": "Head.margin: cannot be set here",
        "[": "not valid YAML",
        "- a": "must be a mapping",
        JOIN.replace("people", "persons"): "persons",
        "DataLoader: {Train: {dataset: {name: ImageFolder, folder: nowhere}}}": "nowhere",
        "DataLoader: {Train: {dataset: {name: tests.tiny_runs:Unready}}}": "KeyError: 'no index yet'",
        same: "nobody joins or leaves",
        JOIN.replace(json.dumps(NEW), '["a", "a", "b"]'): "2 classes are called 'a'",
        "DataLoader: {Train: {dataset: {name: Synthetic}}}": "its samples have shape",
        "DataLoader: {Train: {dataset: {name: Synthetic, image_shape: [1, 12, 10]}}}": "have no names",
        f"{JOIN}Global: {{max_steps: 3}}": "the run would end at step 3, and 3 are done",
    }.items():
        assert why in refused(trainer, text, caplog), text
    for _ in range(2):  # a folder is renamed, too, also where one has been before
        (tmp_path / "join.yaml/x").mkdir(parents=True)
        assert trainer.joins.take(3) is None and (tmp_path / "join.refused.yaml/x").exists()
    assert trainer.joins.take(3) is None  # it has been taken away in the meantime
