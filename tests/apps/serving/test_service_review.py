"""What the service says of pictures that are added: refused, or added with a warning."""

import cv2
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.curate import detector
from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.gallery.pictures import people_of
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from tests.apps.serving.faces import PatternEmbedder, picture, write_people
from tests.apps.serving.running import PATIENT, running

TOKEN = "a-token-of-the-tests"


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setattr(detector, "installed", lambda: False)
    write_people(tmp_path / "people", 30, 4)
    gallery = Gallery.build(tmp_path / "g", PatternEmbedder(), people_of(str(tmp_path / "people")))

    def with_review(review):
        options = Options(deadline=PATIENT, token=TOKEN, writable=True, review=review)
        return running(create_app(PatternEmbedder(), gallery, options))

    return with_review


@pytest.mark.parametrize(
    ("review", "wrong", "small"), [("off", 201, 201), ("standard", 422, 201), ("strict", 422, 422)]
)
def test_the_review_decides(serve, review, wrong, small):
    with serve(review) as client:
        status, answer = client.send("/people?name=p20", png(picture(3, 9)), Authorization=f"Bearer {TOKEN}")
        assert status == wrong
        if wrong == 422:
            assert answer["error"].startswith("picture 1: wrong person: ")
        few = png(cv2.resize(picture(4, 9), (12, 12)))
        status, answer = client.send("/people?name=p04", few, Authorization=f"Bearer {TOKEN}")
        assert status == small
        said = answer["warnings"] if small == 201 else [answer["error"]]
        assert [line.startswith("picture 1: too small: 12 x 12 pixels") for line in said] == [True] * (
            review != "off"
        )
        count = client.ask("GET", "/people")[1]["count"]
        assert count == 30


def test_a_search_warns_of_the_pixels(serve):
    with serve("standard") as client:
        assert client.send("/search", png(picture(4, 9)))[1]["warnings"] == []
        (line,) = client.send("/search", png(picture(4, 9)[:, 8:24]))[1]["warnings"]
        assert line.startswith("picture 1: stretched: 16 x 32 pixels, stretched 2.00 times")
        blurred = cv2.GaussianBlur(picture(4, 9), (0, 0), 1.5)
        (line,) = client.send("/search", png(blurred))[1]["warnings"]
        assert line.startswith("picture 1: blurred: sharpness ")
