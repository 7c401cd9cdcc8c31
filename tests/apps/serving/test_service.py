"""What the service answers, over HTTP: embeddings, comparisons, the gallery, limits of load, metrics."""

import concurrent.futures
import sqlite3
import time

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import cv2

from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from plsc.errors import UserError
from plsc.utils.calibration import Calibration
from tests.apps.serving.running import PATIENT, Pixels, expected, picture, running, samples
from tests.helpers.bounds import assert_within

TOKEN = "a-token-of-the-tests"
BEARER = f"Bearer {TOKEN}"
CALIBRATION = Calibration(
    method="logistic",
    set="demo",
    step=1,
    pairs=100,
    prior=0.5,
    cosine=[-1.0, 1.0],
    log_odds=[-8.0, 8.0],
    thresholds=[{"far": 0.01, "cosine": 0.9}],
)


@pytest.fixture
def gallery(tmp_path):
    people = {name: [samples(picture(seed))] for name, seed in {"Ann": 1, "Bob": 2, "Zoë": 3}.items()}
    made = Gallery.build(tmp_path / "gallery", Pixels(calibration=CALIBRATION), people)
    made.set_threshold(Pixels().threshold)
    return made


@pytest.fixture
def client(gallery):
    options = Options(deadline=PATIENT, token=TOKEN, writable=True)
    with running(create_app(Pixels(calibration=CALIBRATION), gallery, options)) as client:
        yield client


def test_embeddings_are_those_of_the_pictures_in_their_order(client):
    first, second = picture(1), picture(2)
    status, answer = client.send("/embed", first, second)
    assert status == 200 and answer["network"] == "a" * 64
    assert_within(np.array(answer["embeddings"]), *expected(np.stack([samples(first), samples(second)])))
    assert client.ask("POST", "/embed", first)[1]["embeddings"] == answer["embeddings"][:1]


def test_a_picture_of_any_size_is_brought_to_the_networks(client):
    _, small = client.send("/embed", picture(1))
    large = cv2.resize(samples(picture(1))[0], (64, 64), interpolation=cv2.INTER_NEAREST)
    for kind in (".png", ".bmp", ".webp"):
        encoded = cv2.imencode(kind, large, [cv2.IMWRITE_WEBP_QUALITY, 101] if kind == ".webp" else [])[1]
        _, answer = client.send("/embed", encoded.tobytes())
        np.testing.assert_allclose(answer["embeddings"], small["embeddings"], atol=0.02)


def test_two_pictures_are_compared(client):
    status, answer = client.send("/verify", picture(1), picture(1, noise=0.3))
    assert status == 200 and answer["same"] is True
    assert answer["similarity"] > answer["threshold"] == 0.5
    assert answer["probability"] == pytest.approx(CALIBRATION.probability(answer["similarity"]))
    assert client.send("/verify", picture(1), picture(2))[1]["same"] is False


def test_a_picture_is_compared_with_a_name(client):
    assert client.send("/verify", picture(3), name="Zoë")[1]["same"] is True
    assert client.send("/verify", picture(3), name="Ann")[1]["same"] is False
    assert client.send("/verify", picture(3), name="Eve") == (
        404,
        {"error": "'Eve': no such name in the gallery"},
    )


def test_a_threshold_or_a_far_of_the_request_wins(client):
    similar = picture(1), picture(1, noise=1.5)
    cosine = client.send("/verify", *similar)[1]["similarity"]
    assert 0.5 < cosine < 0.9
    assert (
        client.send("/verify?far=0.01", *similar)[1] | {"same": False, "threshold": 0.9}
        == client.send("/verify?threshold=0.9", *similar)[1]
    )
    status, answer = client.send("/verify?far=0.5", *similar)
    assert status == 422 and "FAR 0.5" in answer["error"]
    status, answer = client.send("/verify?far=0.01&threshold=0.9", *similar)
    assert status == 422 and "exclude each other" in answer["error"]


