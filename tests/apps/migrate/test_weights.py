"""plsc weights: what a server gives becomes a checkpoint folder to predict with and to start from, and
nothing else is kept."""

import errno
import hashlib
import http.server
import json
import re
import socket
import threading

import numpy as np
import pytest

from plsc import cli
from plsc.apps.migrate import weights
from plsc.apps.migrate.weights import PUBLISHED, Published
from plsc.config import ConfigError, load
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.utils.files import weights_folder
from tests.apps.migrate.onnx_files import Small, nodes_of, write_onnx
from tests.backbones.numpy_layers import scatter
from tests.helpers.bounds import assert_within, of_network

pytest.importorskip("onnx", reason="the extra export is not installed")
NETWORK = "tests.apps.migrate.onnx_files:Small"
MODEL = [f"Model.name={NETWORK}", "Model.embedding_size=512"]
DATA = [
    "DataLoader.Train.dataset={name: Synthetic, num_classes: 4, images_per_class: 3, image_shape: [3, 112, 112]}",
    "DataLoader.Train.batch_size=6",
    "DataLoader.Eval.dataset=null",
    "Global.max_steps=2",
    "LRScheduler.warmup_epochs=0",
    "Global.output_dir=out",
]
TRAIN = [*DATA, *MODEL, "Weights.name=small"]
FROZEN = "Optimizer.freeze_norms=true"


class Handler(http.server.BaseHTTPRequestHandler):
    """Gives the file at any address but /missing; /cut breaks off in the middle."""

    def do_GET(self):
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        data = self.server.data
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.path.startswith("/cut") else data)

    def log_message(self, *_):
        pass


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A network that a server has, as "small"; the caches are in the test's folder, which is the current
    one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    net = Small(512)
    scatter(net)
    path = tmp_path / "served.onnx"
    write_onnx(path, *nodes_of(net), size=512)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.data = path.read_bytes()
    path.unlink()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    publish(monkeypatch, f"http://127.0.0.1:{server.server_port}", "/small.onnx", server.data)
    yield net
    server.shutdown()
    server.server_close()
    thread.join()


def publish(monkeypatch, host, path, data):
    sha256 = hashlib.sha256(data).hexdigest()
    row = Published(f"{host}{path}", sha256, NETWORK, "noise", 3, None, 1, "for tests")
    monkeypatch.setitem(PUBLISHED, "small", row)


def change(monkeypatch, **values):
    monkeypatch.setitem(PUBLISHED, "small", PUBLISHED["small"]._replace(**values))


def test_what_is_fetched_predicts_as_the_network(tmp_path, net, capsys):
    assert cli.main(["weights", "get", "small"]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "caches/plsc/weights/small"
    assert said.startswith(f"done: {folder}; for tests\n") and "-o Weights.name=small Model.name=" in said
    assert str(folder) == weights_folder("small") and [path.name for path in folder.parent.iterdir()] == [
        "small"
    ]
    assert cli.main(["weights", "get", "small", "--output", "my folder"]) == 0
    said = capsys.readouterr().out
    assert f"predict -c '{tmp_path}/my folder/config.yaml' PHOTOS" in said
    assert f"-o 'Global.init_from={tmp_path}/my folder' Model.name=" in said
    report = json.loads((folder / "import.json").read_text())
    row = PUBLISHED["small"]
    assert [report[key] for key in ("file", "sha256", "licence", "trained_on")] == [
        row.url,
        row.sha256,
        row.licence,
        "noise",
    ]
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 112, 112), np.uint8)
    found, _ = Entry(folder / "config.yaml").predict(pixels)

    def unit(emb):
        return emb / np.linalg.norm(emb, axis=1, keepdims=True)

    assert_within(found, *of_network(net, (pixels.astype(np.float32) - 127.5) / 127.5, unit), paths=2)


def test_a_training_starts_with_it(tmp_path, net, capsys):
    with pytest.raises(
        UserError, match="Weights.name: small is not on this machine: plsc weights get small puts it in "
    ):
        Entry(None, [*TRAIN, FROZEN]).train()
    weights.get("small")
    lost = (
        "Weights.name: small: 3 of its 5 batch norms have no statistics, .*: set Optimizer.freeze_norms=true"
    )
    with pytest.raises(UserError, match=lost):
        Entry(None, TRAIN).train()
    Entry(None, [*TRAIN, FROZEN, "LRScheduler.learning_rate=1e-30"]).train()
    assert (
        load("out").Weights.name == "small"
        and "in " + weights_folder("small") in (tmp_path / "out/train.log").read_text()
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 112, 112), np.uint8)
    trained, before = (
        Entry("out").predict(pixels)[0],
        Entry(f"{weights_folder('small')}/config.yaml").predict(pixels)[0],
    )
    assert np.array_equal(trained, before)
    with pytest.raises(
        ConfigError, match=r"Weights.name: cannot be given together with Global.init_from \(-o .*\), keep one"
    ):
        load(None, [*TRAIN, "Global.init_from=before"])


@pytest.mark.parametrize(
    "values, said",
    [
        (
            {"sha256": "0" * 64},
            "is not the file that was published: its SHA-256 is [0-9a-f]{64}, must be 0{64}; nothing is kept",
        ),
        ({"path": "/missing.onnx"}, "the server answers 404 Not Found; try again later"),
        ({"path": "/cut.onnx"}, r"the connection broke, [\d,]+ of [\d,]+ bytes are missing; try again"),
        ({"url": ""}, "cannot be fetched: .*refused; try again"),
    ],
)
def test_what_fails_is_one_line_and_leaves_nothing(tmp_path, net, monkeypatch, capsys, values, said):
    held = socket.socket()  # its port is nobody's: nothing listens there
    held.bind(("127.0.0.1", 0))
    if "url" in values:
        values = {"url": f"http://127.0.0.1:{held.getsockname()[1]}/small.onnx"}
    elif "path" in values:
        values = {"url": PUBLISHED["small"].url.replace("/small.onnx", values["path"])}
    change(monkeypatch, **values)
    assert cli.main(["weights", "get", "small", "--output", "new/small"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"ERROR {re.escape(PUBLISHED['small'].url)}: {said}\n", error), error
    assert list((tmp_path / "new").iterdir()) == []
    held.close()


def test_no_room_is_one_line_and_leaves_nothing(tmp_path, net, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("plsc.utils.disk.free_bytes", lambda folder: 1000)
        with pytest.raises(
            UserError, match="no space for http.*; free some space, or name another folder with --output"
        ):
            weights.get("small", "new/small")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hashlib, "sha256", lambda: type("Full", (), {"update": full})())
    with pytest.raises(UserError, match="small.onnx: cannot be written: No space left on device$"):
        weights.get("small", "new/small")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_there_is_not_replaced_and_names_are_known(tmp_path, net):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("")
    with pytest.raises(
        UserError, match="mine: is there already; remove it, or name a new folder with --output"
    ):
        weights.get("small", "mine")
    with pytest.raises(
        UserError,
        match="w600k_r5: is no published network that is known, did you mean 'w600k_r50'.*list has them",
    ):
        weights.get("w600k_r5")


def test_the_table(capsys):
    assert cli.main(["weights", "list"]) == 0
    said = capsys.readouterr().out
    for name, row in PUBLISHED.items():
        assert re.fullmatch("[0-9a-f]{64}", row.sha256) and row.url.startswith("https://") and row.licence
        assert row.network in ("IResNet50", "IResNet100") and row.url in said and row.sha256 in said
        assert re.search(rf"^{name} +{row.network} +{row.trained_on} .*{row.licence}$", said, re.MULTILINE)
