"""The text of a card: what comes from outside stays text."""

from plsc.evaluation.card import Card, files_of, read_card, to_markdown, write_card


def make(**changed):
    fields = {
        "run": "r",
        "date": "today",
        "command": "plsc train",
        "licence": None,
        "checkpoint": "step-00000012",
        "step": 12,
        "headline": "",
        "network": "0",
        "facts": {},
        "sets": {},
        "limits": [],
        "software": {"commit": None},
        "machine": {"ranks": 1},
        "files": {},
        "data": {},
        "pictures": {},
        "config": "a: 1\n",
    }
    return Card(**{**fields, **changed})


def test_text_from_outside_is_no_markup():
    text = to_markdown(
        make(licence="![x](http://y) | <script>\n# big\x1b[31m", run="`a`", config="a: '```'\n\x1b")
    )
    assert "\n# big" not in text and "<script>" not in text.replace("\\<", "") and "\x1b" not in text
    assert (
        "| licence of the training data | !\\[x\\](http://y) \\| \\<script\\>\\n\\# big\\x1b\\[31m |"
        in text.replace("\\\\", "\\")
    )
    assert text.startswith("# \\`a\\`\n") and text.endswith("    a: '```'\n    \\x1b\n")


def test_what_is_written_is_read(tmp_path):
    card = make(sets={"s": {"kind": "verification", "table": {"a": "b"}, "notes": ["n"], "accuracy": 0.1}})
    write_card(card, tmp_path)
    read = read_card(tmp_path)
    assert read.model_copy(update={"markdown": "", "seal": ""}) == card and read.seal == read.make_seal()
    assert (tmp_path / "card.md").read_bytes() == files_of(read)["card.md"]
