"""Global.init_from: the weights and which rows are taken over, the words of it, and what is refused."""

import json
import re

import numpy as np
import pytest

from plsc.entry import Entry
from plsc.errors import MissingFileError
from plsc.training import init_from
from plsc.training.init_from import find_weights, initialise_from
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import NO_PAIRS, TINY, arrays, checkpoint, make_trainer, train

OLD = [f"p{number}" for number in range(11)]
NEW = ["x", "p9", "p0", "p1", "y", "p8", "p7", "p6", "p2", "p4", "p5", "z"]  # p3 and p10 are dropped
CASES = {"device": [], "host": ["Head.bank=host"], "replicated": ["Head.name=arcface"]}


def people(names):
    return f"DataLoader.Train.dataset={{name: tests.helpers.tiny_runs:People, people: {json.dumps(names)}}}"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run of two steps with eleven people."""
    folder = tmp_path_factory.mktemp("before")
    train(folder, people(OLD), "Global.max_steps=2", NO_PAIRS)
    return folder


def started(folder, path, *overrides, data=None):
    """A trainer that has started from `path`, the rows that its head had before, and what was said."""
    trainer = make_trainer(
        folder, data or people(NEW), NO_PAIRS, f"Global.init_from={path}", "Global.seed=5", *overrides
    )
    initial = {name: np.array(array[:]) for name, array in trainer.head.bank.state().items()}
    said = initialise_from(find_weights(path), trainer.backbone, trainer.head, trainer.dataset)
    return trainer, initial, said


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rows", [4, 65_536])
def test_known_names_keep_their_rows_and_all_else_starts_new(before, tmp_path, monkeypatch, overrides, rows):
    monkeypatch.setattr(init_from, "ROWS_AT_ONCE", rows)
    trainer, initial, said = started(tmp_path, before, *overrides)
    saved, state = arrays(checkpoint(before, 2)), trainer.head.bank.state()
    assert saved["head: momentum"].any() and not state["momentum"].any() and trainer.step == 0
    for label, name in enumerate(NEW):
        expected = saved["head: centres"][OLD.index(name)] if name in OLD else initial["centres"][label]
        assert state["centres"][label].tobytes() == expected.tobytes(), name
    for name, tensor in trainer.backbone.state_dict().items():
        assert tensor.numpy().tobytes() == saved[f"backbone: {name}"].tobytes(), name
    assert said == [
        f"starting with the weights of {checkpoint(before, 2)}, backbone.safetensors",
        "centres: 9 kept by name, 3 new at random, 2 dropped",
    ]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["Head.sub_centres=2"], "a class has 8 numbers there, in this run 16"),
        (["Head.name=dist_softmax"], "the head there is dist_arcface, this run's has no margin"),
        ([people(["a", "b"]), "DataLoader.Train.batch_size=2"], "no class of .* is in the data"),
        (
            ["DataLoader.Train.dataset={name: Synthetic, num_classes: 23, image_shape: [1, 12, 10]}"],
            "the classes of the data have no names",
        ),
    ],
)
def test_a_head_that_cannot_be_kept_is_new(before, tmp_path, more, line):
    data = more.pop(0) if more[0].startswith("DataLoader") else None
    trainer, initial, said = started(tmp_path, before, *more, data=data)
    assert len(said) == 2 and said[1].startswith("the head is new: ")
    assert re.search(line, said[1])
    for name, array in trainer.head.bank.state().items():
        assert np.array_equal(array[:], initial[name])


def test_what_does_not_fit_is_refused(before, tmp_path):
    said = refusal(started, tmp_path, before, "Model.widths=[4, 7]")
    assert "checkpoint step-00000002: stages.2.0.weight is [6, 4, 3, 3] in the checkpoint" in said


def test_a_folder_without_a_checkpoint_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    for name in ("none", "empty"):
        entry = Entry(TINY, [f"Global.init_from={tmp_path / name}", f"Global.output_dir={tmp_path}/out"])
        for verb in (entry.train, entry.dry_run):
            said = refusal(verb, kind=MissingFileError)
            assert re.match(f"-o.*: Global.init_from: .*{name}: has no checkpoint; name", said)
    assert not (tmp_path / "out").exists()
