"""What a valid config is warned about, and messages that have to name the cause."""

import json

import pytest

from plsc.config import ConfigError, load
from plsc.config.advice import advice
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
    lines = advice(load(None, [train, evaluation]))
    assert len(lines) == (said is not None)
    assert said is None or lines[0].startswith(f"DataLoader.Eval.dataset: {said}")


def test_that_nothing_is_evaluated_is_said_unless_it_was_asked_for():
    (line,) = advice(load(None, [OWN]))
    assert line.startswith("DataLoader.Eval.dataset: none is named") and "hold_out" in line
    assert advice(load(None, [OWN, "DataLoader.Eval.dataset=null"])) == []


def test_the_advice_is_given_before_the_first_step(tmp_path, capsys):
    Entry(TINY, [f"Global.output_dir={tmp_path}", "Global.max_steps=1", "DataLoader.Eval={}"]).train()
    said = capsys.readouterr().out
    assert 0 < said.index("WARNING DataLoader.Eval.dataset: none is named") < said.index("plan: steps")


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
    ],
)
def test_a_hint_leads_to_the_key_that_was_meant(override, hint):
    assert hint in refused(override)


def test_what_a_data_set_refuses_while_it_is_made_names_key_and_place(tmp_path):
    faces = write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 2})
    (tmp_path / "my.yaml").write_text(
        f"DataLoader:\n  Eval:\n    dataset:\n      name: ImagePairs\n      images: {faces}\n      "
        "num_pairs: 8\n"
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
    lines = [line for line in advice(cfg) if "hold" in line]
    assert len(lines) == (said is not None) and all(said in line for line in lines)
