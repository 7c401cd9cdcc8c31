"""Global.compatible_with: what its loss is, that the new embeddings can be compared with the old, and that
runs resume exactly."""

import re

import numpy as np
import pytest

from plsc import Entry, Gallery
from plsc.apps.serving.embedder import from_export, from_run
from plsc.checkpoint.saved import Checkpoint
from plsc.config import load
from plsc.errors import UserError
from plsc.training.build import build_training_set
from plsc.training.finetune import directions
from plsc.training.other_run import OtherRun
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.tiny_runs import (
    TINY,
    NoisePairs,
    assert_same_arrays,
    checkpoint,
    make_trainer,
    rows,
    train,
)

NO_PAIRS = "DataLoader.Eval.dataset=null"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run with another seed."""
    folder = tmp_path_factory.mktemp("old")
    train(folder, NO_PAIRS, "Global.seed=8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, old):
    """A run that is free, one that is compatible with the old one, and that one resumed at step 40; each with
    a config.yaml."""
    folder = tmp_path_factory.mktemp("new")
    keys = [NO_PAIRS, "Global.max_steps=60", "Checkpoint.every_steps=20", "Model.dropout=0"]
    compatible = [*keys, f"Global.compatible_with={old}"]
    train(folder / "free", *keys)
    train(folder / "compatible", *compatible)
    train(folder / "resumed", *compatible, resume=checkpoint(folder / "compatible", 40))
    for name in ("free", "compatible"):
        (folder / name / "config.yaml").write_text(
            load(TINY, [f"Global.output_dir={folder / name}", *keys]).to_yaml()
        )
    (old / "config.yaml").write_text(load(TINY, [f"Global.output_dir={old}"]).to_yaml())
    return folder


def test_the_loss_is_that_of_the_old_classes_means(tmp_path, old):
    """Against a plain computation in float64: softmax over cosines times scale, of the mean old embedding of
    each class."""
    trainer = make_trainer(tmp_path, NO_PAIRS, f"Global.compatible_with={old}")
    batch = next(trainer.loader.from_step(0))
    labels = batch.labels
    emb_BD = trainer.network.forward(batch.images, 0)
    compatible = trainer.part("compatible")
    compatible.start(trainer)
    dataset = build_training_set(trainer.cfg)
    mean_CD = directions(OtherRun(str(old), "key").build_network(), dataset, np.arange(23))

    def reference(emb_BD, mean_CD):
        unit_BD = emb_BD / np.linalg.norm(emb_BD, axis=1, keepdims=True)
        logit_BC = 16.0 * unit_BD @ mean_CD.T
        return np.mean(np.log(np.exp(logit_BC).sum(axis=1)) - logit_BC[np.arange(12), labels])

    want, bound = perturbed(reference, emb_BD.numpy(), mean_CD)
    assert_within(compatible.loss(batch, emb_BD).item(), want, bound)


def test_new_embeddings_can_be_compared_with_the_old_ones(runs, old):
    data = build_training_set(load(TINY))  # of which the loss speaks: of four seeds the least lead is 0.15
    images = np.stack([data.sample(index, epoch=0) for index in range(len(data))])
    embeddings = {name: from_run(path / "config.yaml").embed(images) for name, path in {
        "old": old, "free": runs / "free", "compatible": runs / "compatible"}.items()}  # fmt: skip
    cosine = {name: np.sum(embeddings["old"] * embeddings[name], axis=1).mean() for name in embeddings}
    assert cosine["compatible"] > cosine["free"] + 0.1
    losses = [row["loss/compatible"] for row in rows(runs / "compatible")]
    assert losses[-1] < losses[0] and "loss/compatible" not in rows(runs / "free")[0]


def test_a_resumed_run_goes_on_exactly(runs):
    assert_same_arrays(checkpoint(runs / "resumed", 60), checkpoint(runs / "compatible", 60))
    assert rows(runs / "resumed") == rows(runs / "compatible")[40:]


@pytest.mark.parametrize(
    "keys", [["Head.sample_rate=0.3"], ["PLSC_KERNELS=0"], ["Head.name=softmax", "Head.scale=null"]]
)
def test_sampled_classes_other_backends_and_heads(tmp_path, monkeypatch, old, keys):
    if keys == ["PLSC_KERNELS=0"]:
        monkeypatch.setenv("PLSC_KERNELS", "0")
        keys = []
    if keys and keys[0] == "Head.name=softmax":
        keys = ["Head={name: softmax}"]
    trainer = train(tmp_path, NO_PAIRS, f"Global.compatible_with={old}", *keys)
    before = make_trainer(tmp_path / "again", NO_PAIRS, f"Global.compatible_with={old}", *keys)
    before.part("compatible").start(before)
    frozen, anew = (run.part("compatible")._head.bank.state()["centres"][:] for run in (trainer, before))
    assert np.array_equal(frozen, anew)
    losses = [row["loss/compatible"] for row in rows(tmp_path)]
    assert len(losses) == 12 and np.isfinite(losses).all()


def test_checkpoints_and_galleries_know_the_old_network(runs, old, tmp_path):
    """Searching by the new network in a gallery of the old one, and the other way round; a third network is
    refused."""
    saved = Checkpoint.open(checkpoint(runs / "compatible", 60))
    assert saved.plain("compatible")["network"] == Checkpoint.open(checkpoint(old)).network
    embedders = {
        path.name: from_run(path / "config.yaml") for path in (runs / "compatible", runs / "free", old)
    }
    new, free, before = embedders.values()
    images = np.stack([NoisePairs().image(index) for index in range(6)])
    people = {f"p{number}": [image] for number, image in enumerate(images)}
    gallery = Gallery.build(tmp_path / "old", before, people)
    gallery.check(new)
    gallery.add("another", new.embed(images[:1]), embedder=new)
    assert "one was trained to be compatible with the other" in gallery.describe_other(new)
    assert gallery.describe_other(before) == ""
    upgraded = Gallery.build(tmp_path / "new", new, people)
    upgraded.check(before)
    for each in (gallery, upgraded):
        with pytest.raises(UserError, match="cannot be compared"):
            Gallery.open(each.path).check(free)


def test_an_export_knows_the_old_network(runs, old, capsys):
    facts = Entry(runs / "compatible" / "config.yaml", ["Export.formats=[paddle]"]).export()
    assert from_export(facts["folder"]).compatible_with == Checkpoint.open(checkpoint(old)).network


def test_what_does_not_fit_is_refused(old, tmp_path, runs):
    keys = [f"Global.output_dir={tmp_path}", f"Global.compatible_with={old}"]
    with pytest.raises(UserError, match=re.escape("has embeddings of 8 numbers, this run of 9")):
        make_trainer(tmp_path, NO_PAIRS, keys[1], "Model.embedding_size=9")
    with pytest.raises(UserError, match="was made with Global.compatible_with, this run is without"):
        train(tmp_path, NO_PAIRS, resume=checkpoint(runs / "compatible", 40))
    assert (
        f"plan: compatible {checkpoint(old)}, whose embeddings the new ones can be compared with\nplan: parts    head of compatible_with 0."
        in Entry(TINY, keys).dry_run()
    )
