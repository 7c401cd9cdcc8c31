"""The page in a real Chromium: compare, look up, add, remove, the token, both languages, by the keyboard;
nothing comes from elsewhere."""

import json
import re
from pathlib import Path

import cv2
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.serving.gallery import Gallery, quality
from plsc.apps.serving.service import app
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from plsc.utils.calibration import Calibration
from tests.apps.serving.browser import MISSING, Browser
from tests.apps.serving.running import PATIENT, Pixels, picture, running, samples

pytestmark = pytest.mark.slow

in_chromium = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

NASTY = "<img src=x onerror=document.title='changed'>\u202e!"
CALIBRATION = Calibration(
    method="logistic", set="demo", step=1, pairs=9, prior=0.5, cosine=[-1.0, 1.0], log_odds=[-8.0, 8.0]
)
TOKEN = "a-token-of-the-tests"
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"  # as WebDriver writes the keys
PAGE = Path(app.__file__).parent / "page"


def make_gallery(folder, people=("Ann", NASTY), others=5):
    known = {name: [samples(picture(seed))] for seed, name in enumerate(people, 1)}
    known |= {f"Someone {seed}": [samples(picture(seed))] for seed in range(10, 10 + others)}
    made = Gallery.build(folder / "gallery", Pixels(calibration=CALIBRATION), known)
    made.set_threshold(Pixels().threshold)
    return made


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    return make_gallery(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def client(gallery):
    options = Options(deadline=PATIENT, max_bytes=1 << 20)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        yield client


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser"), "--lang=en") as browser:
        yield browser


@pytest.fixture
def page(chromium, client):
    chromium.open(f"http://127.0.0.1:{client.port}/")
    chromium.until("#about", "7 in the gallery")
    yield chromium
    assert chromium.log() == []  # nor anything that the content security policy has stopped
    origins = chromium.run(
        "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)"
    )
    assert set(origins) <= {f"http://127.0.0.1:{client.port}", "null"}  # null: pictures that were given


@pytest.fixture
def writable(chromium, tmp_path):
    """The page of a service whose gallery may be changed, and the gallery."""
    gallery = make_gallery(tmp_path, others=21)
    options = Options(deadline=PATIENT, token=TOKEN, writable=True, max_pictures=4)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#range", "1–10 of 23")
        yield chromium, gallery
    chromium.log()  # the browser notes answers of 4xx


@pytest.fixture
def file(tmp_path):
    """Writes a picture and returns its path."""

    def write(data, name="a.png"):
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


# -- words
# -----------------------------------------------------------------------------------------------------------------------


def texts():
    return json.loads("{" + (PAGE / "texts.js").read_text("utf-8").partition("{\n")[2].rpartition(";")[0])


def test_each_text_is_there_in_both_languages():
    for key, (english, chinese) in texts().items():
        assert chinese and (english or key.startswith("status ")), key
        assert english.count("{}") == chinese.count("{}") or not english, key
        assert re.search("[\u4e00-\u9fff]", chinese), key


def test_each_text_that_the_page_uses_is_in_the_table():
    script, html = (PAGE / "page.js").read_text("utf-8"), (PAGE / "index.html").read_text("utf-8")
    used = set(re.findall(r'\bt\("(\w+)"', script)) | set(re.findall(r'data-(?:text|name)="(\w+)"', html))
    assert len(used) > 40 and used <= set(texts())
    written = script + html
    assert not [key for key in texts() if " " not in key and f'"{key}"' not in written]


def test_each_rule_about_pictures_has_a_text():
    named = re.findall(r"(?m)^- ([\w, ]+):", quality.__doc__)
    rules = {rule for names in named for rule in names.split(", ")}
    assert {"stretched", "several faces", "wrong person"} <= rules
    assert {f"rule {rule}" for rule in rules} <= set(texts())


@in_chromium
def test_the_page_speaks_the_browsers_language_or_the_one_that_is_chosen(chromium, client, file):
    chromium.devtools("Emulation.setUserAgentOverride", userAgent="Test", acceptLanguage="zh-CN")
    try:
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#about", "图库中有 7 人")
        assert chromium.run("return document.documentElement.lang") == "zh-CN"
        chromium.type("#picture-3", file(b"GIF89a", "a.gif"))
        assert "不是可用的" in chromium.until("#search-result .problem", "is no PNG")
        chromium.type("#picture-3", file(picture(1)))
        chromium.until("#search-result .numbers", "相似度 1.000")
        chromium.run("document.getElementById('language').click()")
        chromium.until("#about", "7 in the gallery")
        chromium.until("#search-result .numbers", "similarity 1.000")
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#about", "7 in the gallery")
    finally:
        chromium.devtools("Emulation.setUserAgentOverride", userAgent="Test", acceptLanguage="en")
        chromium.run("localStorage.clear()")
        chromium.log()


# -- compare and look up
# ---------------------------------------------------------------------------------------------------------


@in_chromium
def test_two_pictures_are_compared(page, file):
    page.type("#picture-1", file(picture(1), "one.png"))
    page.type("#picture-2", file(picture(1, noise=0.3), "two.png"))
    text = page.until("#compare-result", "P(same)")
    assert text.startswith("The same") and "threshold 0.500" in text
    assert page.texts(".drop label")[:2] == ["one.png", "two.png"]
    page.type("#picture-2", file(picture(5), "three.png"))
    assert "P(same) " in page.until("#compare-result", "Different")


@in_chromium
def test_a_picture_is_looked_up(page, file):
    page.type("#picture-3", file(picture(1, noise=0.3)))
    page.until("#search-result .verdict", "Ann")
    assert "threshold 0.500" in page.text("#search-result")
    assert len(page.texts("#search-result li")) == 5
    page.type("#picture-3", file(picture(99), "b.png"))
    page.until("#search-result .verdict", "Nobody in the gallery")


@in_chromium
def test_a_stretched_picture_is_warned_of(page, file):
    page.type("#picture-3", file(picture(1, (8, 32))))
    page.until("#search-result .warning", "Picture 1: stretched")


@in_chromium
def test_names_are_shown_as_text(page, file):
    page.type("#picture-3", file(picture(2)))
    shown = "<img src=x onerror=document.title='changed'>\\u202e!"
    page.until("#search-result .verdict", shown)
    assert shown in page.texts("#names li")
    assert page.run("return document.title") == "plsc: compare and look up"
    assert page.run("return document.querySelectorAll('#search-result img, #names img').length") == 0


@in_chromium
def test_a_mistake_is_said_in_words(page, file):
    page.type("#picture-3", file(b"GIF89a", "a.gif"))
    page.until("#search-result .problem", "is no PNG, JPEG, BMP or WebP")
    page.type("#picture-3", file(bytes(2 << 20), "large.bin"))
    page.until("#search-result .problem", "at most 1,048,576 bytes")
    page.type("#picture-3", file(picture(1), "good.png"))
    page.until("#search-result .verdict", "Ann")
    page.log()  # the browser notes answers of 4xx


@in_chromium
def test_a_picture_is_dropped(page):
    data = list(picture(1))
    page.run(
        f"""
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array({data})], "dropped.png", {{type: "image/png"}}));
        document.querySelectorAll(".drop")[2].dispatchEvent(
            new DragEvent("drop", {{dataTransfer: transfer, bubbles: true, cancelable: true}}));
        """
    )
    page.until("#search-result .verdict", "Ann")


# -- people
# ----------------------------------------------------------------------------------------------------------------------


@in_chromium
def test_people_are_listed_page_by_page_and_found(writable):
    page, _ = writable
    assert len(page.texts("#names li")) == 10 and not page.run(
        "return document.getElementById('next').disabled"
    )
    for wanted in ("11–20 of 23", "21–23 of 23"):
        page.run("document.getElementById('next').click()")
        page.until("#range", wanted)
    assert page.run("return document.getElementById('next').disabled")
    page.type("#find", "ONE 1")
    page.until("#range", "1–10 of 10")
    assert page.texts("#names li .name") == [f"Someone {number}" for number in range(10, 20)]
    page.type("#find", "x")
    page.until("#range", "No name has this text in it.")


@in_chromium
def test_people_are_added_and_removed_with_the_token(writable, file):
    page, gallery = writable
    page.type("#token", f"{TOKEN}x\n")
    page.until("#token-result", "The token is wrong.")
    assert page.run("return sessionStorage.length") == 0
    page.type("#picture-4", file(picture(50), "a.png"))
    page.type("#name", "Zoë <b>\n")
    page.until("#enrol-result", "This takes the token")  # the wrong one was not kept
    assert page.run("return document.activeElement.id") == "token" and len(gallery) == 23
    page.run("document.getElementById('token').value = ''")
    page.type("#token", f"{TOKEN}\n")
    page.until("#token-result", "The token is right.")
    page.type("#picture-4", file(b"GIF89a", "b.gif"))
    page.type("#picture-4", file(picture(50)[:60], "c.png"))
    page.type("#name", "\n")
    page.until("#enrol-result", "Nothing was added: refused pictures, 2 of 3.")
    first, second, third = page.texts("#chosen li")
    assert "Picture" not in first and "Picture 2: another format" in second and "Picture 3: damaged" in third
    assert len(gallery) == 23
    for _ in range(2):
        page.run("document.querySelectorAll('#chosen button')[1].click()")
    page.type("#name", "\n")
    page.until("#enrol-result", "Zoë <b> was added, pictures: 1.")
    page.until("#about", "24 in the gallery")
    page.type("#picture-3", file(picture(50), "d.png"))
    page.until("#search-result .verdict", "Zoë <b>")
    assert "Zoë <b>" in gallery

    page.run("location.reload()")
    page.until("#about", "24 in the gallery")
    page.type("#find", "zoë")  # the token is kept for this tab
    page.until("#range", "1–1 of 1")
    page.run("document.querySelector('#names button').click()")
    page.until("#confirm", "Remove Zoë <b>?")
    page.press(ESCAPE)
    assert len(gallery) == 24
    page.run("document.querySelector('#names button').click()")
    page.run("document.getElementById('confirm-yes').click()")
    page.until("#people-result", "Zoë <b> was removed.")
    page.until("#range", "No name has this text in it.")
    page.until("#about", "23 in the gallery")
    assert "Zoë <b>" not in gallery


@in_chromium
def test_too_many_pictures_or_none_are_said_before_they_are_sent(writable, file):
    page, _ = writable
    page.type("#name", "Bob\n")
    page.until("#enrol-result", "Choose at least one picture first.")
    for number in range(5):
        page.type("#picture-4", file(picture(number), f"{number}.png"))
    page.type("#name", "\n")
    page.until("#enrol-result", "At most 4 pictures at once")


@in_chromium
def test_a_service_that_does_not_answer_is_said(chromium, tmp_path, file):
    with running(create_app(Pixels(), options=Options(deadline=PATIENT))) as client:
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#about", "no gallery")
        assert chromium.texts("h2") == ["Are these two the same?", "", "", "", ""]  # the others are hidden
    for number in (1, 2):
        chromium.type(f"#picture-{number}", file(picture(1)))
    chromium.until("#compare-result", "The service does not answer.")
    chromium.log()


@in_chromium
def test_a_token_is_asked_for_where_reading_needs_one(chromium, gallery, file):
    options = Options(deadline=PATIENT, token=TOKEN, private=True)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#token-form", "asks for its token")
        chromium.type("#token", "wrong\n")
        chromium.until("#token-result", "The token is wrong.")
        chromium.run("document.getElementById('token').value = ''")
        chromium.type("#token", f"{TOKEN}\n")
        chromium.until("#about", "7 in the gallery")
        chromium.type("#picture-3", file(picture(1)))
        chromium.until("#search-result .verdict", "Ann")
    chromium.log()


# -- the keyboard, narrow screens, dark ones
# ---------------------------------------------------------------------------------------


@in_chromium
def test_everything_is_done_by_the_keyboard(writable, file):
    """From the top of the page to a person who was added and removed, without a pointer; each element shows
    the focus."""
    page, gallery = writable
    page.type("#picture-4", file(picture(60)))  # a file is chosen in a window of the system
    page.run("document.activeElement.blur()")
    outlined = """
        const active = document.activeElement;
        const element = active.type === 'file' ? active.labels[0] : active;
        return [active.id || active.textContent, getComputedStyle(element).outlineStyle];
    """

    def tab_to(wanted):
        for _ in range(60):
            page.press(TAB)
            name, outline = page.run(outlined)
            assert outline == "solid", name
            if name == wanted:
                return
        raise AssertionError(f"{wanted} is not reached")

    tab_to("token")
    page.press(*TOKEN, ENTER)
    page.until("#token-result", "The token is right.")
    for name in ("picture-1", "picture-2", "picture-3", "find", "next", "name"):
        tab_to(name)
    page.press(*"Zara", ENTER)
    page.until("#enrol-result", "Zara was added")
    page.run("document.getElementById('token').focus()")
    tab_to("find")
    page.press(*"zara")
    page.until("#range", "1–1 of 1")
    tab_to("Remove")
    page.press(ENTER)
    page.until("#confirm", "Remove Zara?")
    assert page.run("return document.activeElement.id") == "confirm-no"
    page.press(TAB, ENTER)
    page.until("#people-result", "Zara was removed.")
    assert page.run("return document.activeElement.id") == "people-result"
    assert "Zara" not in gallery


@in_chromium
def test_results_are_announced_and_fields_have_labels(writable):
    page, _ = writable
    regions = page.run("return [...document.querySelectorAll('.result')].map(e => e.getAttribute('role'))")
    assert sorted(regions) == ["alert", "status", "status", "status", "status"]
    unnamed = "return [...document.querySelectorAll('input')].filter(i => !i.labels.length).length"
    assert page.run(unnamed) == 0 and page.run("return document.querySelectorAll('input').length") == 8


@in_chromium
@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("scheme, back", [("light", "rgb(246, 247, 249)"), ("dark", "rgb(22, 24, 28)")])
def test_it_fits_narrow_screens_and_dark_ones(writable, file, width, scheme, back):
    page, gallery = writable
    gallery.add("W" * 300, Pixels().embed(samples(picture(70))[None]))
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.devtools(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    try:
        wide = cv2.resize(samples(picture(70))[0], (32, 8), interpolation=cv2.INTER_NEAREST)
        page.type("#picture-3", file(cv2.imencode(".png", wide)[1].tobytes(), "w" * 100 + ".png"))
        page.until("#search-result .verdict", "WWW")
        page.type("#find", "WWW")
        page.until("#range", "1–1 of 1")
        page.type("#picture-4", file(b"GIF89a", "v" * 100 + ".png"))
        for _ in range(2):
            assert page.run("return document.documentElement.scrollWidth") <= width
            page.run("document.getElementById('language').click()")
        page.run("document.querySelector('#names button').click()")
        assert page.run("return document.getElementById('confirm').getBoundingClientRect().right") <= width
        assert page.run("return getComputedStyle(document.body).backgroundColor") == back
    finally:
        page.run("localStorage.clear()")
        page.devtools("Emulation.clearDeviceMetricsOverride")
        page.devtools("Emulation.setEmulatedMedia", features=[])
