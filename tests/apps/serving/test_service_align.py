"""Pictures that the service aligns: the largest face, where the template has it; and the numbers of faces."""

import itertools
import threading

import cv2
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.curate import detector
from plsc.apps.curate.alignment import TEMPLATE, align
from plsc.apps.curate.detector import Face
from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.gallery.store import Source
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from tests.apps.serving.running import PATIENT, Pixels, expected, picture, running
from tests.helpers.bounds import assert_within

SIZE = 16
TOKEN = "a-token-of-the-tests"


class Finder:
    """Finds as many faces as it is told, each half as large as the one before, the largest turned by 30
    degrees."""

    def __init__(self, count):
        self.count = count
        self.pictures = []

    def detect(self, rgb):
        self.pictures.append(rgb)
        turn = np.array([[np.cos(0.5), np.sin(0.5)], [-np.sin(0.5), np.cos(0.5)]])
        places = [(TEMPLATE @ turn) * 0.5**number + 60 for number in range(self.count)]
        return [Face((0.0, 0.0, 90.0, 90.0), 1.0, points) for points in places]


@pytest.fixture
def photo():
    """An encoded photo in colours, and its pixels as RGB."""
    data = picture(5, (200, 180, 3))
    return data, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


@pytest.fixture
def serve(monkeypatch):
    def with_faces(count, channels="RGB", aligned=None, gallery=None):
        finder = Finder(count)
        monkeypatch.setattr(detector, "installed", lambda: True)
        monkeypatch.setattr(detector, "Detector", lambda: finder)
        options = Options(deadline=PATIENT, token=TOKEN, writable=True)
        return running(create_app(Pixels(SIZE, channels, aligned), gallery, options)), finder

    return with_faces


@pytest.mark.parametrize("channels", ["RGB", "BGR", "grey"])
def test_the_largest_face_is_aligned(serve, photo, channels):
    data, rgb = photo
    service, finder = serve(3, channels)
    with service as client:
        assert client.ask("GET", "/about")[1]["align"] is True
        status, answer = client.send("/embed?align=true", data, data)
        plain = client.send("/embed", data)[1]
    assert status == 200 and answer["faces"] == [3, 3] and plain["faces"] is None
    assert np.array_equal(finder.pictures[0], rgb)
    aligned = align(rgb, finder.detect(rgb)[0].landmarks, SIZE)
    if channels == "grey":
        sample = cv2.cvtColor(aligned, cv2.COLOR_RGB2GRAY)[None]
    else:
        sample = np.moveaxis(aligned if channels == "RGB" else aligned[..., ::-1], -1, 0)
    want, bound = expected(sample[None])
    assert_within(np.array(answer["embeddings"][:1]), want, bound)
    assert np.dot(plain["embeddings"][0], want[0]) < 0.9


def test_the_first_picture_without_a_face_is_named(serve, photo, monkeypatch):
    service, finder = serve(0)
    second_done = threading.Event()
    number = itertools.count()

    def detect(rgb):
        if next(number) == 0:
            second_done.wait(10)  # the first picture's thread is the later one
        else:
            second_done.set()
        return []

    monkeypatch.setattr(finder, "detect", detect)
    with service as client:
        status, answer = client.send("/verify?align=true", photo[0], photo[0])
        assert status == 422 and answer["error"].startswith("picture 1 shows no face")
        assert client.send("/verify", photo[0], photo[0])[0] == 200


def test_a_service_without_a_detector_says_so(monkeypatch):
    monkeypatch.setattr(detector, "installed", lambda: False)
    with running(create_app(Pixels(), options=Options(deadline=PATIENT))) as client:
        status, answer = client.send("/embed?align=true", picture(0))
        assert (status, answer["error"]) == (
            422,
            "align: this service finds no faces; install the extra align",
        )
        assert client.ask("GET", "/about")[1]["align"] is False


def test_a_network_of_aligned_faces_gets_them_unless_told_otherwise(serve, photo, monkeypatch):
    service, _ = serve(1, aligned=True)
    with service as client:
        assert client.ask("GET", "/about")[1]["aligned"] is True
        aligned, asked = (client.send(f"/embed{query}", photo[0])[1] for query in ("", "?align=true"))
        assert aligned == asked and aligned["faces"] == [1]
        assert client.send("/embed?align=false", photo[0])[1]["faces"] is None
    monkeypatch.setattr(detector, "installed", lambda: False)
    with running(create_app(Pixels(SIZE, "RGB", True), options=Options(deadline=PATIENT))) as client:
        status, answer = client.send("/embed", photo[0])
        assert status == 422 and "trained on aligned faces, and this service finds none" in answer["error"]
        assert client.send("/embed?align=false", photo[0])[0] == 200


