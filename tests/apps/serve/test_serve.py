"""The service over HTTP, and its page."""

import os
import re
import signal

import cv2
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
client_of = pytest.importorskip(
    "fastapi.testclient", reason="httpx, which the test client needs, is not installed"
).TestClient

from plsc import Gallery, cli
from plsc.apps.serve import command
from plsc.apps.serve.command import TOKEN, create_app, main
from tests.apps.faces.lfw import ZOO, needs_faces, portraits, scene
from tests.apps.gallery.people import Pixels, people, picture
from tests.helpers.refusals import refusal

SECRET = "0123456789abcdeä"
HEADERS = {"X-Token": SECRET.encode()}


@pytest.fixture
def gallery(tmp_path):
    return Gallery.build(tmp_path / "a.gallery", people(12), Pixels())


@pytest.fixture
def client(gallery):
    return client_of(create_app(gallery, SECRET))


def encoded(picture):
    return cv2.imencode(".png", picture)[1].tobytes()


def form(*pictures, name="picture"):
    return [(name, (f"{number}.png", data)) for number, data in enumerate(pictures)]


def test_a_search(client, gallery):
    answer = client.post("/search?top=2", files=form(picture("p3", 0)))
    said = answer.json()
    threshold = gallery.threshold.cosine
    assert answer.status_code == 200 and said["name"] == "p3" and said["threshold"] == threshold
    assert said["matches"][0]["name"] == "p3" and len(said["matches"]) == 2
    assert said["text"].startswith("p3 (similarity 0.") and said["text"].endswith(
        f"threshold {threshold:.2f})"
    )
    said = client.post("/search", files=form(picture("Zoe"))).json()
    assert said["name"] is None and said["text"].startswith("nobody (nearest p")


def test_people_are_listed_added_and_removed_with_the_token(client, gallery):
    assert client.get("/people", headers=HEADERS).json() == {f"p{number}": 3 for number in range(12)}
    pictures = form(picture("Dan", 0), picture("Dan", 1), b"x", name="pictures")
    added = client.post("/people", headers=HEADERS, data={"name": "Dan"}, files=pictures).json()
    assert added["added"] == 2 and added["people"] == 13 and "2.png: not an image" in added["left_out"][0]
    assert client.post("/search", files=form(picture("Dan", 5))).json()["name"] == "Dan"
    assert client.delete("/people?name=Dan", headers=HEADERS).json() == {"people": 12}
    again = client.delete("/people?name=Dan", headers=HEADERS)
    assert again.status_code == 422 and "has nobody called Dan" in again.json()["detail"]
    for data, text in (
        ({"name": " "}, "a name must have 1 to 200"),
        ({}, "name: is missing or has another"),
    ):
        bad = client.post("/people", headers=HEADERS, data=data, files=pictures)
        assert bad.status_code == 422 and text in bad.json()["detail"]
    assert bad.json()["detail"].endswith("curl -F name=Ann -F pictures=@ann.jpg http://.../people")
    for headers in ({}, {"X-Token": "wrong"}, {"X-Token": "é".encode()}):
        for method in ("GET", "DELETE", "POST"):
            refused = client.request(method, "/people?name=p1", headers=headers)
            assert refused.status_code == 401 and "X-Token" in refused.json()["detail"]
    assert len(gallery) == 12
    read_only = client_of(create_app(gallery))
    assert read_only.get("/people", headers={"X-Token": ""}).status_code == 403
    assert read_only.post("/search", files=form(picture("p3", 0))).status_code == 200


@pytest.mark.parametrize(
    ("request_of", "text"),
    [
        ({"json": {"picture": "aGVsbG8="}}, "send one file as curl -F picture=@who.jpg http://.../search"),
        ({"data": {"picture": "aGVsbG8="}}, "picture: is missing or has another form"),
        ({"files": form(picture("a"), picture("b"))}, "send one file as curl -F picture=@who.jpg http"),
        ({"files": form(b"no picture")}, "0.png: not an image"),
        ({"files": form(picture("a")), "params": {"top": "many"}}, "top: Input should be a valid integer"),
    ],
)
def test_what_is_no_picture_gets_one_line(client, request_of, text):
    answer = client.post("/search", **request_of)
    said = answer.json()["detail"]
    assert answer.status_code == 422 and text in said and "\n" not in said
    assert client.post("/search", files=form(picture("p3", 0))).status_code == 200


