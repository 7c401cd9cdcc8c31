"""The load on a service: every request is counted, errors among them, and the numbers add up."""

import json
import re

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from benchmarks import __main__ as benchmark
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from plsc.errors import UserError
from tests.apps.serving.running import Pixels, picture, running

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(0))
    return tmp_path / "a.png"


def rows(client, file, *words):
    target = file.with_name("serve.json")
    url = f"http://127.0.0.1:{client.port}"
    assert benchmark.main(["serve", "--url", url, "--picture", str(file), "--json", str(target), *words]) == 0
    return json.loads(target.read_text())["rows"]


def test_every_request_is_made_and_counted(file, capsys):
    embedder = Pixels()
    with running(create_app(embedder)) as client:
        got = rows(client, file, "--clients", "1", "4", "--requests", "20", "30")
    assert [(row["clients"], row["requests"], row["errors"]) for row in got] == [
        (1, 20, 0),
        (1, 30, 0),
        (4, 20, 0),
        (4, 30, 0),
    ]
    assert sum(embedder.batches) == 100
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["per_second"] > 0 for row in got)
    assert all(row["service_mb"] > 1 for row in got)
    assert "requests/s  p50 ms  p99 ms" in capsys.readouterr().out


def test_refusals_are_errors(file):
    with running(create_app(Pixels(), options=Options(max_bytes=10))) as client:
        (row,) = rows(client, file, "--clients", "2", "--requests", "5")
    assert row["errors"] == 5 and row["p50_ms"] is None


def test_the_token_is_brought(file, monkeypatch):
    with running(create_app(Pixels(), options=Options(token=TOKEN, private=True))) as client:
        monkeypatch.setenv("PLSC_SERVE_TOKEN", TOKEN)
        assert rows(client, file, "--clients", "1", "--requests", "3")[0]["errors"] == 0


def test_mistakes_are_one_line(file):
    for words, line in (
        (["--url", "http://127.0.0.1:9", "--picture", str(file)], "--url: 127.0.0.1:9 does not answer"),
        (["--url", "localhost:8000", "--picture", str(file)], "--url: must be like http://127.0.0.1:8000"),
        (["--picture", "nowhere.png"], "--picture: nowhere.png: no such file"),
        (["--picture", str(file), "--clients", "0"], "--clients, --requests: must be 1 or more"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(line)}"):
            benchmark.main(["serve", *words])
