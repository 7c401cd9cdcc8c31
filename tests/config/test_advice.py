"""What a valid config is warned about, and messages that have to name the cause."""

import json
import os
import re

import pytest

from plsc.config import ConfigError, load
from plsc.config.advice import advice
from plsc.data.config import KEY_OF_IMAGES
from plsc.entry import Entry
from plsc.errors import UserError
from tests.helpers.datasets import dataset_of
from tests.helpers.image_files import write_folder
from tests.helpers.tiny_runs import TINY

OWN = "DataLoader.Train.dataset={name: Synthetic, num_classes: 5, image_shape: [1, 12, 10]}"


def refused(*overrides, path=None):
    with pytest.raises(ConfigError) as raised:
        load(path, overrides)
    assert len(raised.value.errors) == 1
    return str(raised.value)


@pytest.mark.parametrize(
    "images, share, said",
    [
        ("label.txt", 0.1, None),
        ("label.txt", 0.05, None),
        ("label.txt", 0.2, "holds out 0.2 of the classes, the training only 0.1"),
        ("other.txt", 0.1, "is of other.txt, the training of label.txt"),
    ],
)
def test_verifying_on_what_was_not_held_out_is_said(tmp_path, monkeypatch, images, share, said):
    """A list has numbers for classes, of which nothing shows that they are those of another set."""
    monkeypatch.chdir(tmp_path)
    for name in ("label.txt", "other.txt"):
        (tmp_path / name).write_text("")
    train = "DataLoader.Train.dataset={name: ImageList, list: label.txt, hold_out: 0.1}"
    evaluation = f"DataLoader.Eval.dataset={{name: ImagePairs, images: {images}, hold_out: {share}}}"
    lines = advice(load(None, [train, evaluation]), 1, 1)
    assert len(lines) == (said is not None)
    assert said is None or lines[0].startswith(f"DataLoader.Eval.dataset: {said}")


def test_without_an_evaluation_of_ones_own_data_nothing_is_evaluated_and_that_is_said(tmp_path):
    cfg = load(None, [OWN])
    assert cfg.DataLoader.Eval.dataset is None and cfg.evaluation_dropped
    (line,) = advice(cfg, 1, 1)
    assert line.startswith("DataLoader.Eval.dataset: none is named") and "hold_out" in line
    (tmp_path / "again.yaml").write_text(cfg.to_yaml())
    assert load(tmp_path / "again.yaml").evaluation_dropped and load(tmp_path / "again.yaml") == cfg
    assert re.search(
        r"dataset: null +# default: nothing to evaluate on is named\n", cfg.to_yaml(sources=True)
    )
    again = load(cfg, ["DataLoader.Eval.batch_size=3"])
    assert again.evaluation_dropped and again.DataLoader.Eval.batch_size == 3


@pytest.mark.parametrize(
    "overrides, name",
    [
        ([], "GlyphPairs"),
        ([OWN, "DataLoader.Eval.dataset.num_pairs=10"], "GlyphPairs"),
        ([OWN, "DataLoader.Eval.dataset={name: ImagePairs, images: x}"], "ImagePairs"),
        (["DataLoader.Train.dataset.faces=4"], "GlyphPairs"),
    ],
)
def test_what_is_written_or_fits_is_evaluated(overrides, name):
    for cfg in (load(None, overrides), load(load(None, [OWN]), overrides[1:]) if overrides[1:] else None):
        assert cfg is None or (cfg.DataLoader.Eval.dataset.name == name and not cfg.evaluation_dropped)


def test_back_to_the_default_data_its_evaluation_is_back():
    cfg = load(None, [OWN]).edit({"DataLoader.Train.dataset": {"name": "Glyphs"}})
    assert cfg.DataLoader.Eval.dataset.name == "GlyphPairs" and not cfg.evaluation_dropped
    refusal = refused("DataLoader.Eval=3", OWN)
    assert refusal == "-o DataLoader.Eval=3: DataLoader.Eval: must be a mapping of keys (got 3)"


@pytest.mark.parametrize("ranks, rate, said", [(1, 100, True), (1, 1.0, False), (8, 5, False), (8, 9, True)])
def test_a_learning_rate_far_above_the_usual_is_warned_about(ranks, rate, said):
    lines = advice(load(None, [f"LRScheduler.learning_rate={rate}"]), ranks, ranks_here=1)
    assert [line.split(":")[0] for line in lines] == ["LRScheduler.learning_rate"] * said


@pytest.mark.parametrize(
    "name, rate, said", [("AdamW", 0.1, True), ("AdamW", 0.005, False), ("LARS", 30, False)]
)
def test_the_usual_rate_is_that_of_the_optimizer(name, rate, said):
    """The default rate is of Momentum; of LARS, whose rates differ by the batch, none is known."""
    lines = advice(
        load(None, [f"Optimizer.name={name}", f"LRScheduler.learning_rate={rate}"]), 8, ranks_here=1
    )
    assert len(lines) == said and all(
        "is usual for AdamW and a global batch of 1024 (0.001)" in line for line in lines
    )


