"""Wrong labels among embeddings, against a slow reference."""

import numpy as np
import pytest

from plsc.apps.curate.label_noise import find_noise
from plsc.errors import UserError
from tests.helpers.bounds import assert_within, perturbed

CLASSES, EACH, SIZE = 40, 12, 32


@pytest.fixture(scope="module")
def planted():
    """Embeddings around the centres of 40 classes, their labels; 20 labels are wrong, class 39 is half of
    class 7."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, SIZE))
    centres[39] = centres[7]
    truth = np.repeat(np.arange(CLASSES), EACH)
    embeddings = centres[truth] + 0.45 * rng.standard_normal((len(truth), SIZE))
    wrong = rng.choice(len(truth) - 2 * EACH, 20, replace=False)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + rng.integers(10, 20, 20)) % 39
    return embeddings.astype(np.float32), labels, truth, np.sort(wrong)


def test_wrong_labels_are_found_and_a_class_under_two_names_is_none(planted):
    embeddings, labels, truth, wrong = planted
    noise = find_noise(embeddings, labels, CLASSES)
    assert np.array_equal(np.sort(noise.samples), wrong)
    right = truth[noise.samples]
    assert (noise.classes == right)[noise.relabel].all() and noise.relabel.mean() > 0.8
    assert (np.diff(noise.scores) <= 0).all() and noise.scores[-1] > 3
    assert np.array_equal(noise.scores, noise.score_N[noise.samples])


def test_scores_are_those_of_a_slow_reference(planted):
    embeddings, labels, _, _ = planted

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    def slow(embeddings):
        unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        sums = [unit[labels == k].sum(axis=0) for k in range(CLASSES)]
        nearer = []
        for index, label in enumerate(labels.tolist()):
            others = [row for row in np.flatnonzero(labels == label).tolist() if row != index]
            own = cosine(unit[index], unit[others].sum(axis=0))
            foreign = [cosine(unit[index], sums[k]) for k in range(CLASSES) if k != label]
            nearer.append(max(foreign) - own)
        low, median = np.quantile(nearer, [0.1587, 0.5])
        return (np.array(nearer) - median) / (median - low)

    found = find_noise(embeddings, labels, CLASSES).score_N
    assert_within(found, *perturbed(slow, embeddings, times=2))


def test_right_labels_stay(planted):
    embeddings, _, truth, _ = planted
    noise = find_noise(embeddings, np.where(truth == 39, 7, truth), CLASSES - 1)
    assert len(noise.samples) == 0


def test_samples_of_classes_of_two_are_marked(planted):
    """And only those; a third one is corrupt. They are of classes 11 and 25."""
    embeddings, labels, truth, _ = planted
    embeddings, labels = embeddings.copy(), labels.copy()
    labels[labels == 3] = 20
    three = np.flatnonzero(truth == 3)[:3]
    labels[three] = 3
    embeddings[three] = [np.zeros(SIZE), embeddings[truth == 11][0], embeddings[truth == 25][0]]
    noise = find_noise(embeddings, labels, CLASSES)
    assert np.isin(three[1:], noise.samples).any() and not noise.undecided.all()
    assert np.array_equal(noise.undecided, labels[noise.samples] == 3)


def test_a_wrong_label_in_a_class_of_two_is_no_second_name(planted):
    """Class 3 has two samples, one of them of class 11; or both."""
    embeddings, labels, truth, _ = planted
    labels = labels.copy()
    labels[labels == 3] = 20
    own = np.flatnonzero(truth == 3)[0]
    wrong, other = np.flatnonzero((truth == 11) & (labels == 11))[:2]
    labels[[own, wrong]] = 3
    noise = find_noise(embeddings, labels, CLASSES)
    place = noise.samples.tolist().index(wrong)
    assert noise.undecided[place] and noise.classes[place] == 11
    labels[[own, other]] = 20, 3
    noise = find_noise(embeddings, labels, CLASSES)
    assert not np.isin([wrong, other], noise.samples).any()


@pytest.mark.filterwarnings("error")  # a user would see them
def test_what_is_not_known_is_left_out(planted):
    """A corrupt sample, the only sample of a class, and classes of another range."""
    embeddings, labels = planted[0].copy(), planted[1].copy()
    embeddings[3] = 0
    labels[0] = CLASSES
    noise = find_noise(embeddings, labels, CLASSES + 1)
    assert np.isnan(noise.score_N[[0, 3]]).all() and not np.isin([0, 3], noise.samples).any()
    ranges = [(0, 20), (20, CLASSES)]
    apart = find_noise(planted[0], planted[1], CLASSES, ranges)
    assert ((apart.classes < 20) == (planted[1][apart.samples] < 20)).all()
    alone = find_noise(planted[0][:CLASSES], np.arange(CLASSES), CLASSES)  # every class has one sample
    assert np.isnan(alone.score_N).all() and not len(alone.samples)


def test_a_network_that_has_diverged_is_refused():
    with pytest.raises(UserError, match="label noise: the embedding of image 1 is not finite"):
        find_noise(np.array([[1, 0], [np.nan, 1], [0, 1]], np.float32), np.array([0, 0, 1]), 2)
