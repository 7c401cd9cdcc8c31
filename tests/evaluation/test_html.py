"""report.html: whole, alone, safe against what names hold, and honest about what is missing."""

import base64
import html
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from plsc.evaluation import classify, verify, verify_distances, verify_pairs
from plsc.evaluation.report.html import WorstPair, write_report
from tests.helpers.pictures import drawn


@pytest.fixture
def pictures():
    """Drawn they take most of the time of a page: for tests of what stands in or below them."""
    with drawn():
        yield


PICTURES = ["curves.png", "roc.png", "det.png", "histogram.png", "calibration.png", "worst_pairs.png"]


class Page(HTMLParser):
    """Checks that tags are closed in order; collects tags, attributes and text."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.attributes, self.headings, self.text = [], [], [], [], ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "wbr":
            self.text = self.text[:-1]  # it is within a word
        elif tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
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


def earlier_pictures(folder):
    for name in PICTURES:
        (folder / name).touch()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A page with all its pictures, in a folder that was not there."""
    with drawn():
        return write(tmp_path_factory.mktemp("whole") / "run")


def test_the_page_shows_everything_and_needs_nothing_else(whole):
    path = whole
    assert (path.parent.name, path.name) == ("run", "report.html")
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
    assert page.text.count("needs at least") == 1 and "0.001 needs at least 1,000 negatives" in page.text


@pytest.mark.usefixtures("pictures")
def test_the_same_run_gives_the_same_bytes(whole, tmp_path):
    one, two = whole.parent, write(tmp_path / "two").parent
    for name in [*PICTURES, "report.html"]:
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.usefixtures("pictures")
def test_nothing_at_all_is_still_a_report_and_removes_the_old_pictures(tmp_path):
    earlier_pictures(tmp_path)
    path = write(tmp_path, rows=[], results={}, worst={}, summary={}, config_yaml="")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    page = Page(path)
    assert "img" not in page.tags and "table" not in page.tags and "No evaluation" in page.text
    assert page.tags.count("h2") == 1, "no empty sections"


