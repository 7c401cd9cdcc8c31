"""The historic set_* calls: each changes its key, says so as the source, and refuses what the config
refuses."""

import re
from pathlib import Path

import pytest

from plsc.apps.migrate.setters import GONE, Setters
from plsc.config import ConfigError
from plsc.data.dataset import PairSet
from plsc.entry import Entry
from plsc.errors import MissingFileError, UserError
from plsc.utils.registry import DATASETS

CALLS = [  # method, arguments, the keys it sets
    ("set_train_batch_size", [32], {"DataLoader.Train.batch_size": 32}),
    ("set_test_batch_size", [64], {"DataLoader.Eval.batch_size": 64}),
    ("set_model_save_dir", ["runs/a"], {"Global.output_dir": "runs/a"}),
    ("set_checkpoint_dir", ["runs/a/checkpoints/step-1"], {"Global.checkpoint": "runs/a/checkpoints/step-1"}),
    ("set_class_num", [85742], {"DataLoader.Train.num_classes": 85742}),
    ("set_emb_size", [512], {"Model.embedding_size": 512}),
    ("set_model_name", ["tests.helpers.tiny_runs:Linear"], {"Model.name": "tests.helpers.tiny_runs:Linear"}),
    ("set_train_epochs", [4], {"Global.epochs": 4}),
    ("set_train_steps", [100], {"Global.max_steps": 100}),
    ("set_warmup_epochs", [0.5], {"LRScheduler.warmup_epochs": 0.5}),
    (
        "set_loss_type",
        ["arcface", 0.4, 32.0],
        {"Head.name": "arcface", "Head.margin": 0.4, "Head.scale": 32.0},
    ),
    ("set_loss_type", ["dist_cosface"], {"Head.name": "dist_cosface"}),
    ("set_model_parallel", [False], {"Head.name": "arcface"}),
    ("set_model_parallel", [True], {"Head.name": "dist_arcface"}),
    ("set_test_period", [500], {"Global.eval_every_steps": 500}),
    ("set_log_period", [7], {"Global.log_every": 7}),
    ("set_step_boundaries", [(100, 160)], {"LRScheduler.name": "step", "LRScheduler.boundaries": [100, 160]}),
    ("set_sample_ratio", [0.1], {"Head.sample_rate": 0.1}),
    ("set_distfc_attr", [0.02], {"Head.init_std": 0.02}),
    ("set_max_last_checkpoint_num", [5], {"Checkpoint.keep": 5}),
]


def value(config, key):
    for part in key.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("method, arguments, changes", CALLS)
def test_a_call_sets_its_keys_and_no_other(method, arguments, changes):
    entry = Entry()
    assert getattr(entry, method)(*arguments) is entry
    for key, expected in changes.items():
        assert value(entry.config, key) == expected
        assert entry.config.source(key) == method
    assert entry.config == Entry().config.edit(changes, "test")


def test_every_call_is_tried_here():
    tried = {method for method, *_ in CALLS}
    tried |= {
        "set_with_test",
        "set_dataset_dir",
        "set_val_targets",
        "set_lr_decay_factor",
        "set_model",
        "set_optimizer",
    }
    assert tried == {name for name in vars(Setters) if name.startswith("set_")}


def test_an_optimizer_by_name_takes_the_place_of_a_function():
    entry = Entry().set_optimizer(lambda net: None).set_optimizer("AdamW")
    assert entry._make_optimizer is None
    assert (entry.config.Optimizer.name, entry.config.source("Optimizer.name")) == ("AdamW", "set_optimizer")


class BinPairs(PairSet):
    """Stands for the format, which these tests do without."""

    def __init__(self, path: str, title: str = ""):
        self.path, self.name = path, title

    def image(self, index):
        raise NotImplementedError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS._classes, "BinPairs", BinPairs)
    for name in ("lfw.bin", "cfp_fp.bin", "agedb_30.bin"):
        (tmp_path / name).touch()
    (tmp_path / "label.txt").write_text("a.jpg 0\n")
    return tmp_path


def test_a_data_set_folder_as_plsc_had_them(folder):
    data = Entry().set_dataset_dir(folder).config.DataLoader.Train.dataset
    assert data.name == "ImageList"
    assert data.keywords == {"list": f"{folder}/label.txt", "root": str(folder), "flip": True}


def test_targets_are_packs_of_the_folder(folder):
    entry = Entry().set_dataset_dir(folder).set_val_targets("lfw, cfp_fp,agedb_30")
    section = entry.config.DataLoader.Eval
    assert section.dataset.keywords == {"path": f"{folder}/lfw.bin", "title": "lfw"}
    assert list(section.more) == ["cfp_fp", "agedb_30"] and section.more["cfp_fp"].name == "BinPairs"
    assert section.more["agedb_30"].keywords == {"path": f"{folder}/agedb_30.bin"}
    assert entry.config.source("DataLoader.Eval.more.cfp_fp.path") == "set_val_targets"
    one = entry.set_val_targets("cfp_fp").config.DataLoader.Eval
    assert one.dataset.keywords["title"] == "cfp_fp" and one.more == {}
    none = entry.set_val_targets("lfw,cfp_fp").set_with_test(False).config.DataLoader.Eval
    assert none.dataset is None and none.more == {}