def test_a_gallery_that_cannot_be_used_is_503_and_the_log_says_why(client, gallery, tmp_path, capsys):
    assert client.get("/health").json() == {"people": 12, "threshold": gallery.threshold.cosine}
    (tmp_path / "a.gallery").write_bytes(b"no gallery" * 1000)
    answer = client_of(client.app).get("/health")
    assert answer.status_code == 503 and str(tmp_path) not in answer.json()["detail"]
    assert "file is not a database; it is not a gallery, or it is damaged" in capsys.readouterr().out


def test_the_page_is_one_file_whose_parts_fit(client):
    page = client.get("/").text
    assert page.count("\n") <= 180 and not re.search("https?://(?!www.w3.org/2000/svg)", page)
    ids = re.findall(r'id="(\w+)"', page)
    assert sorted(ids) == sorted({*ids}) and {*re.findall(r'get\("(\w+)"\)', page)} <= {*ids}
    fields = client.get("/openapi.json").json()["paths"]
    assert {*fields} == {"/search", "/people", "/health"}
    assert "innerHTML" not in page


def test_the_command(gallery, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(TOKEN, "short")
    assert "has 5 characters, a token has at least 16" in refusal(main, [str(tmp_path / "a.gallery")])
    monkeypatch.setenv(TOKEN, SECRET)
    assert cli.main(["serve", str(tmp_path / "none")]) == 2
    assert "there is no gallery" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "a.gallery"), "--port", "65536"])
    started = {}

    def run(app, **options):
        started.update(options)
        gallery.close()
        files = form(picture("a"), name="pictures")
        assert client_of(app).post("/people", data={"name": "Eve"}, files=files, headers=HEADERS).is_success
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command.uvicorn, "run", run)
    monkeypatch.setattr(command, "network_of", lambda args: Pixels())
    with pytest.raises(KeyboardInterrupt):  # which uvicorn expects
        main([str(tmp_path / "a.gallery"), "--port", "8123"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gallery"]  # a copy of this file has all
    assert started["host"] == "127.0.0.1" and started["port"] == 8123 and started["limit_concurrency"]
    assert "12 people, by pixels; http://127.0.0.1:8123/\n" in capsys.readouterr().out


def test_docs_are_a_plain_page_that_names_every_path(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/plain")
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page.text
    assert "cdn" not in page.text and client.get("/redoc").status_code == 404


@needs_faces
def test_every_face_of_a_group_has_a_name_and_a_box(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(ZOO))
    known = dict([*portraits(4, 12).items()][:11])
    people = {name: [encoded(scene([face])) for face in faces[:3]] for name, faces in known.items()}
    gallery = Gallery.build(tmp_path / "a.gallery", people)
    client = client_of(create_app(gallery, SECRET))
    first, second = [*known][:2]
    group = encoded(scene([known[first][3], known[second][3]]))
    said = client.post("/search?faces=all", files=form(group)).json()
    assert [face["name"] for face in said["faces"]] == [first, second] and said["name"] == first
    (left, top, width, height), (other, *_) = (face["box"] for face in said["faces"])
    assert said["box"] == [left, top, width, height] and 0 <= left < left + width <= other < 480
    assert all(-1 <= match["similarity"] <= 1 for face in said["faces"] for match in face["matches"])
    one = client.post("/search", files=form(group)).json()
    assert [face["box"] for face in one["faces"]] == [face["box"] for face in said["faces"]]
    assert one["faces"][0]["name"] == first and "name" not in one["faces"][1]
    pictures = form(
        encoded(np.hstack([scene([face], width=200) for face in (known[first][3], known[second][3])])),
        name="pictures",
    )
    refused = client.post("/people", headers=HEADERS, data={"name": "Eve"}, files=pictures)
    assert refused.status_code == 422 and "0.png: 2 faces, the second has" in refused.json()["detail"]
    data = {"name": "Eve", "groups": "true"}
    assert client.post("/people", headers=HEADERS, data=data, files=pictures).json()["added"] == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_is_too_large_is_refused_while_it_arrives(client, monkeypatch, chunked):
    monkeypatch.setattr(command, "_LARGEST", 50_000)
    start = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
    body = iter([start, *[bytes(20_000)] * 9])
    if chunked:
        header = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = client.post("/search", content=body, headers=header)
    else:
        answer = client.post("/search", files=form(bytes(60_000)))
    line = "a request may have 50,000 bytes; send fewer or smaller files"
    assert (answer.status_code, answer.json()) == (413, {"detail": line})
    assert client.post("/search", files=form(picture("p3", 0))).status_code == 200
