"""The tester on one process: several sets of every kind, what is logged and recorded, mirror images, and what
is refused."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from plsc import cli
from plsc.config import load
from plsc.data.dataset import IdentificationSet, TemplatePairs
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.evaluation import template_features, verify_pairs
from plsc.evaluation.sets import build_sets, eval_set
from plsc.training import evaluator
from plsc.training.embed import embed
from plsc.training.metrics import Metrics
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, Linear, NoisePairs, checkpoints, make_trainer, rows

PREPROCESSING = NoisePairs().preprocessing
CLASSES = 23


class NoiseTemplates(NoisePairs, TemplatePairs):
    """Each template has two images of one class in one medium, and one in another."""

    title = "noise templates"

    def __init__(self, templates: int = 30):
        super().__init__(3 * templates // 2)
        self.template, self.media = np.arange(self.num_images) // 3, np.arange(self.num_images) // 2
        self.pairs = np.stack([np.arange(templates - 1), np.arange(1, templates)], axis=1)
        self.same = np.arange(templates - 1) % 2 == 0


class NoiseGallery(NoisePairs, IdentificationSet):
    """The gallery has one image of each class except the last five. The other images are probes."""

    title = "noise people"

    def __init__(self, people: int = 30):
        super().__init__(people)
        self.identities = np.arange(self.num_images) // 2
        self.gallery, self.probe = np.arange(0, self.num_images - 10, 2), np.arange(1, self.num_images, 2)


class PositivePairs(NoisePairs):
    """Same pairs only."""

    def __init__(self):
        super().__init__()
        self.pairs, self.same = self.pairs[self.same], self.same[self.same]


SETS = {
    "templates": '{name: "tests.training.test_evaluator:NoiseTemplates"}',
    "people": '{name: "tests.training.test_evaluator:NoiseGallery"}',
    "few": '{name: "tests.helpers.tiny_runs:NoisePairs", num_pairs: 1}',
}
MORE = [f"DataLoader.Eval.more.{title}={section}" for title, section in SETS.items()]


def make(*overrides, **arguments):
    paddle.seed(0)
    return evaluator_of(load(TINY, overrides), Linear(), **arguments)


def evaluator_of(cfg, backbone, seen=None):
    sets = build_sets(cfg.DataLoader, 0, PREPROCESSING, CLASSES, None, seen)
    return evaluator.Evaluator(cfg.DataLoader, sets, backbone, CLASSES)


def test_every_set_gets_its_result_its_line_and_its_row(tmp_path, capsys):
    found = make(*MORE)
    metrics = Metrics(tmp_path)
    found.evaluate(7, epoch=2, metrics=metrics)
    metrics.close()
    assert list(found.sets) == ["noise pairs", *SETS] and found.main == "noise pairs"
    assert {title: result.kind for title, result in found.results.items()} == {
        "noise pairs": "verification",
        "templates": "verification",
        "people": "identification",
        "few": "verification",
    }
    written = {row["eval"]: row for row in rows(tmp_path, evaluations=True)}
    assert list(written)[-1] == "noise pairs", "the last row is the main set's"
    for title, row in written.items():
        assert (row["step"], row["epoch"]) == (7, 2)
        assert row == {"eval": title, "step": 7, "epoch": 2, **found.rows[title]}
    assert found.row == found.rows["noise pairs"] and written["few"]["accuracy"] is None
    said = capsys.readouterr().out
    assert f"verification: {found.results['noise pairs'].headline} on noise pairs" in said
    assert "identification: rank-1 " in said and " on people" in said


def test_a_set_is_scored_by_its_kind():
    pairs, rng = NoiseTemplates(), np.random.default_rng(0)
    embeddings = rng.normal(size=(pairs.num_images, 4))
    features = template_features(embeddings, pairs.template, pairs.media)
    assert eval_set(pairs).score(embeddings).row() == verify_pairs(features, pairs.pairs, pairs.same).row()
    people = eval_set(NoiseGallery()).score(rng.normal(size=(60, 4)))
    assert (people.probes, people.strangers, people.gallery) == (25, 5, 25)


def test_labelled_images_may_be_a_further_set(tmp_path):
    labelled = "{name: Synthetic, num_classes: 20, images_per_class: 2, image_shape: [1, 12, 10]}"
    found = make_trainer(tmp_path, f"DataLoader.Eval.more.seen={labelled}").evaluator
    found.evaluate()
    assert found.results["seen"].kind == "classification" and found.rows["seen"]["images"] == 40


def test_pairs_of_one_kind_are_reported_before_the_training(tmp_path, capsys):
    pairs = '{name: "tests.training.test_evaluator:PositivePairs"}'
    Entry(TINY, [f"DataLoader.Eval.dataset={pairs}", f"Global.output_dir={tmp_path}"]).train()
    said = capsys.readouterr().out
    assert "verification: no accuracy: pairs of one kind" in said
    warning = "WARNING DataLoader.Eval.dataset: No accuracy and no ROC: all pairs are of the same class"
    assert 0 <= said.find(warning) < said.index("INFO plan: ")


def test_a_long_evaluation_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr("plsc.utils.bar.LOG_EVERY", 0.0)
    make("DataLoader.Train.batch_size=30").evaluate()
    assert "embedding: 60 of 80 images, eta 0:00:0" in capsys.readouterr().out


def test_mirror_images_are_embedded_too():
    plain, both = make(), make("DataLoader.Eval.flip=true")
    for one in (plain, both):
        one.evaluate()
    paddle.seed(0)
    pairs, net = NoisePairs(), Linear()

    def similarity():
        mirrored = embed(
            net, lambda start, stop: pairs.images(start, stop)[..., ::-1].copy(), 80, PREPROCESSING, 7
        )
        together = embed(net, pairs.images, 80, PREPROCESSING, 7) + mirrored
        return verify_pairs(together, pairs.pairs, pairs.same).similarity

    assert_within(both.results["noise pairs"].similarity, *rounded(net, similarity), paths=2)
    assert not np.allclose(
        both.results["noise pairs"].similarity, plain.results["noise pairs"].similarity, atol=1e-3
    )


class Dead(Linear):
    def forward(self, images):
        return super().forward(images) * 0


@pytest.mark.parametrize("error", [UserError("gone"), OSError(5, "gone")])
def test_an_image_that_cannot_be_read_again_costs_a_warning_only(error):
    def images(start, stop):
        raise error

    data = SimpleNamespace(preprocessing=Preprocessing((1, 12, 10)), images=images)
    assert evaluator._dark(np.zeros((3, 4), np.float32), data) == 0
    data.images = lambda start, stop: np.full((stop - start, 1, 12, 10), 3, np.uint8)
    assert evaluator._dark(np.float32([[1], [0], [0]]), data) == 2


def test_embeddings_that_are_all_alike_are_reported_once(capsys):
    found = evaluator_of(load(TINY, MORE[:1]), Dead())
    found.evaluate()
    found.evaluate()
    assert capsys.readouterr().out.count("images are alike, so the network distinguishes nothing") == 1
    found = make()
    found.evaluate()
    assert "alike" not in capsys.readouterr().out


class Broken(Linear):
    def forward(self, images):
        return super().forward(images) * float("nan")


def test_numbers_that_cannot_be_computed_name_the_set():
    found = evaluator_of(load(TINY, MORE[:1]), Broken())
    assert found.evaluate() and found.rows == {} and found.row is None
    kinds = [line.partition("; ")[0] for line in found.failures]
    what = "verification: an embedding of pair 0 is not finite"
    assert kinds == [f"templates: {what}", f"noise pairs: {what}"]


class Unreadable(NoisePairs):
    """Its image 37 cannot be read, by an error of a kind that plsc does not know."""

    title = "unreadable"

    def image(self, index):
        if index == 37:
            raise FileNotFoundError(2, "No such file or directory", "37.png")
        return super().image(index)


UNREADABLE = 'DataLoader.Eval.more.bad={name: "tests.training.test_evaluator:Unreadable"}'


def test_a_set_that_cannot_be_read_is_one_line_and_the_others_are_evaluated(tmp_path):
    found = make(UNREADABLE)
    assert found.evaluate() and list(found.rows) == ["noise pairs"]
    (line,) = found.failures
    assert line.startswith("bad: Unreadable.image(37) (image 37): FileNotFoundError in image, ")
    assert line.endswith("'37.png'")


def test_a_training_continues_after_an_evaluation_that_failed(tmp_path, capsys):
    run = ["train", "-c", str(TINY), "-o", f"Global.output_dir={tmp_path}", "Global.eval_every=1", UNREADABLE]
    assert cli.main(run) == 2
    out, _ = capsys.readouterr()
    assert (
        "ERROR evaluation at step 10: bad: Unreadable.image(37) (image 37): FileNotFoundError" in out
        and "step 12/12" in out
    )
    assert checkpoints(tmp_path) == [8, 10, 12]
    last = out.splitlines()[-1]
    assert "ERROR the training is finished and its checkpoints are complete" in last
    facts = json.loads((tmp_path / "results.json").read_text())
    assert list(facts["sets"]) == ["noise pairs"] and facts["best"]["step"] in (10, 12)
    assert cli.main([*run, "Global.resume=true"]) == 2  # no step is left, only the evaluation
    assert "ERROR evaluation at step 12: bad: Unreadable.image(37)" in capsys.readouterr().out


def test_a_report_that_fails_ends_no_training(tmp_path, capsys, monkeypatch):
    def no_font(*_):
        raise RuntimeError("Could not find font DejaVu")

    monkeypatch.setattr("plsc.evaluation.report.draw", no_font)
    result = Entry(TINY, [f"Global.output_dir={tmp_path}"]).train()
    assert checkpoints(tmp_path)[-1] == 12 and result["accuracy"] is not None
    (line,) = result["failures"]
    assert line.startswith("report: RuntimeError in no_font, ") and line.endswith(
        "Could not find font DejaVu"
    )


class Interrupted(NoisePairs):
    """Somebody asks the run to stop while it is read."""

    title = "interrupted"
    at = 10  # images that are read before

    def images(self, start, stop):
        if start >= self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().images(start, stop)


def test_a_signal_in_an_evaluation_ends_it_at_the_next_batch(tmp_path, capsys, monkeypatch):
    slow = 'DataLoader.Eval.dataset={name: "tests.training.test_evaluator:Interrupted"}'
    run = [f"Global.output_dir={tmp_path}", slow, "Global.eval_every=1"]
    result = Entry(TINY, run).train()
    assert (result["stopped"], result["step"]) == ("SIGTERM", 10) and checkpoints(tmp_path) == [4, 8, 10]
    assert rows(tmp_path, evaluations=True) == []
    monkeypatch.setattr(Interrupted, "at", 1000)
    later = Entry(TINY, run).train()
    assert [row["step"] for row in rows(tmp_path, evaluations=True)] == [10, 12], "the missing one first"
    assert "stopped" not in later
    monkeypatch.setattr(Interrupted, "at", 10)
    again = Entry(TINY, [*run, "Global.resume=true"]).train()  # no step is left, only the evaluation
    assert (again["stopped"], again["step"]) == ("SIGTERM", 12)


WIDE = '{name: "tests.helpers.tiny_runs:NoisePairs", image_shape: [1, 12, 12]}'


@pytest.mark.parametrize(
    "override, line",
    [
        (f"wide={WIDE}", "wide: its samples have shape [1, 12, 12] (trained on [1, 12, 10]); all sets "),
        (
            "many={name: Synthetic, num_classes: 24, image_shape: [1, 12, 10]}",
            "many: its images have 24 classes, but the head was trained on 23; give images of ",
        ),
        (
            'noise pairs={name: "tests.helpers.tiny_runs:NoisePairs"}',
            "noise pairs: has the same title 'noise pairs' as the main set; give it another",
        ),
    ],
)
def test_sets_that_do_not_fit_are_named_by_their_key(override, line):
    said = refusal(make, f"DataLoader.Eval.more.{override}")
    assert said.startswith(f"DataLoader.Eval.more.{line}")


class Known(NoisePairs):
    identities = np.array(["Anna", "Bert", "Carl"])


def test_pairs_of_identities_that_are_trained_on_are_refused():
    known = 'DataLoader.Eval.more.known={name: "tests.training.test_evaluator:Known"}'
    assert list(make(known, seen=np.array(["Dora"])).sets) == ["noise pairs", "known"]
    assert refusal(make, known, seen=np.array(["Dora", "Bert"])) == (
        "DataLoader.Eval.more.known: 1 of its classes are also trained on (the first is Bert), so the "
        "accuracy would include classes seen in training; remove them from one of the two sets, for "
        "example with the same hold_out in both (Glyphs: held_out)"
    )
