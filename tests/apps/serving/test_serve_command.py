"""plsc serve as a user starts it: mistakes in its arguments, and a service behind a run's checkpoint from
start to end."""

import contextlib
import io
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc import cli
from plsc.apps.serving.embedder import from_run, from_vectors
from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.service import command as serve
from plsc.checkpoint.store import Checkpoint
from plsc.cli.serve import export
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training.thresholds import set_threshold
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures
from tests.apps.serving.running import Client
from tests.apps.serving.test_embedder import CAN_ONNX, PIXELS
from tests.helpers.bounds import assert_within, cosines, rounded
from tests.helpers.launch import start_python
from tests.helpers.tiny_runs import TINY

SECRET = "a-token-of-the-tests"


@pytest.mark.parametrize(
    "words, line",
    [
        (["--export", "nowhere"], "nowhere/preprocessing.json: is not there"),
        (["--export", "x", "-c", "y"], "--export: names a network, and so do -c and -o"),
        (["--writable", "--gallery", "x"], f"--writable: needs a token in {serve.TOKEN} or --token-file"),
        (["--writable", "--token-file", "good"], "--writable: there is nothing to change without --gallery"),
        (["--port", "65536"], "--port: must be 0 to 65535, got 65536"),
        (["--batch", "0"], "--batch: must be more than 0 and finite, got 0"),
        (["--max-pixels", "99999999"], "--max-pixels: must be at most 67,108,864, got 99,999,999"),
        (["--deadline", "nan"], "--deadline: must be more than 0 and finite, got nan"),
        (["--deadline", "inf"], "--deadline: must be more than 0 and finite, got inf"),
        (["--token-file", "nowhere"], "--token-file: nowhere: no such file"),
        (["--token-file", "short"], "short: a token has 16 or more"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(serve.TOKEN, raising=False)
    Path("short").write_text("secret\n")
    Path("good").write_text(f"{SECRET}\n")
    assert cli.main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ERROR {line}") and said.count("\n") == 1


def test_without_its_packages_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(serve, "_PACKAGES", ("fastapi", "no-such-package"))
    assert cli.main(["serve", "--export", "x"]) == 2
    line = "plsc serve: no-such-package not found: pip install fastapi no-such-package (the extra serve)"
    assert capsys.readouterr().err == f"ERROR {line}\n"


def options(*words):
    return serve._options(serve._parser().parse_args(words))


@pytest.mark.parametrize(
    "host, private, name",
    [
        ("127.0.0.1", False, "localhost"),
        ("127.0.0.2", False, "127.0.0.2"),
        ("::1", False, "::1"),
        ("0.0.0.0", True, None),
    ],
)
def test_beyond_loopback_reading_takes_the_token(monkeypatch, host, private, name):
    monkeypatch.setenv(serve.TOKEN, SECRET)
    got = options("--host", host)
    assert got.private is private and (got.hosts is None) is (name is None)
    assert name is None or name in got.hosts
    assert SECRET not in repr(got)
    monkeypatch.delenv(serve.TOKEN)
    assert options("--host", host).private is False


def test_who_can_read_what_is_said_where_others_reach_it(monkeypatch):
    monkeypatch.delenv(serve.TOKEN, raising=False)
    assert "no TLS, and without a token" in serve._exposed("0.0.0.0", 80, options("--host", "0.0.0.0"))
    monkeypatch.setenv(serve.TOKEN, SECRET)
    assert "put a proxy with TLS before it" in serve._exposed("0.0.0.0", 80, options("--host", "0.0.0.0"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run with its export, and a gallery of five people beside it."""
    folder = tmp_path_factory.mktemp("serve") / "output"
    with contextlib.redirect_stdout(io.StringIO()):
        formats = ["paddle", "onnx"] if CAN_ONNX else ["paddle"]
        entry = Entry(TINY, [f"Global.output_dir={folder}", f"Export.formats={formats}"])
        entry.train()
        entry.export()
        embedder = from_run(folder / "config.yaml", [f"Global.output_dir={folder}"])
        gallery = Gallery.build(folder.parent / "people", embedder, {f"P{n}": [PIXELS[n]] for n in range(5)})
    gallery.close()  # the last one to close it leaves one file
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "output")


def embedder_of(run, gallery=None, export=export):
    args = ["-c", str(run / "config.yaml"), "-o", f"Global.output_dir={run}"]
    return serve._embedder(serve._parser().parse_args(args), gallery, export)


def refuse(*_):
    raise AssertionError("it must not be exported")


def files_of(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_runs_export_is_taken_if_it_is_of_the_checkpoint(copied):
    before = files_of(copied)
    embedder = embedder_of(copied, export=refuse)
    assert embedder.described.endswith("output, step 12")
    assert embedder.network == Checkpoint.open(copied / "checkpoints" / "step-00000012").network
    assert files_of(copied) == before


def of_gallery(path, *words, export=refuse):
    args = serve._parser().parse_args(["--gallery", str(path), *words])
    with contextlib.closing(Gallery.open(path)) as gallery:
        return serve._embedder(args, gallery, export)


def test_without_a_config_it_is_the_gallerys_network(trained):
    embedder = of_gallery(trained.parent / "people")
    assert embedder.described.endswith("output, step 12")
    assert embedder.network == Checkpoint.open(trained / "checkpoints" / "step-00000012").network


def test_a_gallery_whose_network_is_gone_or_not_known_says_so(copied, tmp_path):
    with contextlib.redirect_stdout(io.StringIO()):
        of_run = from_run(copied / "config.yaml", [f"Global.output_dir={copied}"])
    for name, origin in (("gone", of_run.origin), ("unknown", None)):
        of_run.origin = origin
        Gallery.build(tmp_path / name, of_run, {"Ann": [PIXELS[0]]}).close()
    shutil.rmtree(copied)
    with pytest.raises(
        UserError, match="it is the network of .*gone: name where it is now with -c, or --export"
    ):
        of_gallery(tmp_path / "gone")
    with pytest.raises(UserError, match="unknown: does not say where its network is; name its run with -c"):
        of_gallery(tmp_path / "unknown")
    Gallery.build(tmp_path / "vectors", from_vectors(4), {"Ann": [np.ones(4, np.float32)]}).close()
    assert of_gallery(tmp_path / "vectors").described == "vectors of 4 numbers"  # which create_app refuses
    with pytest.raises(UserError, match="-o: the network of .*vectors is no run's, so there is no config"):
        of_gallery(tmp_path / "vectors", "-o", "Global.seed=1")


def test_a_gallery_is_refused_before_the_export(copied, tmp_path, monkeypatch):
    shutil.rmtree(copied / "export")
    other = Gallery.build(tmp_path / "other", FakeEmbedder(), {"Ann": pictures(1)})
    with pytest.raises(UserError, match="its embeddings are of the network run 0.* cannot be compared"):
        embedder_of(copied, other, refuse)
    monkeypatch.setattr(serve, "_embedder", None)
    with pytest.raises(UserError, match="nothing: is no gallery, there is nothing; make one"):
        serve.main(["-c", str(copied), "--gallery", str(tmp_path / "nothing")], refuse)


@pytest.mark.parametrize("change", ["no export", "another threshold", "a damaged export"])
def test_else_the_checkpoint_is_exported_and_kept_for_the_next_start(copied, change):
    if change == "no export":
        shutil.rmtree(copied / "export")
    elif change == "another threshold":
        saved = Checkpoint.open(copied / "checkpoints" / "step-00000012")
        set_threshold(saved, 0.125, "noise pairs", False)
    else:
        (copied / "export" / "preprocessing.json").write_text("{")
    before = files_of(copied)
    embedder = embedder_of(copied)
    assert change != "another threshold" or embedder.threshold == 0.125
    of_run = from_run(copied / "config.yaml", [f"Global.output_dir={copied}"])
    want, bound = rounded(of_run._network.backbone, lambda: of_run.embed(PIXELS))
    assert_within(embedder.embed(PIXELS), want, bound, paths=2)
    after = files_of(copied)
    assert before.items() <= after.items()
    assert {path.relative_to(copied).parts[0] for path in after.keys() - before.keys()} == {serve.KEPT}
    again = embedder_of(copied, export=refuse)
    assert (again.network, again.threshold) == (embedder.network, embedder.threshold)
    if change == "no export":  # one of an earlier checkpoint, or cut off, is replaced
        (copied / serve.KEPT / "preprocessing.json").write_text("{")
        embedder_of(copied)
        assert files_of(copied).keys() == after.keys()
        embedder_of(copied, export=refuse)


def test_a_run_in_which_nothing_can_be_written_is_served(copied, monkeypatch, capsys):
    shutil.rmtree(copied / "export")

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(serve.shutil, "copytree", no_space)
    assert embedder_of(copied).described.endswith("output, step 12")
    assert "No space left on device; the next start exports again" in capsys.readouterr().out
    assert not (copied / serve.KEPT).exists()


@contextlib.contextmanager
def started(*words, **env):
    """A service in a process of its own; yields the process and a client."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = start_python("-m", "plsc", "serve", *words, "--port", "0", env=env, **streams)
    try:
        said = ""
        while (port := re.search(r"on http://127\.0\.0\.1:(\d+)/", said)) is None:
            line = process.stdout.readline()
            assert line, f"it has ended: {said}"
            said += line
        yield process, Client(int(port.group(1)))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(
    not CAN_ONNX, reason="without ONNX Runtime a service takes the seconds of importing Paddle"
)
def test_from_start_to_end(trained):
    words = ["--export", trained / "export", "--gallery", trained.parent / "people", "--writable"]
    pictures = [cv2.imencode(".png", PIXELS[number][0])[1].tobytes() for number in range(5)]
    with started(*words, **{serve.TOKEN: SECRET}) as (process, client):
        assert "libpaddle" not in Path(f"/proc/{process.pid}/maps").read_text()
        status, answer = client.send("/search?threshold=0.9", pictures[3])
        assert (status, answer["verdict"], answer["name"]) == (200, "known", "P3")
        assert_within(answer["matches"][0]["similarity"], 1, cosines(8))
        bearer = {"Authorization": f"Bearer {SECRET}"}
        assert client.send("/people", pictures[0], pictures[1], name="New", **bearer)[0] == 201
        assert SECRET not in Path(f"/proc/{process.pid}/cmdline").read_text()

        # A request that has begun is answered after SIGTERM, new ones find nobody, and the end is no failure.
        with socket.create_connection(("127.0.0.1", client.port), 20) as half:
            head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(pictures[2])}\r\n\r\n"
            half.sendall(head.encode())
            assert half.recv(1000).startswith(b"HTTP/1.1 100 ")
            process.send_signal(signal.SIGTERM)
            with pytest.raises(OSError):
                while True:
                    client.ask("GET", "/health")
            half.sendall(pictures[2])
            answer = half.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"P2"' in answer
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and "stopped" in said and "Traceback" not in said
    assert [path.name for path in trained.parent.glob("people*")] == ["people"]
    assert Gallery.open(trained.parent / "people").names() == ["P0", "P1", "P2", "P3", "P4", "New"]
