"""Shards on a server, of HTTP and of S3: the same bits cold and warm, a cache with a limit, and servers that
fail, stall or come back."""

import errno
import functools
import http.server
import importlib.util
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest

from plsc.apps.curate.convert import convert
from plsc.data.folder import ImageFolder
from plsc.data.loader import Loader
from plsc.data.pairs import ImagePairs
from plsc.data.remote_shards import Cache
from plsc.data.shards import Shards
from plsc.errors import MissingFileError, UserError
from tests.helpers.image_files import write_folder
from tests.helpers.launch import start_python

needs_http = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("fsspec", "aiohttp"))),
    reason="needs the extra remote: fsspec and aiohttp",
)
needs_s3 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("s3fs", "moto", "flask"))),
    reason="needs s3fs, and moto[server] as the server",
)
OPTIONS = {"size": (16, 16), "flip": True, "seed": 3}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; the server's `way` may be to fail, to stall or to cut off what it sends."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.asked.append((self.command, self.path))
        way = self.server.way
        if way == "fail":
            self.send_error(503)
        elif way == "stall":
            self.server.released.wait(20)
            self.close_connection = True
        else:
            super().do_GET()

    def do_HEAD(self):
        self.server.asked.append((self.command, self.path))
        if self.server.way == "fail":
            self.send_error(503)
        elif self.server.way == "stall":
            self.server.released.wait(20)
            self.close_connection = True
        else:
            super().do_HEAD()

    def copyfile(self, source, outputfile):
        if self.server.way == "cut":
            outputfile.write(source.read(700))
            self.close_connection = True
        else:
            super().copyfile(source, outputfile)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves the folder `served`, which has the shards of `faces` in `out`; the cache's settings are small
    ones of its tests."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "faces", {"Ann": 5, "Bob": 7, "Cy": 4, "Dee": 5})
    (tmp_path / "served").mkdir()
    convert("faces", "served/out", shards=5)
    serving = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "served"))
    )
    serving.daemon_threads = True
    serving.asked, serving.way, serving.released = [], "", threading.Event()
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    serving.url = f"http://127.0.0.1:{serving.server_port}/out"
    yield serving
    serving.released.set()
    serving.shutdown()
    serving.server_close()
    thread.join()


def cache(**keys):
    return {"folder": "cache", "patience": 5.0, **keys}


def pixels(data):
    """All batches of an epoch."""
    return [
        (images.tobytes(), labels.tolist(), indices.tolist())
        for images, labels, indices in Loader(data, 6, 0, 1, seed=1).epoch(1)
    ]


@needs_http
def test_the_bits_are_those_of_the_folder_cold_and_warm(server):
    expected = pixels(ImageFolder("faces", hold_out=0.6, **OPTIONS))
    cold = Shards(server.url, cache=cache(), hold_out=0.6, **OPTIONS)
    assert (
        pixels(cold) == expected
        and cold.title == "out"
        and cold.identities.tolist() == ["Ann", "Bob"]
        or expected
    )
    assert sum(path.endswith(".tar") and kind == "GET" for kind, path in server.asked) >= 5
    server.asked.clear()
    warm = Shards(server.url, cache=cache(), hold_out=0.6, **OPTIONS)
    assert pixels(warm) == expected
    assert not [path for _, path in server.asked if not path.endswith("index.npz")], (
        "only the index is asked for"
    )
    pairs = ImagePairs(server.url, cache=cache(), hold_out=0.6, num_pairs=8)
    assert np.array_equal(pairs.images(), ImagePairs("faces", hold_out=0.6, num_pairs=8).images())


@needs_http
@pytest.mark.parametrize("shards", ["{00000..00004}.tar", "00002.tar"])
def test_without_an_index_on_the_server_one_is_made_here(server, shards, monkeypatch):
    os.remove("served/out/index.npz")
    here = (
        Shards("served/out" if "{" in shards else "served/out/00002.tar", **OPTIONS)
        if "{" in shards
        else None
    )
    url = f"{server.url}/{shards}"
    if here is None:
        with pytest.raises(UserError, match="no image has label"):
            Shards(url, cache=cache())  # classes 0 and more are in other shards
        return
    os.remove("served/out/index.npz")
    first = Shards(url, cache=cache(), **OPTIONS)
    assert pixels(first) == pixels(here)
    monkeypatch.setattr("plsc.data.remote_shards.scan", lambda paths: pytest.fail("the cache has the index"))
    assert pixels(Shards(url, cache=cache(), **OPTIONS)) == pixels(here)