def test_a_search_has_the_nearest_names_and_a_verdict(client):
    status, answer = client.send("/search?top=2", picture(2, noise=0.3))
    assert status == 200 and (answer["verdict"], answer["name"]) == ("known", "Bob")
    assert answer["matches"][0]["name"] == "Bob" and len(answer["matches"]) == 2
    assert [match["accepted"] for match in answer["matches"]] == [True, False]
    _, answer = client.send("/search", picture(99))
    assert (answer["verdict"], answer["name"]) == ("nobody", None) and len(answer["matches"]) == 3


def test_without_a_threshold_nothing_is_decided(tmp_path):
    plain = Pixels(threshold=None)
    gallery = Gallery.build(tmp_path / "gallery", plain, {"Ann": [samples(picture(1))]})
    with running(create_app(plain, gallery, options=Options(deadline=PATIENT))) as client:
        _, answer = client.send("/search", picture(1))
        assert answer["verdict"] == "undecided" and answer["matches"][0]["accepted"] is None
        assert client.send("/verify", picture(1), picture(1))[1]["same"] is None
        assert client.send("/verify", picture(1), name="Ann")[1]["same"] is None
        assert client.send("/search?threshold=0.5", picture(1))[1]["verdict"] == "known"
        assert client.send("/search?far=0.1", picture(1))[0] == 422


def test_a_service_without_a_gallery_compares_pictures():
    with running(create_app(Pixels(), options=Options(deadline=PATIENT))) as client:
        assert client.send("/verify", picture(1), picture(1))[1]["same"] is True
        assert client.ask("GET", "/about")[1]["people"] is None
        for status, answer in (
            client.send("/search", picture(1)),
            client.send("/verify", picture(1), name="Ann"),
            client.ask("GET", "/people"),
        ):
            assert (status, answer["error"]) == (404, "this service has no gallery; start it with --gallery")


def test_people_are_listed_added_and_removed(client, gallery):
    assert client.ask("GET", "/people")[1] == {"count": 3, "names": ["Ann", "Bob", "Zoë"]}
    assert client.ask("GET", "/people?start=1&limit=1")[1] == {"count": 3, "names": ["Bob"]}
    assert client.ask("GET", "/people?find=O&start=1")[1] == {"count": 2, "names": ["Zoë"]}
    assert client.ask("GET", "/people?find=ZOE%CC%88")[1] == {"count": 1, "names": ["Zoë"]}
    status, answer = client.send(
        "/people", picture(7), picture(7, noise=0.2), name="Eve", Authorization=BEARER
    )
    assert (status, answer) == (201, {"name": "Eve", "pictures": 2, "count": 4, "warnings": []})
    assert client.send("/search", picture(7))[1]["name"] == "Eve"
    assert Gallery.open(gallery.path).names() == ["Ann", "Bob", "Zoë", "Eve"]
    assert client.ask("DELETE", "/people?name=Eve", Authorization=BEARER)[0] == 200
    assert client.send("/search", picture(7))[1]["verdict"] == "nobody"
    assert client.ask("DELETE", "/people?name=Eve", Authorization=BEARER)[0] == 404


def test_what_another_process_wrote_is_found(client, gallery):
    others = ["Ann", "Bob", "Zoë"]
    assert client.ask("GET", "/people")[1]["names"] == others
    other = Gallery.open(gallery.path)
    other.add("Late", Pixels().embed(samples(picture(50))[None]))
    assert client.send("/search", picture(50))[1]["name"] == "Late"
    assert client.ask("GET", "/people")[1]["names"] == ["Ann", "Bob", "Late", "Zoë"]
    other.remove("Late")
    assert client.send("/search", picture(50))[1]["verdict"] == "nobody"
    assert client.ask("GET", "/people")[1]["names"] == others


def test_a_gallery_of_another_network_meanwhile_is_not_compared(client, gallery):
    Gallery.open(gallery.path).upgrade(
        Pixels(network="b" * 64), {name: [samples(picture(1))] for name in ("Ann", "Bob", "Zoë")}
    )
    assert client.send("/search", picture(1))[0] == client.send("/verify", picture(1), name="Ann")[0] == 503
    assert client.send("/people", picture(1), name="Ann", Authorization=BEARER)[0] == 503


