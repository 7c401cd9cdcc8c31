"""Templates against loops over templates and media."""

import numpy as np
import pytest

from plsc.evaluation import template_features, templates
from tests.helpers.bounds import EPS, assert_within, perturbed
from tests.helpers.refusals import refusal


def slow(embeddings, template, media):
    features = []
    for t in range(max(template) + 1):
        total = 0
        for m in set(media[template == t]):
            frames = [e for e, t2, m2 in zip(embeddings, template, media) if (t2, m2) == (t, m)]
            total = total + sum(frames) / len(frames)
        features.append(total / np.linalg.norm(total))
    return np.array(features)


@pytest.mark.parametrize("block", [1, 7, 20, 16_384])
def test_features_equal_the_obvious_loop(monkeypatch, block):
    monkeypatch.setattr(templates, "BLOCK_IMAGES", block)
    rng = np.random.default_rng(0)
    template = np.concatenate([np.arange(12), rng.integers(0, 12, 60)])
    media = rng.integers(0, 4, len(template))  # the same numbers in different templates are different media
    embeddings = rng.normal(size=(len(template), 8)).astype(np.float32)
    found = template_features(embeddings, template, media)
    assert found.dtype == np.float32
    assert_within(found, *perturbed(lambda wide: slow(wide, template, media), embeddings))


def test_frames_of_a_video_count_once_and_long_embeddings_more():
    embeddings = np.array([[1.0, 0], [1, 0], [1, 0], [0, 2]])
    found = template_features(embeddings, np.zeros(4, int), np.array([5, 5, 5, 6]))
    want = np.array([[1 / np.sqrt(5), 2 / np.sqrt(5)]])
    assert_within(found, want, 8 * EPS * want)  # nothing is subtracted, in at most 16 roundings


def test_a_template_of_zero_stays_zero_and_one_without_images_is_a_mistake():
    assert template_features(np.array([[1.0], [-1.0]]), np.zeros(2, int), np.arange(2)).tolist() == [[0]]
    assert (
        refusal(template_features, np.eye(2), np.array([0, 2]), np.zeros(2, int))
        == "templates: template 1 has no image; number them 0, 1, ... without gaps"
    )
