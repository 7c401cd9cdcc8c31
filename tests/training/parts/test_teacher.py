"""Distillation: the loss against a slow reference, the centres that stay, resuming, the plan, and what is
refused."""

import json
import re

import numpy as np
import paddle
import pytest

from plsc.config import load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training.embed import to_input
from plsc.training.stand_in import stand_in
from tests.helpers.bounds import EPS, assert_within, perturbed, rounded
from tests.helpers.tiny_runs import TINY, arrays, assert_same_arrays, checkpoint, make_trainer, rows, train

NO_PAIRS = "DataLoader.Eval.dataset=null"
OLD = [f"p{number}" for number in range(11)]
NEW = ["x", *OLD[::-1]]
SMALL = "Model.widths=[3, 4]"


def people(names):
    return f"DataLoader.Train.dataset={{name: tests.helpers.tiny_runs:People, people: {json.dumps(names)}}}"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A run of four steps with eleven people: its folder."""
    folder = tmp_path_factory.mktemp("teacher")
    train(folder, people(OLD), "Global.max_steps=4", NO_PAIRS)
    return folder


def keys(teacher, *more, names=NEW):
    return [people(names), NO_PAIRS, SMALL, f"Teacher.checkpoint={teacher}", *more]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_loss_is_the_cosine_to_the_teachers_embedding_of_the_same_pixels(teacher, tmp_path, accumulate):
    batch = [f"DataLoader.Train.batch_size={12 // accumulate}", f"DataLoader.Train.accumulate={accumulate}"]
    trainer = make_trainer(tmp_path, *keys(teacher, "Teacher.weight=3", *batch))
    other = make_trainer(tmp_path / "other", people(OLD), NO_PAIRS)
    other.resume(checkpoint(teacher, 4))
    other.backbone.eval()
    batch = next(trainer.loader.from_step(0))
    images = batch.images
    emb_BD = paddle.randn([12, 8])
    emb_BD.stop_gradient = False
    part = trainer.part("teacher")
    for _ in range(2):  # nothing of the teacher moves
        value = part.loss(batch, emb_BD)
    value.backward()

    def reference(emb, target):
        target = target / np.linalg.norm(target, axis=1, keepdims=True)
        lengths = np.linalg.norm(emb, axis=1, keepdims=True)
        cosine = (emb / lengths * target).sum(axis=1, keepdims=True)
        return 3 * (1 - cosine.mean()), -3 / 12 * (target - cosine * emb / lengths) / lengths

    def target():
        return other.backbone(to_input(images, trainer.dataset.preprocessing)).numpy().astype(np.float64)

    emb = emb_BD.numpy().astype(np.float64)
    want, of_teacher = rounded(other.backbone, lambda: reference(emb, target()))
    _, of_loss = perturbed(reference, emb, target())
    bound = [one + other for one, other in zip(of_teacher, of_loss)]
    assert_within([value.item(), emb_BD.grad.numpy()], want, bound, paths=2)


@pytest.mark.parametrize(
    "keys_of_head",
    [
        [],
        ["Optimizer.head={name: AdamW}", "Teacher.weight=0"],
        ["Head.bank=host", "Head.bank_dtype=bfloat16"],
    ],
    ids=["momentum", "adamw and centres alone", "bfloat16"],
)
def test_the_teachers_centres_stay_and_unknown_classes_have_means(teacher, tmp_path, capsys, keys_of_head):
    train(tmp_path, *keys(teacher, *keys_of_head, "Global.max_steps=5", "Checkpoint.every_steps=1"))
    first, last, saved = (
        arrays(path)["head: centres"]
        for path in (checkpoint(tmp_path, 3), checkpoint(tmp_path, 5), checkpoint(teacher, 4))
    )
    assert first.tobytes() == last.tobytes()
    if not keys_of_head:
        assert last[1:].tobytes() == saved[::-1].tobytes()
        lengths = np.linalg.norm(last.astype(np.float64), axis=1)
        mean = lengths[1:].mean()
        assert_within(lengths[0], mean, 2 * EPS * mean)  # a direction, a length and their product are rounded
    assert "its centres of 11 classes, means of 1\n" in capsys.readouterr().out
    assert [row["loss/teacher"] == 0 for row in rows(tmp_path)] == ["Teacher.weight=0" in keys_of_head] * 5


def test_a_run_that_begins_in_the_middle_has_the_teachers_centres(teacher, tmp_path):
    """As one that people have joined."""
    trainer = make_trainer(tmp_path, *keys(teacher, "Global.max_steps=6"))
    trainer.begin_at(4)
    trainer.train(None)
    expected = arrays(checkpoint(teacher, 4))["head: centres"][::-1]
    assert trainer.head.bank.state()["centres"][1:].tobytes() == expected.tobytes()


def test_centres_of_its_own_are_trained(teacher, tmp_path):
    trainer = train(tmp_path, *keys(teacher, "Teacher.centres=false", "Global.max_steps=2"))
    before = make_trainer(tmp_path / "new", *keys(teacher)).head.bank.state()["centres"]
    moved = trainer.head.bank.state()["centres"] != before
    assert moved.all(axis=1).any()


def test_a_student_comes_nearer_to_its_teacher(teacher, tmp_path):
    train(tmp_path, *keys(teacher, "Global.max_steps=40", "Checkpoint.every_steps=40"))
    losses = [row["loss/teacher"] for row in rows(tmp_path)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_a_resumed_run_goes_on_exactly_with_the_same_teacher_only(teacher, tmp_path):
    train(tmp_path / "whole", *keys(teacher))
    for name, path in {"run": teacher, "checkpoint": checkpoint(teacher, 4)}.items():
        train(tmp_path / name, *keys(path), resume=checkpoint(tmp_path / "whole", 8))
        assert_same_arrays(checkpoint(tmp_path / name), checkpoint(tmp_path / "whole"))
        assert rows(tmp_path / name) == rows(tmp_path / "whole")[8:]
    saved = checkpoint(tmp_path / "whole", 8)
    others = {
        "made with the network [0-9a-f]{64} as its teacher": keys(tmp_path / "whole"),
        "made with Teacher.checkpoint, this run is without": keys(teacher)[:3],
    }
    for message, other in others.items():
        with pytest.raises(UserError, match=message) as caught:
            make_trainer(tmp_path / "other", *other).resume(saved)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="made with Teacher.centres True, this run has False: resume with"):
        make_trainer(tmp_path / "other", *keys(teacher, "Teacher.centres=false")).resume(saved)


def test_the_plan_describes_the_teacher(teacher, tmp_path):
    said = Entry(TINY, [*keys(teacher), f"Global.output_dir={tmp_path}"]).dry_run()
    path = re.escape(str(checkpoint(teacher, 4)))
    assert re.search(
        rf"plan: teacher  SmallResNet of {path}, 1,392 parameters, 0\.0 MB; its centres of 11", said
    )
    assert f"\nTeacher:\n  checkpoint: {teacher}" in said
    assert "weight" not in Entry(TINY).config.to_yaml().partition("Teacher:")[2].partition("Optimizer")[0]


@pytest.mark.parametrize("weight", [10, 0])
def test_noise_in_the_place_of_the_images_has_centres_of_its_own(teacher, tmp_path, weight):
    images = "DataLoader.Train.dataset={name: RecImages, path: nowhere.rec, size: [12, 10], channels: grey}"
    stated = ["DataLoader.Train.num_classes=7", "DataLoader.Train.num_samples=40"]
    given = [*keys(teacher), images, *stated, f"Teacher.weight={weight}", f"Global.output_dir={tmp_path}"]
    said = Entry(stand_in(load(TINY, given))).dry_run()
    assert "plan: data     40 images of 7 classes" in said
    assert ("plan: teacher  SmallResNet" in said) == (weight > 0) and "its centres" not in said


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["Model.embedding_size=6"], "has embeddings of 8 numbers, this run of 6; set Model.embedding_size=8"),
        (["Teacher.weight=0", "Teacher.centres=false"], "Teacher.centres: must be true where Teacher.weight is 0"),
        (["Teacher={weight: 2}"], "Teacher.weight: has no meaning without Teacher.checkpoint (got 2)"),
        (["Head.sub_centres=2"], "a class has 8 numbers, in this run 16 (Head.sub_centres); make them alike, or set Teacher.c"),
        ([people(["q", "r", "s"])], "no class of it ('p0', ...) is in the data ('q', ...); set Teacher.centres=false"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(teacher, tmp_path, given, line):
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        make_trainer(tmp_path, *keys(teacher, *given))
    assert "Teacher." in str(caught.value) and "\n" not in str(caught.value)