def test_a_network_of_other_pictures_refuses_to_align(serve, photo):
    service, _ = serve(1, aligned=False)
    with service as client:
        status, answer = client.send("/embed?align=true", photo[0])
        assert status == 422 and "trained on pictures that are not aligned" in answer["error"]
        assert client.send("/embed", photo[0])[1]["faces"] is None


def test_stretched_and_small_pictures_are_warned_of(serve, photo):
    service, _ = serve(1)
    with service as client:
        wide, small = picture(0, (SIZE, 2 * SIZE, 3)), picture(0, (4, 4, 3))
        first, second = client.send("/verify", wide, small)[1]["warnings"]
        assert [(one["picture"], one["rule"]) for one in (first, second)] == [
            (1, "stretched"),
            (2, "too small"),
        ]
        assert first["text"].startswith("32 x 16 pixels, stretched 2.00 times")
        assert second["text"].startswith("4 x 4 pixels")
        assert client.send("/embed", photo[0])[1]["warnings"] == []


def rules(answer):
    return [(remark["picture"], remark["rule"]) for remark in answer[1]["warnings"]]


def test_a_picture_that_is_taken_whole_is_warned_of_where_the_networks_are_aligned(serve, photo, monkeypatch):
    for faces, rule in ((1, "not aligned"), (0, "no face")):
        service, _ = serve(faces, aligned=True)
        with service as client:
            assert rules(client.send("/verify?align=false", photo[0], photo[0])) == [(1, rule), (2, rule)]
            assert faces == 0 or rules(client.send("/embed", photo[0])) == []
    monkeypatch.setattr(detector, "installed", lambda: False)
    with running(create_app(Pixels(SIZE, "RGB", True), options=Options(deadline=PATIENT))) as client:
        assert rules(client.send("/embed?align=false", photo[0])) == [(1, "another alignment")]


def test_another_alignment_than_the_gallerys_is_warned_of(serve, photo, tmp_path):
    """The network's is not known, but the gallery keeps whose faces were found and aligned."""
    embedding = np.ones((1, 3 * SIZE * SIZE), np.float32)
    for was_aligned in (None, True):
        embedder = Pixels(SIZE, "RGB")
        path = tmp_path / f"gallery-{was_aligned}"
        gallery = Gallery.from_embeddings(path, embedder, ["Ann"], embedding, np.array([0]))
        gallery.add("Bob", embedding, [Source(aligned=was_aligned)])
        gallery.add("Eve", embedding, [Source(aligned=was_aligned)])
        service, _ = serve(1, gallery=gallery)
        with service as client:
            whole = rules(client.send("/search", photo[0]))
            assert whole == ([(1, "another alignment")] if was_aligned else [])
            assert rules(client.send("/search?align=true", photo[0])) == []


def test_that_a_face_was_aligned_is_kept(serve, photo, tmp_path):
    embedding = np.ones((1, 3 * SIZE * SIZE), np.float32)
    embedder = Pixels(SIZE, "RGB", True)
    gallery = Gallery.from_embeddings(tmp_path / "gallery", embedder, ["Ann"], embedding, np.array([0]))
    service, _ = serve(1, aligned=True, gallery=gallery)
    with service as client:
        assert client.send("/people", photo[0], name="Bob", Authorization=f"Bearer {TOKEN}")[0] == 201
    assert [source.aligned for source in gallery.some_sources(5)] == [None, True]


@pytest.mark.skipif(not detector.installed(), reason="the extra align is not installed")
def test_the_faces_of_a_photo():
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    photo = cv2.imencode(".png", data.astronaut()[..., ::-1])[1].tobytes()
    with running(create_app(Pixels(112, "RGB"), options=Options(deadline=PATIENT))) as client:
        assert client.send("/embed?align=true", photo)[1]["faces"] == [1]
        assert client.send("/embed?align=true", picture(0, (100, 100, 3)))[0] == 422