@pytest.mark.usefixtures("pictures")
def test_a_classification_has_a_confusion_matrix_and_says_what_it_has_not(tmp_path):
    earlier_pictures(tmp_path)  # a verification's, which must not stay beside the page
    label = np.arange(60) % 3
    path = write(tmp_path, results={"clothes": classify(label, label // 2, 3)}, worst={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["confusion.png", "curves.png", "report.html"]
    page = Page(path)
    for text in ("accuracy (top-1)", "33.33 %", "worst class", "1: 0.00 % of 20"):
        assert text in page.text
    assert page.headings == ["Evaluation", "Training", "Confusion"]


@pytest.mark.usefixtures("pictures")
def test_a_set_without_negatives_says_so(tmp_path):
    result = verify(np.ones((3, 4)), np.ones((3, 4)), np.array([True] * 3))
    page = Page(write(tmp_path, results={"tiny": result}, worst={"tiny": []}))
    assert "tiny: All pairs are of the same class" in page.text
    assert page.headings == ["Evaluation", "Training", "Similarities"]


@pytest.mark.usefixtures("pictures")
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


def row_of(page, first):
    """The cells of the line that begins with `first`."""
    lines = re.findall(r"<tr>(.*?)</tr>", page.source, re.DOTALL)
    (line,) = [line for line in lines if re.match(rf"<th>{re.escape(first)}</th>", line)]
    return [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", line)]


def test_the_two_spreads_and_the_threshold_of_each_rate_have_lines_of_their_own(tmp_path):
    result = pairs_of_people()
    page = Page(write(tmp_path, results={"glyph pairs": result}))
    low, high = result.intervals["accuracy"]
    accuracy = f"{100 * result.accuracy:.2f} % ({100 * low:.2f} to {100 * high:.2f})"
    assert row_of(page, "accuracy (mean of folds)") == [accuracy]
    assert row_of(page, "deviation of the folds") == [f"± {100 * result.std:.2f} %"]
    assert row_of(page, "in brackets")[0].endswith("resamples of 40 identities")
    for point, tar, _ in result.operating_points():
        cosine, rate = row_of(page, f"at most {point.far:g}")
        assert cosine.startswith(f"{point.cosine:.4f} (") and rate.startswith(f"{100 * tar:.2f} % (")
    name, rejects, same, accepts, different = result.hardest()[0]
    assert row_of(page, name) == [f"{rejects} of {same}", f"{accepts} of {different}"]


@pytest.mark.usefixtures("pictures")
def test_what_is_not_there_is_not_explained(tmp_path, monkeypatch):
    """Neither a running mean of two logged steps, nor thresholds without an upper bound."""
    rows = [{"step": step, "epoch": 1, "loss": 5.0, "lr": 0.1} for step in range(1, 61)]
    result = pairs_of_people()
    thresholds = [point.model_copy(update={"high": point.cosine}) for point in result.thresholds]
    monkeypatch.setitem(vars(result), "thresholds", thresholds)
    text = Page(write(tmp_path, results={"pairs": result})).text
    assert "Left to right is time in steps." in text and "pale" not in text and "Or more" not in text
    thresholds[-1] = thresholds[-1].model_copy(update={"high": None})
    text = Page(write(tmp_path, rows=rows, results={"pairs": result})).text
    assert "pale lines are the logged steps" in text and '"Or more": the pairs are too few' in text


def test_charts_are_as_wide_as_can_be_read_and_scroll_where_the_page_is_narrower(whole):
    page = Page(whole)
    assert page.source.count('<figure><div class="wide"><img ') == len(PICTURES)
    assert (
        "figure .wide img { min-width: 720px; }" in page.source and ".wide { overflow-x: auto" in page.source
    )


def test_identities_below_the_working_folder_are_named_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = pairs_of_people()
    names = np.array([f"{tmp_path}/faces/{name}" for name in result.people])
    page = Page(write(tmp_path, results={"pairs": replace(result, people=names)}))
    assert "faces/" in page.text and str(tmp_path) not in page.text


def pairs_of_people():
    rng = np.random.default_rng(0)
    identity = np.repeat(np.arange(40), 4)
    embeddings = rng.normal(size=(40, 8))[identity] + rng.normal(size=(160, 8))
    pairs = rng.permutation(np.stack(np.triu_indices(160, 1), axis=1))
    same = identity[pairs[:, 0]] == identity[pairs[:, 1]]
    chosen = np.sort(np.concatenate([np.flatnonzero(same)[:200], np.flatnonzero(~same)[:200]]))
    names = np.array([f"person {number}" for number in range(40)])
    return verify_pairs(embeddings, pairs[chosen], same[chosen], identity_of=names[identity])


def test_another_run_stands_in_a_second_column(tmp_path):
    result = pairs_of_people()
    other = {"glyph pairs": {"pairs": "7", "a <b>": "x"}, "elsewhere": {"pairs": "8"}}
    page = Page(write(tmp_path, results={"glyph pairs": result}, compared=("other/run", other)))
    assert row_of(page, "pairs")[1] == "7" and row_of(
        page, "a <b>".replace("<", "&lt;").replace(">", "&gt;")
    ) == ["-", "x"]
    assert "glyph pairs, other/run" in page.text and "elsewhere" not in page.text and "b" not in page.tags


def test_paths_break_at_slashes_and_remarks_are_shown(tmp_path):
    path = "/data/faces/George_W_Bush"
    page = Page(
        write(
            tmp_path,
            summary={"run": path},
            headlines=[("best step, 7", "98 %")],
            remarks=["Overfitting: <x>"],
        )
    )
    assert path.replace("/", "/<wbr>") in page.source and path in page.text
    assert "overflow-wrap: anywhere" not in page.source
    for text in ("best step, 7", "98 %", "Overfitting: <x>"):
        assert text in page.text


@pytest.mark.usefixtures("pictures")
def test_a_set_without_errors_says_so_and_has_no_roc(tmp_path):
    same = np.arange(40) % 2 == 0
    page = Page(write(tmp_path, results={"easy": verify_distances(np.where(same, 0.2, 2.0), same)}, worst={}))
    assert "easy: No pair is on the wrong side of the threshold" in page.text
    assert page.headings == ["Evaluation", "Which threshold", "Training", "Similarities", "Calibration"]
