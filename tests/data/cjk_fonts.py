"""Fonts of rectangles: a character is drawn as bars, one for each bit of its code point that is 1."""

import pytest

FIRST = 0x4E00
CHARACTERS = range(FIRST, FIRST + 1_200)
EMPTY = FIRST + 7  # is in all fonts, and has ink in one of them only
ALIKE = FIRST + 8  # is drawn by all fonts in the same way


def write_font(path, family, style, weight, characters):
    """Write a TrueType font. weight: the width of the bars."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pen = pytest.importorskip("fontTools.pens.ttGlyphPen").TTGlyphPen
    names = [".notdef", *(f"c{code:05X}" for code in characters)]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({code: f"c{code:05X}" for code in characters})
    glyphs = {".notdef": pen(None).glyph()}
    for code in characters:
        drawing = pen(None)
        width = 20 if code == ALIKE else weight
        bits = 0 if code == EMPTY and weight > 20 else code - FIRST + 1
        for bit in range(11):
            if bits >> bit & 1:
                x, top = 80 * bit + 20, 700 - 30 * (bit % 3)
                drawing.moveTo((x, 0))
                drawing.lineTo((x, top))
                drawing.lineTo((x + width, top))
                drawing.lineTo((x + width, 0))
                drawing.closePath()
        glyphs[f"c{code:05X}"] = drawing.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics({name: (1000, 0) for name in names})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": style})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def write_fonts(folder):
    """Write five fonts to a folder, of families One, Two, Three and, too small, Few."""
    (folder / "below").mkdir()
    write_font(folder / "a.ttf", "One", "Regular", 20, CHARACTERS)
    write_font(folder / "b.ttf", "One", "Bold", 50, CHARACTERS)
    write_font(folder / "below/c.TTF", "Two", "Regular", 35, CHARACTERS[:1_100])
    write_font(folder / "below/d.ttf", "Three", "Regular", 60, CHARACTERS[:1_050])
    write_font(folder / "latin.ttf", "Few", "Regular", 30, range(FIRST, FIRST + 100))
    return str(folder)
