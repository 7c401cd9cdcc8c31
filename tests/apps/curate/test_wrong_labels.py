"""Wrong labels: among embeddings, and by the network of a run."""

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.apps.curate.wrong_labels import label_noise
from plsc.data.image_list import ImageList
from plsc.entry import Entry
from plsc.evaluation.search import unit_rows
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.refusals import refusal

CLASSES, EACH, SIZE = 40, 12, 32


@pytest.fixture(scope="module")
def planted():
    """Embeddings around centres, their labels with 20 wrong ones, the right labels, and which are wrong."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, SIZE))
    truth = np.repeat(np.arange(CLASSES), EACH)
    embeddings = centres[truth] + 0.45 * rng.standard_normal((len(truth), SIZE))
    wrong = rng.choice(len(truth), 20, replace=False)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + rng.integers(10, 20, 20)) % CLASSES
    return unit_rows(embeddings).astype(np.float32), labels, truth, np.sort(wrong)


def test_wrong_labels_are_found(planted):
    embeddings, labels, truth, wrong = planted
    noise = label_noise(embeddings, labels, CLASSES)
    assert np.array_equal(np.sort(noise.samples), wrong) and not len(noise.twins)
    known = noise.classes >= 0
    assert (noise.classes == truth[noise.samples])[known].all() and known.mean() > 0.8
    assert (np.diff(noise.scores) <= 0).all() and noise.scores[-1] > 3
    assert len(label_noise(embeddings, truth, CLASSES).samples) == 0


def test_scores_are_those_of_a_slow_reference(planted):
    embeddings, labels, _, _ = planted
    noise = label_noise(embeddings, labels, CLASSES)

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    def slow(embeddings):
        sums = [embeddings[labels == k].sum(axis=0) for k in range(CLASSES)]
        nearer = []
        for index, label in enumerate(labels.tolist()):
            own = cosine(embeddings[index], sums[label] - embeddings[index])
            foreign = [cosine(embeddings[index], sums[k]) for k in range(CLASSES) if k != label]
            nearer.append(max(foreign) - own)
        low, median = np.quantile(nearer, [0.1587, 0.5])
        return ((np.array(nearer) - median) / (median - low))[noise.samples]

    assert_within(noise.scores, *perturbed(slow, embeddings, times=2))


def test_a_class_under_two_names_is_named_and_has_no_wrong_labels(planted):
    embeddings, _, truth, _ = planted
    labels = np.where((truth == 7) & (np.arange(len(truth)) % 2 == 0), CLASSES, truth)
    noise = label_noise(embeddings, labels, CLASSES + 1)
    assert not np.isin(labels[noise.samples], [7, CLASSES]).any()


def test_corrupt_samples_and_classes_of_two_have_no_wrong_labels(planted):
    embeddings, labels = planted[0].copy(), planted[1].copy()
    embeddings[3] = 0
    two = np.flatnonzero(labels == 5)[:2]
    labels[labels == 5] = 20
    labels[two] = 5
    noise = label_noise(embeddings, labels, CLASSES)
    assert not np.isin([3, *two], noise.samples).any()


def test_a_network_that_has_diverged_is_refused():
    assert "label noise: the embedding of image 1 is not finite" in refusal(
        label_noise, np.array([[1, 0], [np.nan, 1], [0, 1]], np.float32), np.array([0, 0, 1]), 2
    )


def test_a_run_finds_wrong_labels_and_writes_a_corrected_list(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = []
    for label in range(6):
        picture = rng.integers(0, 256, (8, 8, 3)).repeat(2, 0).repeat(2, 1)
        for number in range(10):
            noisy = np.clip(picture + rng.normal(0, 20, picture.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(f"{label}-{number}.png", noisy)
            lines.append(f"{label}-{number}.png\t{(label + 1) % 6 if number == 9 else label}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    keys = {
        "Global.max_steps": 40,
        "Global.output_dir": "run",
        "Model.widths": [8, 16],
        "Model.blocks": [1, 1],
        "Model.embedding_size": 16,
        "Head.margin": 0.1,
        "Head.scale": 16.0,
        "LRScheduler.warmup_epochs": 1,
        "DataLoader.Train.dataset": {"name": "ImageList", "list": "list.txt", "size": [16, 16]},
        "DataLoader.Train.batch_size": 20,
        "DataLoader.Eval.dataset": None,
    }
    Entry(keys).train()
    capsys.readouterr()
    assert cli.main(["doctor", "--trained", "run", "--list", "clean.txt"]) == 1
    said = capsys.readouterr().out
    assert "labels (10.00%) are probably wrong\n" in said
    assert all(f"{label}-9.png: labelled {(label + 1) % 6}, " in said for label in range(6))
    clean = ImageList("clean.txt")
    right = {clean.name(index): label for index, label in enumerate(clean.labels.tolist())}
    assert all(int(name.split("/")[-1].split("-")[0]) == label for name, label in right.items())
