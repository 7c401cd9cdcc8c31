"""report.html: whole, alone, safe against what names hold, and honest about what is missing."""

import base64
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from plsc.evaluation import classify, verify
from plsc.report import WorstPair, write_report

PICTURES = ["curves.png", "roc.png", "det.png", "histogram.png", "worst_pairs.png"]


class Page(HTMLParser):
    """Checks that tags are closed in order; collects tags, attributes and text."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def write(folder, **changes):
    rng = np.random.default_rng(0)
    same = np.arange(400) % 2 == 0
    centre = rng.normal(size=(400, 8))
    result = verify(centre, np.where(same[:, None], centre, 0) + rng.normal(size=(400, 8)), same)
    image = rng.integers(0, 256, (1, 32, 32), dtype=np.uint8)
    arguments = {
        "title": "A run",
        "rows": [{"step": s, "epoch": 1, "loss": 5.0, "lr": 0.1, "images_per_second": 9.0} for s in (10, 20)],
        "results": {"glyph pairs": result},
        "worst": {"glyph pairs": [WorstPair("false reject", 0.1, (image, image), ("U+0416 Ж", "U+0417 З"))]},
        "config_yaml": "Global:\n  seed: 0  # default\n",
        "summary": {"accuracy": "97.50 %", "classes": 2437, "images per second": 1511.6, "resumed": False},
        **changes,
    }
    return write_report(folder, **arguments)


def test_the_page_shows_everything_and_needs_nothing_else(tmp_path):
    path = write(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([*PICTURES, "report.html"])
    page = Page(path)
    embedded = [value for name, value in page.attributes if name == "src"]
    for picture, source in zip(PICTURES, embedded):
        content = (path.parent / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert source == "data:image/png;base64," + base64.b64encode(content).decode()
    assert len(embedded) == len(PICTURES) == page.tags.count("figcaption")
    assert "script" not in page.tags and "link" not in page.tags
    assert not re.search(r"https?:|url\(|@import", page.source)
    for text in (
        "A run",
        "97.50 %",
        "2,437",
        "1512",
        "False",
        "glyph pairs",
        "equal error rate",
        "seed: 0  # default",
    ):
        assert text in page.text
    assert "needs at least 1,000 negatives" in page.text


def test_the_same_run_gives_the_same_bytes(tmp_path):
    one, two = write(tmp_path / "one").parent, write(tmp_path / "two").parent
    for name in [*PICTURES, "report.html"]:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_nothing_at_all_is_still_a_report_and_removes_the_old_pictures(tmp_path):
    write(tmp_path)
    path = write(tmp_path, rows=[], results={}, worst={}, summary={}, config_yaml="")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    page = Page(path)
    assert "img" not in page.tags
    for what in (
        "No evaluation",
        "No curves",
        "No ROC",
        "No DET",
        "No histogram",
        "No worst pairs",
        "No CMC",
        "No times: set Global.profile",
    ):
        assert what in page.text


def test_a_classification_has_a_confusion_matrix_and_says_what_it_has_not(tmp_path):
    write(tmp_path)  # a verification's pictures must not stay beside the page
    label = np.arange(60) % 3
    path = write(tmp_path, results={"clothes": classify(label, label // 2, 3)}, worst={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["confusion.png", "curves.png", "report.html"]
    page = Page(path)
    for text in ("accuracy (top-1)", "33.33 %", "worst class", "1: 0.00 % of 20"):
        assert text in page.text
    for kind in ("ROC", "DET curve", "histogram", "worst pairs"):
        assert f"No {kind}: no pairs were verified." in page.text


def test_a_set_without_negatives_says_so(tmp_path):
    result = verify(np.ones((3, 4)), np.ones((3, 4)), np.array([True] * 3))
    page = Page(write(tmp_path, results={"tiny": result}, worst={"tiny": []}))
    assert "tiny: All pairs are of the same class" in page.text
    assert "No ROC: all pairs are of one kind." in page.text
    assert "No worst pairs: no pair is on the wrong side of the threshold." in page.text
    assert page.tags.count("img") == 2


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b & $c$', "字"])
def test_names_are_text(tmp_path, name):
    result = verify(np.eye(4), np.eye(4)[::-1], np.array([True, False, True, False]))
    page = Page(
        write(
            tmp_path,
            title=name,
            results={name: result},
            worst={},
            summary={name: name},
            config_yaml=name,
        )
    )
    assert "script" not in page.tags
    assert page.text.count(name) >= 5


def test_several_sets_stand_side_by_side(tmp_path):
    result = verify(np.eye(4), np.eye(4)[::-1], np.array([True, False, True, False]))
    page = Page(write(tmp_path, results={"lfw": result, "agedb": result}, worst={}))
    assert "lfw" in page.text and "agedb" in page.text
    assert page.tags.count("td") == 2 * len(result.results())


def test_each_kind_has_a_table_of_its_own(tmp_path):
    result = verify(np.eye(4), np.eye(4)[::-1], np.array([True, False, True, False]))
    label = np.arange(60) % 3
    results = {"lfw": result, "clothes": classify(label, label // 2, 3), "agedb": result}
    page = Page(write(tmp_path, results=results, worst={}))
    assert page.tags.count("table") == 2
    assert page.tags.count("td") == 2 * len(result.results()) + len(results["clothes"].results())
    assert page.source.index("<th>agedb</th>") < page.source.index("<th>clothes</th>")