def test_a_gallery_has_a_threshold_of_its_own(client, gallery):
    Gallery.open(gallery.path).set_threshold(0.999)
    assert client.send("/search", picture(1, noise=0.3))[1]["threshold"] == 0.999
    assert client.send("/search", picture(1, noise=0.3))[1]["verdict"] == "nobody"
    assert client.send("/verify", picture(1, noise=0.3), name="Ann")[1]["same"] is True  # that is a pair
    assert client.send("/verify", picture(1), picture(1, noise=0.3))[1]["same"] is True


def test_a_gallery_that_is_damaged_meanwhile_is_the_services_fault(client, gallery, capsys):
    other = sqlite3.connect(gallery.path)
    other.execute("UPDATE facts SET value = '7' WHERE key = 'network'")
    other.execute("INSERT INTO changes (person) VALUES (NULL)")
    other.commit()
    status, answer = client.send("/search", picture(1))
    assert (status, answer) == (503, {"error": "the gallery cannot be used now; the service's log says why"})
    assert client.send("/verify", picture(1), picture(1))[0] == 200
    assert "its fact 'network' is damaged" in capsys.readouterr().out


def test_requests_of_many_clients_are_embedded_together():
    embedder = Pixels()
    with running(create_app(embedder, options=Options(deadline=PATIENT, batch=8))) as client:
        embedder.may_go_on.clear()
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            answers = [pool.submit(client.send, "/embed", picture(0))]
            _until(lambda: embedder.batches == [1])
            answers += [pool.submit(client.send, "/embed", picture(seed)) for seed in range(1, 9)]
            _until(lambda: _metric(client, "plsc_waiting_pictures") == 8)
            embedder.may_go_on.set()
            got = [answer.result()[1]["embeddings"][0] for answer in answers]
    assert embedder.batches == [1, 8]
    assert_within(np.array(got), *expected(np.stack([samples(picture(seed)) for seed in range(9)])))


def test_what_is_too_much_is_refused_and_may_come_again():
    embedder = Pixels()
    with running(create_app(embedder, options=Options(deadline=PATIENT, queue=2))) as client:
        embedder.may_go_on.clear()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(client.send, "/embed", picture(0)) for _ in range(2)]
            _until(lambda: sum(embedder.batches) + _metric(client, "plsc_waiting_pictures") == 2)
            status, answer, headers = client.ask_all("POST", "/embed", picture(0))
            assert (status, headers["retry-after"]) == (503, "1")
            assert answer["error"] == "2 requests are in progress; try again later"
            assert client.ask("GET", "/health") == (200, {"status": "ok"})
            embedder.may_go_on.set()
            assert [answer.result()[0] for answer in answers] == [200, 200]
        assert client.send("/embed", picture(0))[0] == 200


def test_after_the_deadline_a_request_is_refused():
    embedder = Pixels()
    with running(create_app(embedder, options=Options(deadline=0.3))) as client:
        embedder.may_go_on.clear()
        status, answer = client.send("/embed", picture(0))
        assert (status, answer["error"]) == (503, "no answer within 0.3 s; try again later")
        embedder.may_go_on.set()
        _until(
            lambda: client.send("/embed", picture(0))[0] == 200
        )  # in time, on a machine that is busy now and then


def test_a_defect_is_answered_in_one_line_and_the_service_lives(caplog):
    class Broken(Pixels):
        def _embed(self, samples):
            if samples.max() > 250:
                raise RuntimeError("secret path /root/x")
            return super()._embed(samples)

    with running(create_app(Broken(), options=Options(deadline=PATIENT))) as client:
        white = cv2.imencode(".png", np.full((8, 8), 255, np.uint8))[1].tobytes()
        status, answer = client.send("/embed", white)
        assert (status, answer) == (500, {"error": "a defect of the service; its log has the traceback"})
        assert client.send("/embed", picture(0))[0] == 200
    assert "secret path" in caplog.text


