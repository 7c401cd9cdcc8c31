"""The page in a real Chromium: pictures are given, verdicts read, by the keyboard too; nothing comes from elsewhere."""

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from plsc.utils.calibration import Calibration
from tests.apps.serving.browser import MISSING, Browser
from tests.apps.serving.running import PATIENT, Pixels, picture, running, samples

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

NASTY = "<img src=x onerror=document.title='changed'>\u202e!"
CALIBRATION = Calibration(
    method="logistic", set="demo", step=1, pairs=9, prior=0.5, cosine=[-1.0, 1.0], log_odds=[-8.0, 8.0]
)
TOKEN = "a-token-of-the-tests"
TAB = "\ue004"  # as WebDriver writes the key


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    people = {"Ann": [samples(picture(1))], NASTY: [samples(picture(2))]}
    people |= {f"Someone {seed}": [samples(picture(seed))] for seed in range(10, 15)}
    made = Gallery.build(tmp_path_factory.mktemp("page") / "gallery", Pixels(calibration=CALIBRATION), people)
    made.set_threshold(Pixels().threshold)
    return made


@pytest.fixture(scope="module")
def client(gallery):
    options = Options(deadline=PATIENT, max_bytes=1 << 20)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        yield client


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
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
def file(tmp_path):
    """Writes a picture and returns its path."""

    def write(data, name="a.png"):
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


def test_two_pictures_are_compared(page, file):
    page.type("#picture-1", file(picture(1), "one.png"))
    page.type("#picture-2", file(picture(1, noise=0.3), "two.png"))
    text = page.until("#compare-result", "P(same)")
    assert text.startswith("The same") and "threshold 0.500" in text
    assert page.texts(".drop label")[:2] == ["one.png", "two.png"]
    page.type("#picture-2", file(picture(5), "three.png"))
    assert "P(same) " in page.until("#compare-result", "Different")


def test_a_picture_is_looked_up(page, file):
    page.type("#picture-3", file(picture(1, noise=0.3)))
    page.until("#search-result .verdict", "Ann")
    assert len(page.texts("#search-result li")) == 5
    page.type("#picture-3", file(picture(99), "b.png"))
    page.until("#search-result .verdict", "Nobody in the gallery")


def test_names_are_shown_as_text(page, file):
    page.type("#picture-3", file(picture(2)))
    assert page.until("#search-result .verdict", "<img").endswith("onerror=document.title='changed'>\\u202e!")
    assert page.run("return document.title") == "plsc: compare and search"
    assert page.run("return document.querySelectorAll('#search-result img').length") == 0


def test_a_mistake_is_said_in_words(page, file, client):
    page.type("#picture-3", file(b"GIF89a", "a.gif"))
    page.until("#search-result .problem", "picture 1 is no PNG, JPEG, BMP or WebP")
    page.type("#picture-3", file(bytes(2 << 20), "large.bin"))
    page.until("#search-result .problem", "at most 1,048,576 bytes")
    page.type("#picture-3", file(picture(1), "good.png"))
    page.until("#search-result .verdict", "Ann")
    page.log()  # the browser notes answers of 4xx


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


def test_everything_is_reached_by_the_keyboard(page):
    reached = []
    for _ in range(5):
        page.press(TAB)
        reached.append(page.run("return document.activeElement.id || document.activeElement.textContent"))
    wanted = ["API", "align", "picture-1", "picture-2", "picture-3"]
    assert [name for name in reached if name] == [name for name in wanted if name in reached]
    assert {"picture-1", "picture-2", "picture-3"} <= set(reached)
    page.run("document.getElementById('picture-1').focus()")
    assert page.run("return getComputedStyle(document.querySelector('.drop label')).outlineStyle") == "solid"


def test_results_are_announced(page):
    assert page.run("return document.getElementById('compare-result').getAttribute('role')") == "status"
    assert page.run("return document.querySelectorAll('input:not([type=checkbox])').length") == 4
    unnamed = "return [...document.querySelectorAll('main input')].filter(i => !i.labels.length).length"
    assert page.run(unnamed) == 0


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("scheme, back", [("light", "rgb(246, 247, 249)"), ("dark", "rgb(22, 24, 28)")])
def test_it_fits_narrow_screens_and_dark_ones(page, file, width, scheme, back):
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.devtools(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    page.type("#picture-3", file(picture(1)))
    page.until("#search-result .verdict", "Ann")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run("return getComputedStyle(document.body).backgroundColor") == back


def test_the_api_is_described(page):
    page.run("location.href = 'docs'")
    text = page.until("#paths", "/metrics")
    assert "POST /verify" in text and "Compare two pictures" in text and "Authorization" in text


def test_a_token_is_asked_for_where_reading_needs_one(chromium, gallery, file):
    options = Options(deadline=PATIENT, token=TOKEN, private=True)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        chromium.open(f"http://127.0.0.1:{client.port}/")
        chromium.until("#token-form", "asks for a token")
        chromium.type("#token", f"{TOKEN}\n")
        chromium.until("#about", "7 in the gallery")
        chromium.type("#picture-3", file(picture(1)))
        chromium.until("#search-result .verdict", "Ann")
    chromium.log()
