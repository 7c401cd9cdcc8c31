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
        status, answer = client.send(
            "/people", png(picture(3, 9)), name="p20", Authorization=f"Bearer {TOKEN}"
        )
        assert status == wrong
        if wrong == 422:
            assert answer["error"].startswith("picture 1: wrong person: ")
        few = png(cv2.resize(picture(4, 9), (12, 12)))
        status, answer = client.send("/people", few, name="p04", Authorization=f"Bearer {TOKEN}")
        assert status == small
        said = answer["warnings"] if small == 201 else answer["refused"]
        assert [(remark["picture"], remark["rule"]) for remark in said] == [(1, "too small")] * (
            review != "off"
        )
        assert all(remark["text"].startswith("12 x 12 pixels") for remark in said)
        count = client.ask("GET", "/people")[1]["count"]
        assert count == 30


def test_a_search_warns_of_the_pixels(serve):
    with serve("standard") as client:
        assert client.send("/search", png(picture(4, 9)))[1]["warnings"] == []
        (remark,) = client.send("/search", png(picture(4, 9)[:, 8:24]))[1]["warnings"]
        assert (remark["picture"], remark["rule"]) == (1, "stretched")
        assert remark["text"].startswith("16 x 32 pixels, stretched 2.00 times")
        blurred = cv2.GaussianBlur(picture(4, 9), (0, 0), 1.5)
        (remark,) = client.send("/search", png(blurred))[1]["warnings"]
        assert remark["rule"] == "blurred" and remark["text"].startswith("sharpness ")


def test_all_refused_pictures_are_named(serve):
    """Whether they cannot be read, or are somebody else's; nothing is added then."""
    right, other = png(picture(4, 9)), png(picture(3, 9))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with serve("standard") as client:
        status, answer = client.send("/people", b"GIF89a", right, right[:300], name="p04", **bearer)
        assert status == 415 and answer["error"].startswith("picture 1 is no PNG")
        assert [(one["picture"], one["rule"]) for one in answer["refused"]] == [(1, "format"), (3, "damaged")]
        status, answer = client.send("/people", right, other, other, name="p04", **bearer)
        assert status == 422 and answer["error"].startswith("picture 2: wrong person: ")
        assert [one["picture"] for one in answer["refused"]] == [2, 3]
        assert client.send("/search", right)[1]["name"] == "p04"