@needs_http
def test_a_server_that_is_down_for_a_while_is_waited_for(server, caplog):
    server.way = "fail"
    timer = threading.Timer(0.5, lambda: setattr(server, "way", ""))
    timer.start()
    data = Shards(server.url, cache=cache(), **OPTIONS)
    assert pixels(data) == pixels(ImageFolder("faces", **OPTIONS))
    timer.join()


@needs_http
@pytest.mark.parametrize(
    "way,reason", [("fail", "503"), ("stall", "nothing came for 0.2 s"), ("cut", " of ")]
)
def test_a_server_that_fails_for_ever_is_named_in_one_line(server, way, reason):
    server.way = way
    with pytest.raises(UserError) as raised:
        Shards(server.url, cache=cache(stall=0.2, patience=0.8))
    line = str(raised.value)
    assert (
        line.startswith(f"{server.url}/index.npz: the server failed in ")
        and reason in line
        and "\n" not in line
    )
    assert "patience says how long it is tried" in line


@needs_http
def test_a_server_that_is_gone_is_named(server):
    url = server.url.replace(str(server.server_port), "1")
    with pytest.raises(UserError, match="127.0.0.1:1/out/index.npz: the server failed in "):
        Shards(url, cache=cache(patience=0.3))


@needs_http
def test_a_shard_that_the_server_has_not_is_named(server):
    os.remove("served/out/00003.tar")
    with pytest.raises(MissingFileError) as raised:
        Shards(server.url, cache=cache())
    assert str(raised.value) == f"{server.url}/00003.tar: the server has no such file"


@needs_http
def test_of_other_shards_under_the_same_names_no_old_copy_is_read(server, tmp_path):
    first = pixels(Shards(server.url, cache=cache(), **OPTIONS))
    os.rename("served/out", "served/before")
    write_folder(tmp_path / "others", {"Eve": 30, "Ann": 5, "Bob": 7, "Cy": 4, "Dee": 5})
    shutil.rmtree(tmp_path / "others" / "Eve")  # the same names and sizes, other pictures
    convert("others", "served/out", shards=5)
    os.utime("served/out/index.npz", (2e9, 2e9))  # HTTP tells whole seconds
    assert (
        pixels(Shards(server.url, cache=cache(), **OPTIONS))
        == pixels(ImageFolder("others", **OPTIONS))
        != first
    )


@needs_http
def test_an_index_of_which_the_server_tells_no_version_is_fetched_each_time(server, monkeypatch):
    monkeypatch.setattr(Handler, "date_time_string", lambda self, timestamp=None: "")  # no Last-Modified
    for _ in range(2):
        server.asked.clear()
        assert len(Shards(server.url, cache=cache())) == 21
        assert ("GET", "/out/index.npz") in server.asked


# ---- the cache


def size_of(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder) if not entry.name.endswith(".lock"))


@needs_http
def test_a_cache_smaller_than_the_set_gives_the_same_bits_and_keeps_its_limit(server, caplog):
    sizes = [os.path.getsize(f"served/out/{name}") for name in sorted(os.listdir("served/out"))]
    limit = sum(sizes[:2]) + sizes[-1]
    data = Shards(server.url, cache=cache(bytes=limit), **OPTIONS)
    folder = ImageFolder("faces", **OPTIONS)
    most = 0
    for index in [*range(0, len(data), 3)] * 2:
        data.paths._files.clear()
        assert data.encoded(index).tobytes() == folder.encoded(index).tobytes()
        most = max(most, size_of("cache"))
    assert limit / 2 < most <= limit
    with pytest.raises(UserError, match="cache: bytes must be at least those of .*00000.tar"):
        Shards(server.url, cache=cache(bytes=sizes[-1] + 10, folder="small"), **OPTIONS).encoded(0)


@needs_http
def test_the_least_recently_used_goes(server, tmp_path):
    for number in range(4):
        (tmp_path / "served" / "out" / f"0000{number}.tar").write_bytes(bytes(20480))
    keep = Cache(folder="cache", bytes=3 * 20480 + 100, patience=5)
    (tmp_path / "cache" / "weights").mkdir(parents=True)  # of plsc weights, in the default folder
    os.utime(tmp_path / "cache" / "weights", (0, 0))
    paths = {}
    for number in (0, 1, 2):
        paths[number] = keep.fetch(f"{server.url}/0000{number}.tar", "v", 20480)
        os.utime(paths[number], (number, number))
    keep.fetch(f"{server.url}/00000.tar", "v", 20480)  # used again
    keep.fetch(f"{server.url}/00003.tar", "v", 20480)
    assert [os.path.exists(paths[number]) for number in (0, 1, 2)] == [True, False, True]
    assert (tmp_path / "cache" / "weights").is_dir()


