"""Published networks' files: fetched once from a server, here on 127.0.0.1."""

import hashlib
import http.server
import re
import threading
from contextlib import contextmanager

import pytest

from plsc.utils.published import Published, path_of
from tests.helpers.refusals import refusal

CONTENT = bytes(range(256)) * 1000


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if "garbled" in self.path:
            self.wfile.write(b"no HTTP\r\n")
            return
        self.send_response(200 if self.path.endswith(".onnx") else 404)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2 if "cut" in self.path else None])

    def log_message(self, *_):
        pass


@contextmanager
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as served:
        served.asked = []
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture
def published(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(tmp_path / "cache"))
    with server() as served:

        def published(name, sha256=None):
            address = f"http://127.0.0.1:{served.server_port}/{name}"
            digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
            return Published("a network", address, digest, len(CONTENT), "MIT")

        published.asked = served.asked
        yield published


def test_a_file_is_fetched_once_and_its_licence_is_shown_once(published, tmp_path, capsys):
    net = published("net.onnx")
    for _ in range(2):
        assert path_of(net).read_bytes() == CONTENT
    assert published.asked == ["/net.onnx"] and path_of(net) == tmp_path / "cache" / "net.onnx"
    assert capsys.readouterr().out.count("a network: MIT, http://127.0.0.1") == 1


@pytest.mark.parametrize("name", ["cut.onnx", "garbled.onnx", "gone", "other.onnx"])
def test_a_bad_download_leaves_nothing_and_says_what_to_do(published, tmp_path, name):
    text = refusal(path_of, published(name, sha256="0" * 64))
    assert text.startswith(f"{name}: ")
    assert f"later to {tmp_path / 'cache'}, or set PLSC_CACHE to a folder with this file" in text
    assert "http://127.0.0.1" in text
    assert not [*(tmp_path / "cache").iterdir()]


def test_without_a_network_a_line_says_where_to_put_all_missing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(tmp_path))
    with server() as served:
        port = served.server_port  # closed when the block ends
    a, b, c = (
        Published("a network", f"http://127.0.0.1:{port}/{name}.onnx", "0" * 64, 1, "MIT") for name in "abc"
    )
    (tmp_path / "c.onnx").touch()
    both = (
        f"; download {a.address} and {b.address} on another machine or later to {tmp_path}, or set PLSC_CACHE"
    )
    text = refusal(path_of, a, b, c)
    assert re.search(r"a\.onnx: cannot be downloaded \(.*refused", text)
    assert text.endswith(f"{both} to a folder with these files")


def test_a_user_without_a_home_is_told_to_name_a_folder(published, monkeypatch):
    monkeypatch.delenv("PLSC_CACHE")
    for home in ("/dev/null", "~"):
        monkeypatch.setenv("HOME", home)
        assert re.search("name (another|a) folder in PLSC_CACHE$", refusal(path_of, published("net.onnx")))


def test_another_file_under_the_name_is_refused(published, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "net.onnx").write_bytes(b"other")
    assert re.search("its SHA-256 differs.*remove it", refusal(path_of, published("net.onnx")))
