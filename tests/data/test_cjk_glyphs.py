"""CjkGlyphs and CjkGlyphPairs, on small fonts of a test's own."""

import numpy as np
import pytest
from matplotlib.ft2font import FT2Font

from plsc.data.cjk_glyphs import CjkGlyphPairs, CjkGlyphs
from plsc.errors import MissingFileError, UserError
from tests.data.cjk_fonts import ALIKE, CHARACTERS, EMPTY, FIRST, write_font, write_fonts


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    return write_fonts(tmp_path_factory.mktemp("fonts"))


def test_classes_are_characters_that_two_faces_draw_differently(fonts):
    every = CjkGlyphs(fonts, classes=1_198, held_out=0)
    assert every.num_classes == len(every.identities) == 1_198
    assert not {f"U+{EMPTY:04X}", f"U+{ALIKE:04X}"} & {*every.identities.tolist()}
    faces = np.bincount(every.labels)
    drawn = dict(zip(every.identities.tolist(), faces.tolist()))
    for code in set(CHARACTERS) - {EMPTY, ALIKE}:
        assert drawn[f"U+{code:04X}"] == 2 + (code < FIRST + 1_100) + (code < FIRST + 1_050)
    assert every.name(0).split(", ")[1] in ("One Regular", "One Bold", "Two Regular", "Three Regular")
    with pytest.raises(UserError, match="classes: must be at most 1,198, got 1,199: the fonts in"):
        CjkGlyphs(fonts, classes=1_199, held_out=0)


def test_more_classes_contain_the_fewer_and_no_picture_changes(fonts):
    few, many = CjkGlyphs(fonts, classes=50, seed=3), CjkGlyphs(fonts, classes=300, seed=3)
    assert np.array_equal(few.identities, many.identities[:50])
    for index in (0, len(few) - 1):
        assert few.sample(index, 2).shape == (1, 32, 32) and few.sample(index, 2).dtype == np.uint8
        assert np.array_equal(few.sample(index, 2), many.sample(index, 2))
        assert not np.array_equal(few.sample(index, 1), few.sample(index, 2))


def test_a_class_has_at_most_so_many_faces_chosen_at_random(fonts):
    two = CjkGlyphs(fonts, classes=300, faces=2)
    assert np.array_equal(np.bincount(two.labels), np.full(300, 2))
    assert {two.name(index).split(", ")[1] for index in range(len(two))} == {
        "One Regular",
        "One Bold",
        "Two Regular",
        "Three Regular",
    }


@pytest.mark.parametrize("seen, families", [(True, {"One", "Two"}), (False, {"One"})])
def test_pairs_are_of_characters_held_out_in_faces_seen_or_held_out(fonts, seen, families):
    held_out = ["Three"] if seen else ["Two", "Three"]
    trained = CjkGlyphs(fonts, classes=500, held_out=0.2, held_out_fonts=held_out)
    pairs = CjkGlyphPairs(fonts, 100, seen, held_out=0.2, held_out_fonts=["Three"] if seen else ["One"])
    assert not {*trained.identities.tolist()} & {*pairs.identities.tolist()}
    assert len(pairs.identities) > 150
    drawn = {pairs.image_name(index).split(", ")[1].split()[0] for index in range(pairs.num_images)}
    assert drawn == families
    first, second = pairs.identity_of[pairs.pairs].T
    assert np.array_equal(first == second, pairs.same) and pairs.same.sum() == 50
    assert not np.array_equal(*pairs.images()[pairs.pairs[0]])


def test_a_fonts_characters_are_read_once_until_it_changes(tmp_path, monkeypatch):
    read = []

    class Counting:
        def __init__(self, path):
            self._path = path
            self._font = FT2Font(path)

        def get_charmap(self):
            read.append(self._path)
            return self._font.get_charmap()

        def __getattr__(self, name):
            return getattr(self._font, name)

    monkeypatch.setattr("plsc.data.cjk_glyphs.FT2Font", Counting)
    folder = write_fonts(tmp_path)
    CjkGlyphs(folder, classes=10)
    CjkGlyphPairs(folder, 10)
    assert len(read) == len({*read}) == 5
    write_font(tmp_path / "b.ttf", "One", "Bold", 50, CHARACTERS[:1_010])
    assert CjkGlyphs(folder, classes=10).num_classes == 10 and read[5:] == [str(tmp_path / "b.ttf")]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fonts": "/nowhere"}, "fonts: there is no folder '/nowhere'"),
        ({"classes": 1}, "classes: must be at least 2, got 1"),
        ({"faces": 1}, "faces: must be from 2 to 100, got 1"),
        ({"held_out_fonts": ["Tow"]}, "held_out_fonts: .* has no font 'Tow', did you mean 'Two'?"),
        ({"held_out_fonts": ["One", "Two", "Three"]}, "has no font with 1,000 CJK characters; Debian's"),
    ],
)
def test_mistakes_have_a_line(fonts, options, message):
    with pytest.raises((UserError, MissingFileError), match=message):
        CjkGlyphs(**{"fonts": fonts, **options})


def test_pairs_in_faces_held_out_need_some(fonts):
    with pytest.raises(UserError, match="1,000 CJK characters among those held out"):
        CjkGlyphPairs(fonts, seen_faces=False)
    with pytest.raises(UserError, match="held_out: must be more than 0"):
        CjkGlyphPairs(fonts, held_out=0)


def test_a_file_that_is_no_font_is_named(fonts, tmp_path):
    (tmp_path / "x.otf").write_bytes(b"not a font")
    with pytest.raises(UserError, match="fonts: .*x.otf cannot be read"):
        CjkGlyphs(str(tmp_path))