def test_targets_that_are_not_there(folder):
    entry = Entry().set_dataset_dir(folder)
    with pytest.raises(MissingFileError) as raised:
        entry.set_val_targets("lfw,calfw")
    assert str(raised.value) == f"set_val_targets: there is no {folder}/calfw.bin"
    with pytest.raises(UserError) as raised:
        entry.set_val_targets(" ,")
    assert str(raised.value) == "set_val_targets: must name packs, separated by commas (got ' ,')"
    with pytest.raises(UserError) as raised:
        Entry().set_val_targets("lfw")
    assert str(raised.value) == (
        "set_val_targets: looks in the folder of the training images, which is not known; call set_dataset_dir first"
    )


def test_steps_replace_epochs_and_the_other_way_round():
    entry = Entry().set_train_steps(100)
    assert (entry.config.Global.epochs, entry.config.Global.max_steps) == (None, 100)
    entry.set_train_epochs(3)
    assert (entry.config.Global.epochs, entry.config.Global.max_steps) == (3, None)


def test_calls_can_be_chained_and_the_last_one_wins():
    head = Entry().set_loss_type("arcface", 0.3).set_model_parallel(True).set_loss_type("cosface").config.Head
    assert (head.name, head.margin) == ("cosface", 0.3)
    assert Entry().set_loss_type("arcface", 0.3).set_loss_type("softmax").config.Head.margin is None


def test_the_decay_of_the_step_schedule():
    schedule = Entry().set_step_boundaries([10]).set_lr_decay_factor(0.5).config.LRScheduler
    assert (schedule.name, schedule.boundaries, schedule.gamma) == ("step", [10], 0.5)


def test_verification_is_switched_off_and_never_on_without_pairs():
    entry = Entry(overrides=["DataLoader.Eval.dataset.num_pairs=100"])
    assert entry.set_with_test(True).config.DataLoader.Eval.dataset.keywords == {"num_pairs": 100}
    assert entry.set_with_test(False).config.DataLoader.Eval.dataset is None
    assert entry.config.source("DataLoader.Eval.dataset") == "set_with_test"
    with pytest.raises(UserError) as raised:
        entry.set_with_test(True)
    assert str(raised.value) == (
        "set_with_test: DataLoader.Eval.dataset is null; name a pair set there to verify on"
    )


@pytest.mark.parametrize(
    "method, arguments, line",
    [
        (
            "set_train_batch_size",
            [0],
            "set_train_batch_size: DataLoader.Train.batch_size: must be an integer >= 1 (got 0)",
        ),
        (
            "set_emb_size",
            ["big"],
            "set_emb_size: Model.embedding_size: must be an integer in [1, 65536] (got 'big')",
        ),
    ],
)
def test_a_wrong_value_names_the_call_and_changes_nothing(method, arguments, line):
    entry = Entry()
    with pytest.raises(ConfigError) as raised:
        getattr(entry, method)(*arguments)
    assert str(raised.value) == line
    assert entry.config == Entry().config


class Made:
    """As an optimizer is: an object, which cannot be called."""


@pytest.mark.parametrize(
    "method, argument, line",
    [
        (
            "set_lr_decay_factor",
            0.5,
            "set_lr_decay_factor: the schedule is cosine, which has no steps to decay at; call set_step_boundaries first",
        ),
        ("set_model_parallel", "no", "set_model_parallel: must be True or False (got 'no')"),
        ("set_with_test", "False", "set_with_test: must be True or False (got 'False')"),
        (
            "set_model",
            "ResNet50",
            (
                "set_model: must be given a paddle.nn.Layer, made, not its class or its name (got 'ResNet50'); set_model_name takes a "
                "name, or package.module:Class"
            ),
        ),
        (
            "set_model",
            Made,
            "set_model: must be given a paddle.nn.Layer, made, not its class or its name (got <class",
        ),
        (
            "set_optimizer",
            Made(),
            "set_optimizer: must be given a name, or a function that makes the optimizer of a backbone (got Made ",
        ),
        (
            "set_optimizer",
            Made,
            "set_optimizer: must be given a name, or a function that makes the optimizer of a backbone (got type ",
        ),
    ],
)
def test_what_a_call_cannot_use_is_refused_at_once(method, argument, line):
    """A text that is not empty is true, so `set_with_test("False")` would verify."""
    entry = Entry()
    with pytest.raises(UserError) as raised:
        getattr(entry, method)(argument)
    assert str(raised.value).startswith(line) and "\n" not in str(raised.value)
    assert entry.config == Entry().config and entry._model is None and entry._make_optimizer is None


@pytest.mark.parametrize("name", GONE)
def test_a_call_that_plsc_had_says_what_takes_its_place(name):
    with pytest.raises(AttributeError) as raised:
        getattr(Entry(), name)
    assert str(raised.value) == f"{name}: {GONE[name]}" and name not in vars(Setters)


def test_any_other_name_is_no_attribute():
    assert not hasattr(Entry(), "set_nothing")
    with pytest.raises(AttributeError, match="^'Entry' object has no attribute 'set_nothing'$"):
        Entry().set_nothing()


def test_the_page_for_plscs_users_names_all_that_is_gone():
    page = (Path(__file__).parents[3] / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `set_train_image_num`")]
    assert set(re.findall(r"`(\w+)`", row)) == set(GONE)