def test_more_threads_than_processors_are_warned_about(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    two, one = load(None, ["Global.threads=2"]), load(None, ["Global.threads=1"])
    assert advice(two, 1, 1) == []
    slower = "share this machine's 2 processors, which is slower than fewer"
    assert advice(two, 2, 2) == [f"Global.threads: 2 threads for each of 2 ranks {slower}"]
    assert advice(one, 3, 3) == [f"Global.threads: 1 thread for each of 3 ranks {slower}"]


def test_more_ranks_than_processors_are_warned_about(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert advice(load(None, []), 1, 1) == []
    assert advice(load(None, []), 2, 1) == []  # on several machines
    (line,) = advice(load(None, []), 2, 2)
    assert line == "2 ranks share this machine's 1 processor, which is slower than fewer"


def test_the_advice_is_given_before_the_first_step(tmp_path, capsys):
    keys = [f"Global.output_dir={tmp_path}", "Global.max_steps=1", "DataLoader.Eval.dataset=null"]
    Entry(TINY, [*keys, "LRScheduler.learning_rate=100"]).train()
    said = capsys.readouterr().out
    assert 0 < said.index("WARNING LRScheduler.learning_rate: 100 is") < said.index("plan: steps")


@pytest.mark.parametrize(
    "override, hint",
    [
        ("DataLoader.Train.dataset.folder=x", "the keys of Glyphs; give name: ImageFolder for 'folder'"),
        ("DataLoader.Train.dataset.list=x", "the keys of Glyphs; give name: ImageList for 'list'"),
        ("DataLoader.Eval.dataset.images=x", "or ImagePairs for 'images'"),
        ("Head.m=0.3", "Head.m: unknown key, did you mean 'margin'?"),
        ("Head.s=32", "Head.s: unknown key, did you mean 'scale'?"),
        ("Optimizer.lr=1", "did you mean 'LRScheduler.learning_rate'?"),
        ("Optimizer.name=adamw", "did you mean 'AdamW'?"),
        (
            "Optimizer.name=Adam",
            "Optimizer.head: must name the class centres' optimizer, such as {name: Momentum}",
        ),
    ],
)
def test_a_hint_leads_to_the_key_that_was_meant(override, hint):
    assert hint in refused(override)


def test_what_a_data_set_refuses_while_it_is_made_names_key_and_place(tmp_path):
    faces = write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 2})
    (tmp_path / "my.yaml").write_text(
        f"DataLoader:\n  Eval:\n    dataset:\n      name: ImagePairs\n      images: {faces}\n      num_pairs: 8\n"
    )
    with pytest.raises(UserError) as raised:
        dataset_of(load(tmp_path / "my.yaml"), "DataLoader.Eval.dataset")
    key = "DataLoader.Eval.dataset.num_pairs"
    assert str(raised.value).startswith(f"{tmp_path}/my.yaml:6: {key}: must be at most 4 (got 8): ")
    few = load(None, ["DataLoader.Eval.dataset.held_out=0.01"])
    with pytest.raises(UserError, match=rf"{key}: must be at most \d+, got 6000: .*, which is the default"):
        dataset_of(few, "DataLoader.Eval.dataset")


def test_a_list_that_is_a_folder_is_called_one(tmp_path):
    cfg = load(None, [f"DataLoader.Train.dataset={{name: ImageList, list: {tmp_path}}}"])
    with pytest.raises(UserError, match=r"list: '.*' is a folder; .* name: ImageFolder"):
        cfg.check_data()


@pytest.mark.parametrize(
    "images, said",
    [("b.txt", None), ("a.txt", "the training only 0.1"), ("c.txt", "only 0.1")],
)
def test_a_hold_out_is_compared_with_the_set_of_the_same_images(images, said):
    sets = [{"list": "a.txt", "hold_out": 0.1}, {"list": "b.txt", "hold_out": 0.2}]
    train = json.dumps([{"name": "ImageList", **one} for one in sets])
    evaluation = f"{{name: ImagePairs, images: {images}, hold_out: 0.2}}"
    cfg = load(None, [f"DataLoader.Train.dataset={train}", f"DataLoader.Eval.dataset={evaluation}"])
    lines = [line for line in advice(cfg, 1, 1) if "hold" in line]
    assert len(lines) == (said is not None) and all(said in line for line in lines)


@pytest.mark.parametrize("name", KEY_OF_IMAGES)
def test_pairs_of_the_training_images_are_warned_of_with_no_format(name):
    train = f"DataLoader.Train.dataset={{name: {name}, {KEY_OF_IMAGES[name]}: here, hold_out: 0.2}}"
    assert advice(load(None, [train, "DataLoader.Eval.dataset={name: ImagePairs}"]), 1, 1) == []