@needs_http
def test_what_a_killed_process_has_left_is_fetched_anew_and_makes_room(server):
    keep = Cache(folder="cache", bytes=2 * os.path.getsize("served/out/00000.tar") + 100, patience=5)
    size = os.path.getsize("served/out/00000.tar")
    for name in ("00000.tar", "other.tar"):
        with open(keep._path(f"{server.url}/{name}", "v") + ".part", "wb") as file:
            file.write(bytes(size))
        open(file.name.removesuffix("part") + "lock", "wb").close()
    path = keep.fetch(f"{server.url}/00000.tar", "v", size)
    with open(path, "rb") as found, open("served/out/00000.tar", "rb") as expected:
        assert found.read() == expected.read()
    keep.fetch(f"{server.url}/00001.tar", "v", os.path.getsize("served/out/00001.tar"))
    assert not [name for name in os.listdir("cache") if name.endswith(".part")]


@needs_http
def test_a_full_disk_is_not_taken_for_the_server(server, monkeypatch):
    def full(self, part, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Cache, "_make_room", full)
    with pytest.raises(UserError, match="^cache: cannot be written: No space left on device; make room"):
        Shards(server.url, cache=cache())


@needs_http
def test_processes_share_a_cache_and_fetch_each_shard_once(server):
    code = (
        "import sys, zlib; from plsc.data.shards import Shards;"
        "d = Shards(sys.argv[1], cache={'folder': 'cache', 'patience': 20.0});"
        "print(zlib.crc32(b''.join(d.encoded(i).tobytes() for i in range(len(d)))))"
    )
    children = [start_python("-c", code, server.url, stdout=subprocess.PIPE) for _ in range(3)]
    said = [child.communicate()[0].split()[-1] for child in children]
    assert len({*said}) == 1 and all(child.returncode == 0 for child in children)
    for number in range(5):
        fetched = [path for kind, path in server.asked if kind == "GET" and path.endswith(f"{number}.tar")]
        assert 1 <= len(fetched) <= 2, "once, or in two ranges"
    assert not [name for name in os.listdir("cache") if name.endswith(".part")]


@pytest.mark.parametrize(
    "keys,message",
    [
        ({"bites": 1}, "cache: has no key 'bites', only folder, bytes, stall, patience"),
        ({"bytes": 0}, "cache: bytes must be a whole number above 0, got 0"),
        ({"stall": "x"}, "cache: stall must be a number above 0, got 'x'"),
    ],
)
def test_wrong_keys_are_refused(keys, message):
    with pytest.raises(UserError) as raised:
        Shards.check(shards="https://a/b", cache=keys)
    assert str(raised.value) == message
    with pytest.raises(UserError, match="cache: is of shards on a server"):
        Shards.check(shards="here", cache={"stall": 1})


@needs_http
def test_a_kind_of_server_that_nobody_knows(tmp_path):
    with pytest.raises(
        UserError, match="nope://a/b/index.npz: .*give a path, or https://, s3://, oss:// or hf://"
    ):
        Shards("nope://a/b", cache={"folder": str(tmp_path)})


# ---- S3


@needs_s3
def test_shards_of_a_bucket(server, monkeypatch, tmp_path):
    from moto.server import ThreadedMotoServer

    for name, value in {
        "ACCESS_KEY_ID": "x",
        "SECRET_ACCESS_KEY": "x",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="faces")
        for name in os.listdir("served/out"):
            client.upload_file(f"served/out/{name}", "faces", f"all/{name}")
        expected = pixels(ImageFolder("faces", **OPTIONS))
        assert pixels(Shards("s3://faces/all", cache=cache(), **OPTIONS)) == expected
        client.delete_object(Bucket="faces", Key="all/index.npz")
        assert pixels(Shards("s3://faces/all/", cache=cache(), **OPTIONS)) == expected, (
            "listed, and indexed here"
        )
    finally:
        s3.stop()
    assert pixels(Shards("served/out", **OPTIONS)) == expected
    with pytest.raises(UserError, match="s3://faces/all/index.npz: the server failed in "):
        Shards("s3://faces/all", cache=cache(patience=0.5))
