import numpy as np
import pytest

from plsc.data.fonts import FACES, MARGIN, draw_glyphs, glyph_classes, held_out_mask, open_face


def test_every_class_is_in_every_face_once():
    classes = glyph_classes()
    assert len(classes.codepoint) == 2888  # DejaVu 2.37, which every matplotlib since 2.0 brings
    assert np.all(np.diff(classes.codepoint) > 0)
    assert len(np.unique(classes.identity)) == len(classes.identity)
    for face in FACES:
        assert set(classes.codepoint.tolist()) <= set(open_face(face).get_charmap())


def test_same_outline_is_one_class_and_blanks_are_none():
    codepoints = glyph_classes().codepoint.tolist()
    assert ord("A") in codepoints
    assert ord("Α") not in codepoints  # Greek capital alpha
    assert ord("А") not in codepoints  # Cyrillic capital a
    assert {ord("0"), ord("O"), ord("l"), ord("I")} <= set(codepoints)
    assert not {0x20, 0xA0, 0x2003} & set(codepoints)


def test_held_out_classes_grow_with_the_share():
    identity = glyph_classes().identity
    tenth = held_out_mask(identity, 0.1)
    assert abs(tenth.mean() - 0.1) < 0.02
    assert not held_out_mask(identity, 0).any()
    assert np.all(held_out_mask(identity, 0.2)[tenth])


@pytest.mark.parametrize("side", [48, 96])
def test_drawings_have_ink_and_keep_the_margin(side):
    codepoints = glyph_classes().codepoint[::20]
    drawings = draw_glyphs(codepoints, side)
    assert drawings.shape == (len(codepoints), 8, side, side) and drawings.dtype == np.uint8
    assert np.all(drawings.max((2, 3)) > 100)
    edge = int(MARGIN * side) - 1  # the drawing starts at a whole pixel
    border = np.ones((side, side), bool)
    border[edge:-edge, edge:-edge] = False
    assert drawings[:, :, border].max() == 0


def test_drawings_keep_size_and_place():
    full_stop, bullet, underscore, letter, wide = draw_glyphs(np.array([ord(c) for c in ".•_H—"]), 48)[:, 0]

    def box(drawing):
        rows, columns = np.flatnonzero(drawing.any(1)), np.flatnonzero(drawing.any(0))
        return rows[0], rows[-1] + 1, columns[0], columns[-1] + 1

    assert full_stop.sum() < 0.5 * bullet.sum()
    assert box(full_stop)[0] > 24 and box(underscore)[0] > 36
    top, bottom, left, right = box(letter)
    assert bottom - top == pytest.approx(0.73 * 26 / 32 * 48, abs=1.5)  # DejaVu's capital height is 0.73 em
    assert abs((left + right) / 2 - 24) <= 1 and abs((top + bottom) / 2 - 24) <= 3
    assert box(wide)[3] - box(wide)[2] >= 36
