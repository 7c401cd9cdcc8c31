import hashlib

import numpy as np
import pytest

from plsc.data.glyphs import GlyphPairs, Glyphs
from tests.helpers.refusals import refusal


@pytest.fixture(scope="module")
def glyphs():
    return Glyphs(seed=3)


@pytest.fixture(scope="module")
def pairs():
    return GlyphPairs()


def test_training_set_is_every_class_in_every_face(glyphs):
    assert len(glyphs) == 8 * glyphs.num_classes and 2500 < glyphs.num_classes < 2700
    assert glyphs.labels.dtype == np.int64
    assert np.array_equal(np.bincount(glyphs.labels), np.full(glyphs.num_classes, 8))
    assert glyphs.preprocessing.shape == (1, 32, 32) and glyphs.preprocessing.channels == "grey"


def test_no_class_is_both_trained_and_verified(glyphs):
    unseen = GlyphPairs(num_pairs=20)
    assert len(unseen.identities) > 280
    assert not set(glyphs.identities.tolist()) & set(unseen.identities.tolist())
    assert not set(glyphs.codepoints.tolist()) & set(unseen.codepoints.tolist())


def test_a_sample_depends_on_seed_epoch_and_index_only():
    one, same, other = (Glyphs(seed=seed, held_out=0.9) for seed in (3, 3, 4))
    sample = one.sample(100, 2)
    assert sample.shape == (1, 32, 32) and sample.dtype == np.uint8
    assert np.array_equal(sample, same.sample(100, 2))
    for another in (one.sample(100, 1), one.sample(101, 2), other.sample(100, 2)):
        assert not np.array_equal(sample, another)


def test_clean_pictures_of_other_sizes():
    clean = Glyphs(augment=0, size=20, held_out=0)
    assert clean.num_classes == 2888 and clean.image_shape == (1, 20, 20)
    letter = int(np.flatnonzero(clean.codepoints == ord("H"))[0]) * 8
    picture = clean.sample(letter, 0)[0]
    assert picture.min() < 60 and np.all(picture[0] == 255)
    assert np.array_equal(picture, clean.sample(letter, 5)[0])


def test_names_tell_the_character_and_the_face(glyphs):
    first = int(np.flatnonzero(glyphs.codepoints == ord("A"))[0]) * 8
    assert glyphs.identities[first // 8] == "U+0041", "the first code point"
    assert glyphs.name(first) == "U+0041 LATIN CAPITAL LETTER A, Sans"
    assert glyphs.name(first + 5) == "U+0041 LATIN CAPITAL LETTER A, Serif Bold"
    unnamed = int(np.flatnonzero(glyphs.codepoints >= 0xE000)[0]) * 8
    assert "(unnamed)" in glyphs.name(unnamed) or "LIGATURE" in glyphs.name(unnamed)


def test_pairs_are_half_positive_across_faces_and_balanced_in_each_tenth(pairs):
    assert pairs.pairs.shape == (6000, 2) and pairs.pairs.dtype == np.int64
    assert 0 <= pairs.pairs.min() and pairs.pairs.max() < pairs.num_images
    assert pairs.num_images == 8 * len(pairs.codepoints)
    classes, faces = np.divmod(pairs.pairs, 8)
    assert np.array_equal(classes[:, 0] == classes[:, 1], pairs.same)
    assert np.all(faces[pairs.same, 0] != faces[pairs.same, 1])
    assert pairs.same.reshape(10, 600).sum(1).tolist() == [300] * 10
    assert len(np.unique(np.sort(pairs.pairs, axis=1), axis=0)) == 6000


def test_pairs_never_change(pairs):
    digest = hashlib.sha256(pairs.pairs.astype("<i8").tobytes()).hexdigest()
    assert digest.startswith("bf49411d38af9995")
    assert np.array_equal(pairs.images(5, 8), GlyphPairs().images(5, 8))
    assert pairs.images(5, 8).shape == (3, 1, 32, 32)


def test_pair_images_have_names(pairs):
    names = [pairs.image_name(index) for index in range(16)]
    assert names[0].startswith("U+") and names[0].endswith(", Sans")
    assert names[15].endswith(", Serif Bold Italic") and len(set(names)) == 16


def test_an_odd_number_of_pairs():
    assert GlyphPairs(num_pairs=7).same.tolist() == [True, False, True, False, True, False, True]


def test_more_pairs_than_there_are_are_refused():
    assert refusal(GlyphPairs, num_pairs=20000).startswith(
        "num_pairs: must be at most 16408, got 20000: 293 held-out classes in 8 faces"
    )
