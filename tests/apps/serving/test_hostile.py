"""Requests that mean harm, or are broken: each gets a 4xx with one line, and the service answers the next
one."""

import concurrent.futures
import contextlib
import http.client
import socket
import struct
import threading
import time
import zlib
from urllib.parse import quote

import cv2
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from fastapi.responses import Response

from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.connections import protocol
from plsc.apps.serving.service.options import Options
from plsc.utils.measure import resident_bytes
from tests.apps.serving.running import PATIENT, Pixels, form, picture, running

TOKEN = "a-token-of-the-tests"
BEARER = f"Bearer {TOKEN}"
LIMIT = 1 << 20
HOSTS = frozenset({"127.0.0.1", "localhost"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def client(folder):
    people = {"Ann": [np.arange(64, dtype=np.uint8).reshape(1, 8, 8)]}
    gallery = Gallery.build(folder / "gallery", Pixels(), people)
    gallery.set_threshold(0.5)
    options = Options(
        max_bytes=LIMIT,
        max_pixels=1_000_000,
        max_pictures=3,
        deadline=PATIENT,
        token=TOKEN,
        writable=True,
        hosts=HOSTS,
    )
    with running(create_app(Pixels(), gallery, options)) as client:
        yield client


@pytest.fixture(autouse=True)
def the_service_lives(client, folder):
    """After each hostile request it answers, and nothing but the gallery is on the disk."""
    yield
    assert client.send("/embed", picture(0))[0] == 200
    assert client.ask("GET", "/people")[1]["names"] == ["Ann"]
    assert {path.name for path in folder.iterdir()} <= {"gallery", "gallery-wal", "gallery-shm"}


def refuses(answer, status, words):
    assert answer[0] == status, answer
    assert (
        set(answer[1]) <= {"error", "refused"}
        and words in answer[1]["error"]
        and "\n" not in answer[1]["error"]
    )


def png(width, height, rows=b""):
    """A PNG by hand: a header, and compressed rows that need not fit it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def jpeg_of_many_scans():
    """A progressive JPEG whose last scan comes again and again."""
    pixels = np.random.default_rng(0).integers(0, 256, (512, 512), np.uint8)
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2][:200] * 1000 + b"\xff\xd9"


PICTURES = {
    "a bomb of a billion pixels": (png(40_000, 40_000), 413, "1,600,000,000 pixels"),
    "a bomb that is small on the disk": (png(30_000, 30_000, bytes(900_000)), 413, "900,000,000 pixels"),
    "a JPEG of a thousand scans": (jpeg_of_many_scans(), 413, "scans"),
    "a BMP of negative height": (
        b"BM" + bytes(12) + struct.pack("<Iii", 40, 2**20, -(2**20)) + bytes(40),
        413,
        "pixels",
    ),
    "a WebP that promises too much": (
        b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\xff\xff\xff\xff\xff" + bytes(8),
        413,
        "pixels",
    ),
    "a GIF": (
        b"GIF89a\x01\x00\x01\x00\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
        415,
        "no PNG",
    ),
    "an SVG with a script": (
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        415,
        "no PNG",
    ),
    "a TIFF": (b"II*\0\x08\0\0\0" + bytes(50), 415, "no PNG"),
    "HTML": (b"<!doctype html><script>alert(1)</script>", 415, "no PNG"),
    "a PDF": (b"%PDF-1.7 ...", 415, "no PNG"),
    "a ZIP": (b"PK\x03\x04" + bytes(100), 415, "no PNG"),
    "a pickle": (b"\x80\x04cos\nsystem\n(S'touch x'\ntR.", 415, "no PNG"),
    "a PNG that is cut off": (picture(0, (64, 64))[:2000], 422, "cannot be decoded"),
    "a JPEG that is cut off": (picture(0, (64, 64), ".jpg")[:1500], 422, "cannot be decoded"),
    "a JPEG that lacks its last bytes": (picture(0, (64, 64), ".jpg")[:-2], 422, "cannot be decoded"),
    "a PNG's header alone": (picture(0)[:12], 415, "header is cut off"),
    "a PNG of no pixels": (png(0, 5), 415, "header"),
    "a PNG with a wrong checksum": (
        picture(0)[:40] + b"\0\0\0\0" + picture(0)[44:],
        422,
        "cannot be decoded",
    ),
    "a PNG that makes libpng write a thousand lines": (
        picture(0)[:33] + struct.pack(">I4sI", 0, b"gAMA", zlib.crc32(b"gAMA")) * 1000 + picture(0)[33:],
        413,
        "is a PNG of more than 100 chunks beside its pixels",
    ),
    "a PNG that keeps 80 MB of text in each of four threads": (
        picture(0)[:33] + struct.pack(">I4sI", 0, b"zTXt", zlib.crc32(b"zTXt")) * 11 + picture(0)[33:],
        413,
        "or 10 compressed ones",
    ),
    "a black picture": (png(8, 8, bytes(9 * 8)), 422, "shows nothing"),
}


@pytest.mark.parametrize("data, status, words", PICTURES.values(), ids=PICTURES)
def test_pictures(client, data, status, words):
    refuses(client.ask("POST", "/embed", data), status, words)
    refuses(client.send("/search", data), status, words)


def test_the_wrong_picture_of_several_is_named(client):
    refuses(client.send("/embed", picture(0), b"GIF89a", picture(0)), 415, "picture 2 is no PNG")


@pytest.mark.parametrize(
    "method, path, status, words",
    [
        ("GET", "/../../etc/passwd", 404, "Not Found"),
        ("GET", "/page/../../../../setup.py", 404, "Not Found"),
        ("GET", "/%2e%2e%2f%2e%2e%2fsetup.py", 404, "Not Found"),
        ("GET", "/embed", 405, "Method Not Allowed"),
        ("POST", "/search/", 404, "Not Found"),
        ("POST", "/search?far=nan", 422, "far: "),
        (
            "POST",
            "/search?thresold=0.9%0a",
            422,
            "thresold: is not known here; there are top, align, threshold",
        ),
        ("GET", "/people?name%0a=Ann", 422, "name\\n: is not known here; there are find, start, limit"),
        ("PUT", "/people?name=x", 405, "Method Not Allowed"),
        ("POST", "/embed", 400, "no picture"),
        ("POST", "/search?top=0", 422, "top: "),
        ("POST", "/search?top=1000000000", 422, "top: "),
        ("POST", "/search?top=x%0aERROR", 422, "top: "),
        ("POST", "/search?threshold=nan", 422, "threshold: "),
        ("POST", "/search?far=0", 422, "far: "),
        ("DELETE", "/people?name=", 422, "name: "),
        ("DELETE", f"/people?name={'x' * 501}", 422, "name: "),
        ("GET", "/people?start=-1", 422, "start: "),
        ("GET", "/people?limit=99999999999999999999999", 422, "limit: "),
        ("POST", "/search?threshold=0_1", 422, "threshold: must be a plain number or word, got '0_1'"),
        ("POST", "/search?top=1_0", 422, "top: must be a plain number or word"),
        ("POST", "/search?threshold=%200.5", 422, "threshold: must be a plain number"),
        ("POST", "/search?top=%EF%BC%95", 422, "top: must be a plain number"),
        ("POST", "/search?top=5&top=6", 422, "top: comes 2 times; give it once"),
        ("POST", "/search?top=5&align=false&t%6fp=5", 422, "top: comes 2 times"),
        ("DELETE", "/people?name=Ann&name=Ann", 422, "name: comes 2 times"),
        ("DELETE", "/people?name=M%FCller", 422, "bytes that are not UTF-8"),
        ("DELETE", "/people?name=%ED%A0%80", 422, "bytes that are not UTF-8"),
        ("DELETE", "/people?name=%C1%81", 422, "bytes that are not UTF-8"),
        ("POST", "/verify?%FF=1", 422, "bytes that are not UTF-8"),
    ],
)
def test_addresses(client, method, path, status, words):
    refuses(client.ask(method, path), status, words)


def test_forms(client):
    body, kind = form(picture(0))
    refuses(client.ask("POST", "/embed", b"garbage", Content_Type=kind), 400, "multipart")
    refuses(client.ask("POST", "/embed", body, Content_Type="multipart/form-data"), 400, "boundary")
    refuses(client.send("/embed", *[picture(0)] * 4), 400, "Too many files")
    refuses(client.send("/verify", picture(0)), 422, "needs two pictures")
    refuses(client.send("/search", picture(0), picture(0)), 400, "Too many files")
    fields, kind = form(b"5", name="top", file=None)
    refuses(
        client.ask("POST", "/search", fields, Content_Type=kind),
        422,
        "field 'top': the form brings pictures only",
    )
    path, kind = form(picture(0), file="../../../etc/cron.d/x")
    assert client.ask("POST", "/embed", path, Content_Type=kind)[0] == 200  # the name of a file means nothing
    body = body.replace(b'name="picture"', 'name="é"'.encode())
    for charset in ("undefined", "idna", "punycode", "utf-7", "nothing"):
        kind = f"multipart/form-data; boundary=limit; charset={charset}"
        assert client.ask("POST", "/embed", body, Content_Type=kind)[0] in (200, 400), charset


@pytest.mark.parametrize(
    "name, status, words",
    [
        (b"", 422, "name: has 1 to 500 characters, got 0"),
        (b"x" * 501, 422, "name: has 1 to 500 characters, got 501"),
        (b"x" * (2 << 18), 422, "name: has 1 to 500 characters"),
        (b"M\xfcller", 422, "name: has bytes that are not UTF-8"),
        (b"\xed\xa0\x80", 422, "not UTF-8"),
        (b"\xc1\x81", 422, "not UTF-8"),
        ("Zoë".encode("utf-16-le"), 422, "not UTF-8"),
        (None, 422, "name: is missing; send it as a field of the form"),
    ],
)
def test_names_in_a_form(client, name, status, words):
    refuses(client.send("/people", picture(0), name=name, Authorization=BEARER), status, words)
    if name is not None:
        refuses(client.send("/verify", picture(0), name=name), status, words)
        refuses(
            client.send("/embed", picture(0), name=name), 422, "field 'name': the form brings pictures only"
        )


def test_a_form_has_one_name_whatever_charset_it_says(client):
    field, kind = form(b"Ann", b"Bob", name="name", file=None)
    refuses(
        client.ask("POST", "/people", field, Authorization=BEARER, Content_Type=kind), 400, "Too many fields"
    )
    body = (
        form("Zoë".encode(), name="name", file=None)[0].removesuffix(b"--limit--\r\n") + form(picture(0))[0]
    )
    for charset in ("utf-16", "idna", "latin-1", "nothing"):
        answer = client.ask("POST", "/verify", body, Content_Type=f"{kind}; charset={charset}")
        refuses(answer, 404, "'Zoë': no such name")


def test_a_body_that_is_too_large_is_not_kept(client):
    before = resident_bytes("VmHWM")
    refuses(client.ask("POST", "/embed", bytes(64 << 20)), 413, "at most 1,048,576 bytes")
    sent = (bytes(1 << 16) for _ in range(1000))
    refuses(client.ask("POST", "/embed", sent), 413, "at most 1,048,576 bytes")
    assert resident_bytes("VmHWM") - before < 80 << 20  # 64 MB are the client's


def test_a_body_that_does_not_come_is_given_up():
    with running(create_app(Pixels(), options=Options(deadline=0.3))) as client:
        with socket.create_connection(("127.0.0.1", client.port), 20) as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
        answered(client)


def test_a_header_that_does_not_come_is_given_up():
    """Also after a request that was answered; and a request that takes longer is not cut off."""
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    embedder = Pixels()
    app = create_app(embedder, options=Options(deadline=PATIENT))
    with running(app, http=protocol(1, 100), timeout_keep_alive=60) as client:
        for before in (b"", whole):
            with socket.create_connection(("127.0.0.1", client.port), 20) as slow:
                slow.sendall(before + b"GET /health HT")
                answers = b"".join(iter(lambda sock=slow: sock.recv(4096), b""))
                assert answers.count(b"HTTP/1.1 200 ") == bool(before) and answers.count(b"HTTP/1.1") < 2
        embedder.may_go_on.clear()
        threading.Timer(2.0, embedder.may_go_on.set).start()
        assert client.send("/embed", picture(0))[0] == 200


def answers_within(client, seconds):
    """Say whether the service answers within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return client.ask("GET", "/health")[0] == 200
        time.sleep(0.05)
    return False


def test_a_client_that_does_not_take_its_answers_is_given_up():
    """Also one whose request is answered as a whole; one that reads slowly, but does, gets all of it."""
    app = create_app(Pixels(), options=Options(deadline=PATIENT))
    app.add_api_route("/large", lambda: Response(bytes(8 << 20)))
    patience = 1.0
    with running(app, http=protocol(patience, 1), timeout_keep_alive=60) as client:
        for path, times in (("/openapi.json", 4000), ("/large", 1)):
            began = time.monotonic()
            with small_connection(client.port) as mute:
                mute.setblocking(False)
                request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * times
                assert mute.send(request) > len(request) // 100
                assert answers_within(client, 60)
                assert time.monotonic() - began >= patience, "it had the only connection"
        with small_connection(client.port, 1 << 16) as slow:
            slow.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            end, got = time.monotonic() + 2.5 * patience, 0
            while time.monotonic() < end:
                got += len(slow.recv(1 << 16))
                time.sleep(0.05)
            assert got < 8 << 20
            while part := slow.recv(1 << 20):
                got += len(part)
            assert got > 8 << 20


def small_connection(port, size=4096):
    """A connection that takes little before it is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    return sock


def test_clients_beyond_the_queue_get_an_answer():
    """Whatever they send; those beyond the connections are closed, and the others answered still."""
    embedder = Pixels()
    embedder.may_go_on.clear()
    body = picture(0) + bytes(300_000)
    with running(
        create_app(embedder, options=Options(deadline=PATIENT, queue=2)), http=protocol(30, 50)
    ) as client:
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(client.ask, "POST", "/embed", body) for _ in range(40)]
            done = concurrent.futures.as_completed(asked)
            refusals = [next(done).result() for _ in range(38)]
            assert {status for status, _ in refusals} == {503}
            assert client.ask("GET", "/health")[0] == 200
            embedder.may_go_on.set()
            assert [found.result()[0] for found in done] == [200, 200]
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(socket.create_connection(("127.0.0.1", client.port), 20))
            with socket.create_connection(("127.0.0.1", client.port), 20) as other:
                assert other.recv(1) == b""
        assert client.send("/embed", picture(0))[0] == 200


def answered(client):
    """Wait until the service answers in time, which a busy machine may keep it from now and then."""
    end = time.monotonic() + 60
    while client.send("/embed", picture(0))[0] != 200:
        assert time.monotonic() < end


def test_a_client_that_goes_away_leaves_nothing_behind(client):
    for _ in range(70):  # more than the queue takes
        with socket.create_connection(("127.0.0.1", client.port), 20) as gone:
            gone.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
    answered(client)


def test_what_is_no_http_is_refused_by_the_server(client):
    for data in (
        b"\x16\x03\x01" + bytes(50) + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", client.port), 20) as other:
            other.sendall(data)
            other.shutdown(socket.SHUT_WR)
            assert other.recv(4096)[:10] in (b"HTTP/1.1 4", b"")


# -- who may ask
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::1", "a@b"]
)
def test_names_that_are_not_this_machines_are_refused(client, host):
    refuses(client.ask("GET", "/people", Host=host), 421, "answers to")


def test_a_page_of_another_site_may_not_ask(client):
    body = picture(0)
    port = client.port
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": f"http://127.0.0.1:{port}"},
    ):
        refuses(client.ask("POST", "/embed", body, **headers), 403, "another site")
        refuses(
            client.ask("DELETE", "/people?name=Ann", Authorization=BEARER, **headers), 403, "another site"
        )
    for headers in ({"Origin": f"http://127.0.0.1:{port}"}, {"Sec_Fetch_Site": "same-origin"}):
        assert client.ask("POST", "/embed", body, **headers)[0] == 200
    _, _, headers = client.ask_all("OPTIONS", "/people", Origin="http://evil.example")
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
def test_without_the_token_nothing_changes(client, given):
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    refuses(client.send("/people", picture(0), name="Eve", **headers), 401, "Authorization")
    refuses(client.ask("DELETE", "/people?name=Ann", **headers), 401, "Authorization")


def test_a_wrong_token_is_refused_where_none_is_needed_too(client):
    refuses(client.ask("GET", "/about", Authorization="Bearer wrong"), 401, "Authorization")
    for right in (BEARER, "Basic of-a-proxy"):
        assert client.ask("GET", "/about", Authorization=right)[0] == 200


def test_a_service_that_is_not_writable_changes_nothing(folder):
    gallery = Gallery.open(folder / "gallery")
    with running(create_app(Pixels(), gallery, Options(deadline=PATIENT, token=TOKEN))) as client:
        refuses(client.ask("DELETE", "/people?name=Ann", Authorization=BEARER), 403, "--writable")
        refuses(client.send("/people", picture(0), name="x", Authorization=BEARER), 403, "--writable")


def test_a_private_service_asks_for_the_token_to_read(folder):
    gallery = Gallery.open(folder / "gallery")
    with running(
        create_app(Pixels(), gallery, Options(deadline=PATIENT, token=TOKEN, private=True))
    ) as client:
        for method, path in (("GET", "/people"), ("GET", "/about"), ("GET", "/metrics"), ("POST", "/search")):
            refuses(client.ask(method, path), 401, "Authorization")
        assert client.ask("GET", "/people", Authorization=BEARER)[1]["names"] == ["Ann"]
        for path in ("/", "/page.js", "/page.css", "/openapi.json", "/health"):
            assert client.ask("GET", path)[0] == 200


NAMES = [
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "a\nb\tc",
    "a\x1b[31mred",
    "a\u202egpj",
    "'; DROP TABLE x",
    "a\0b",
    "𝕏" * 9,
]


def test_names_are_text(client):
    for name in NAMES:
        path = f"/people?name={quote(name)}"
        status, answer = client.send("/people", picture(33), name=name, Authorization=BEARER)
        assert (status, answer.get("name")) == (201, name), answer
        found = client.ask("POST", "/search", picture(33))
        assert found[1]["name"] == name
        status, _, headers = client.ask_all("GET", "/people")
        assert (
            headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
        )
        assert client.ask("DELETE", path, Authorization=BEARER)[0] == 200
        refuses(client.ask("DELETE", path, Authorization=BEARER), 404, "no such name")


def test_names_that_seem_to_be_others_are_refused(client):
    for name in (" ", "Ann ", "\ufeffAnn", "Ann\n", "\0", "\x1b[31mred"):
        answer = client.send("/people", picture(33), name=name, Authorization=BEARER)
        refuses(answer, 422, "name: a person's name must not begin or end with white space")


def test_a_name_is_one_whatever_characters_it_is_written_with(client):
    written = ("J\u00f6rg", "Jo\u0308rg")
    for name in written:
        status, answer = client.send("/people", picture(33), name=name, Authorization=BEARER)
        assert (status, answer["name"], answer["count"]) == (201, "J\u00f6rg", 2)
    assert client.send("/verify", picture(33), name=written[1])[1]["same"] is True
    assert client.ask("DELETE", f"/people?name={quote(written[1])}", Authorization=BEARER)[1]["count"] == 1
