"""What a checkpoint puts into a new network and a new head; whole runs that resume are in test_trainer.py."""

import numpy as np
import pytest

from plsc.checkpoint.store import Checkpoint
from plsc.config import Config, _keys, load
from plsc.config.schema import affects_training
from plsc.errors import UserError
from plsc.training.resume import build_backbone, build_saved_head, load_backbone
from tests.tiny_runs import IMAGE_SHAPE, TINY, arrays, checkpoint, train


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(folder, "Global.max_steps=2")
    return checkpoint(folder, 2)


def test_a_seed_decides_the_initial_weights():
    first, again = (build_backbone(load(TINY), IMAGE_SHAPE).state_dict() for _ in range(2))
    other = build_backbone(load(TINY, ["Global.seed=4"]), IMAGE_SHAPE).state_dict()
    assert all(first[name].numpy().tobytes() == again[name].numpy().tobytes() for name in first)
    assert not np.array_equal(first["stages.0.0.weight"].numpy(), other["stages.0.0.weight"].numpy())


def test_backbone_and_head_are_those_of_the_checkpoint(saved, monkeypatch):
    monkeypatch.setattr("plsc.training.resume._ROWS_AT_ONCE", 5)  # 23 classes in five pieces
    backbone, found = build_backbone(load(TINY, ["Global.seed=4"]), IMAGE_SHAPE), arrays(saved)
    load_backbone(backbone, Checkpoint.open(saved))
    for name, value in backbone.state_dict().items():
        assert value.numpy().tobytes() == found[f"backbone: {name}"].tobytes(), name
    state = build_saved_head(load(TINY, ["Global.seed=4"]), Checkpoint.open(saved)).bank.state()
    assert state.keys() == {"centres", "momentum"}
    for name, rows in state.items():
        assert rows.tobytes() == found[f"head: {name}"].tobytes(), name


def test_another_network_is_refused(saved):
    other = build_backbone(load(TINY, ["Model.widths=[4, 7]"]), IMAGE_SHAPE)
    with pytest.raises(UserError, match="of another shape"):
        load_backbone(other, Checkpoint.open(saved))


# The keys with which a run may be resumed without a word: they do not change the weights that it ends with.
NOT_TRAINING = {
    "Checkpoint": None,
    "Export": None,
    "DataLoader": {"Eval", "num_classes", "num_workers", "max_corrupt"},
    "Head": {"bank_folder", "logits_budget_mb", "init_std"},
    "Global": {
        *(
            "output_dir",
            "resume",
            "device",
            "checkpoint",
            "init_from",
            "keep_centres",
            "new_centres",
            "log_every",
        ),
        *("eval_every", "eval_every_steps", "profile", "hang_seconds", "max_skipped", "rollbacks", "threads"),
    },
}


def test_each_key_says_whether_it_affects_the_training():
    for path in _keys(Config):
        section, *keys = path
        quiet = NOT_TRAINING.get(section, set())
        expected = quiet is None or bool(quiet & set(keys))
        assert affects_training(Config, path) is not expected, path
    assert not affects_training(Config, ["DataLoader", "Eval", "more", "a title", "name"])
    assert affects_training(Config, ["Global", "of_another_version"])