def test_metrics_count_requests_batches_and_people(client):
    client.send("/embed", picture(1))
    client.send("/embed", b"no picture")
    client.ask("GET", "/made-up-path")
    _, text = client.ask("GET", "/metrics")
    assert 'plsc_requests_total{path="/embed",status="200"} 1.0' in text
    assert 'plsc_requests_total{path="/embed",status="415"} 1.0' in text
    assert "made-up-path" not in text and 'path="other",status="404"' in text
    assert _metric(client, "plsc_people") == 3 and _metric(client, "plsc_batch_pictures_sum") == 1
    assert _metric(client, "process_resident_memory_bytes") > 1e6


def test_openapi_has_every_path_and_its_page_takes_nothing_from_elsewhere(client):
    _, schema = client.ask("GET", "/openapi.json")
    assert {"/embed", "/verify", "/search", "/people", "/health", "/metrics"} <= set(schema["paths"])
    assert all(operation["description"] for path in schema["paths"].values() for operation in path.values())
    assert (
        schema["components"]["schemas"]["Comparison"]["properties"]["similarity"]["description"]
        == "The cosine, -1 to 1."
    )
    for path in ("/", "/page.js", "/texts.js", "/page.css"):
        status, text, headers = client.ask_all("GET", path)
        assert status == 200 and "http://" not in text and "https://" not in text and "//cdn" not in text
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


def test_another_networks_gallery_and_samples_that_are_no_pictures_are_refused(gallery):
    with pytest.raises(UserError, match="cannot be compared"):
        create_app(Pixels(network="b" * 64), gallery)
    odd = Pixels(channels="grey")
    odd.preprocessing = odd.preprocessing.__class__((4,), "float32")
    with pytest.raises(UserError, match=r"takes samples float32 \[4\]"):
        create_app(odd)


def _until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def _metric(client, name):
    lines = client.ask("GET", "/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_names_of_bytes_that_are_no_text(client, gallery):
    """Folders may have them, and so may galleries; UTF-8 has none."""
    gallery.add("Z\udcff", Pixels().embed(np.stack([samples(picture(9))])))
    assert client.send("/search", picture(9))[1]["name"] == "Z\\udcff"
    assert "Z\\udcff" in client.ask("GET", "/people")[1]["names"]


def test_an_embedding_that_is_not_finite_is_refused_alone(client, monkeypatch):
    def embed(self, samples):
        return np.where(samples[:, :1, 0, 0] == 255, np.nan, np.ones((len(samples), 64), np.float32))

    monkeypatch.setattr(Pixels, "_embed", embed)
    white = cv2.imencode(".png", np.full((8, 8), 255, np.uint8))[1].tobytes()
    for path in ("/embed", "/search"):
        status, answer = client.ask("POST", path, white)
        assert status == 422 and "not finite" in answer["error"]
        assert client.ask("POST", path, picture(1))[0] == 200


def test_a_gallery_that_is_upgraded_between_the_check_and_the_search_gives_no_matches(
    client, gallery, monkeypatch
):
    """The other network's embeddings have the same size: the numbers would look right."""
    real = Gallery.search

    def search(self, *args, **kwargs):
        monkeypatch.undo()
        Gallery.open(gallery.path).upgrade(
            Pixels(network="b" * 64), {name: [samples(picture(1))] for name in self.names()}
        )
        self.refresh()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "search", search)
    assert client.send("/search", picture(1))[0] == 503


def test_pictures_are_not_added_to_a_gallery_of_another_network(client, gallery, monkeypatch):
    real = Gallery.add

    def add(self, *args, **kwargs):
        monkeypatch.undo()
        Gallery.open(gallery.path).upgrade(
            Pixels(network="b" * 64), {name: [samples(picture(1))] for name in self.names()}
        )
        self.refresh()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "add", add)
    assert client.send("/people", picture(1), name="Eve", Authorization=BEARER)[0] == 503
    assert "Eve" not in Gallery.open(gallery.path).names()


def test_a_gallery_that_was_removed(client, gallery):
    gallery.path.unlink()
    for path, name in (("/search", None), ("/verify", "Ann")):
        status, answer = client.send(path, picture(1), name=name)
        assert status == 503 and str(gallery.path) not in answer["error"]
    assert client.send("/people", picture(1), name="Eve", Authorization=BEARER)[0] == 503
    assert not gallery.path.exists() and client.send("/embed", picture(1))[0] == 200
