"""Export: the files alone, run by the other engines, give what the training graph gives."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from dataclasses import replace
from unittest.mock import Mock

import cv2
import numpy as np
import paddle
import pytest
from paddle import inference, nn

import plsc
from plsc.apps.export import export, graphs
from plsc.apps.export.onnx_graph import OPSET, why_no_onnx
from plsc.evaluation.search import unit_rows
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.bounds import assert_within, of_network
from tests.helpers.refusals import refusal

SHAPE = (3, 16, 12)
PREPROCESSING = Preprocessing(SHAPE)
MISSING = [name for name in ("paddle2onnx", "onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(MISSING) or paddle.__version__.startswith("2."),
    reason=f"ONNX export needs Paddle 3 (this is {paddle.__version__}) and paddle2onnx, onnx, onnxruntime",
)


class Net(nn.Layer):
    """Every kind of layer that face backbones end in: PReLU, flatten, dropout, batch norm over vectors."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2D(8)
        self.slope = nn.PReLU(8)
        self.embed = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.4), nn.Linear(8 * 8 * 6, 16), nn.BatchNorm1D(16)
        )

    def embedding(self, images):
        return self.embed(self.slope(self.norm(self.conv(images))))

    def forward(self, images):
        return self.embedding(images)


def trained(net):
    """In train mode except for a frozen layer. The batch norm statistics differ from the initial ones."""
    paddle.seed(0)
    for _ in range(3):
        net(paddle.randn([8, *SHAPE]) * 2 + 0.5)
    net.train()
    net.norm.eval()
    return net


def expected_of(net, pixels):
    """Embeddings of length 1, the obvious way, and how far float32 may lie from them."""
    unit = lambda embeddings: np.stack([row / np.linalg.norm(row) for row in embeddings])
    return of_network(net, (pixels.astype(np.float64) - 127.5) / 127.5, unit, terms=384)


def pixels_of(batch):
    return np.random.default_rng(batch).integers(0, 256, (batch, *SHAPE)).astype(np.float32)


def run_paddle(folder, pixels):
    names = json.loads((folder / "preprocessing.json").read_text())["files"]["paddle"]
    config = inference.Config(str(folder / names["model"]), str(folder / names["params"]))
    predictor = inference.create_predictor(config)
    predictor.get_input_handle(names["input"]).copy_from_cpu(pixels)
    predictor.run()
    return predictor.get_output_handle(names["output"]).copy_to_cpu()


def test_paddle_inference_agrees_at_batches_that_were_not_checked(tmp_path):
    net = trained(Net())
    report = export(net, tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    assert [(check["format"], check["batch"]) for check in report["checks"]] == [("paddle", 1), ("paddle", 8)]
    assert all(check["max_difference"] <= graphs.TOLERANCE for check in report["checks"])
    for batch in (2, 5):
        got = run_paddle(tmp_path / "out", pixels_of(batch))
        assert_within(got, *expected_of(net, pixels_of(batch)))


@needs_onnx
def test_onnx_agrees_names_are_plain_and_the_batch_is_open(tmp_path):
    import onnx
    import onnxruntime

    net = trained(Net())
    report = export(net, tmp_path / "out", preprocessing=PREPROCESSING)
    assert (
        len(report["checks"]) == 4
        and max(check["max_difference"] for check in report["checks"]) <= graphs.TOLERANCE
    )
    model = onnx.load(tmp_path / "out" / "model.onnx")
    graph = model.graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["image", "embedding"]
    shapes = [
        [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    ]
    assert shapes == [["batch", *SHAPE], ["batch", 16]]
    assert next(entry.version for entry in model.opset_import if not entry.domain) == OPSET
    used = {name for node in graph.node for name in node.input} | {"embedding"}
    assert all(
        used.intersection(node.output) for node in graph.node
    )  # ONNX Runtime warns of each that is not used
    session = onnxruntime.InferenceSession(
        tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    for batch in (2, 5):
        (got,) = session.run(["embedding"], {"image": pixels_of(batch)})
        assert_within(got, *expected_of(net, pixels_of(batch)))


def stub(folder, monkeypatch, body):
    """Put a paddle2onnx with one function in front of the installed one, here and in processes started
    here."""
    folder.mkdir()
    (folder / "paddle2onnx.py").write_text(f"import os, sys\ndef export(*_, **__):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.parametrize(
    "body, how",
    [
        ("sys.exit(-1)", "paddle2onnx ended with exit code 255"),
        ("os.kill(os.getpid(), 9)", "paddle2onnx was ended by SIGKILL"),
        (
            "raise ValueError('no such layer')",
            "paddle2onnx ended with exit code 1: ValueError: no such layer",
        ),
        ("return b''", "paddle2onnx wrote no valid graph ("),
    ],
)
@needs_onnx
def test_a_converter_that_ends_its_process_affects_only_its_own_format(tmp_path, monkeypatch, body, how):
    stub(tmp_path / "stub", monkeypatch, body)
    out = tmp_path / "out"
    net = nn.Sequential(Net(), nn.Linear(16, 16), nn.Softsign(), nn.Hardtanh())
    said = refusal(export, net, out, preprocessing=PREPROCESSING, formats=["paddle", "onnx", "paddlex"])
    assert said.startswith(f"Export.formats: no ONNX graph: {how}")
    layers = "it is not known whether paddle2onnx converts Hardtanh, Softsign correctly"
    assert said.endswith(f"; {layers}; paddle, paddlex written to {out}")
    card = json.loads((out / "preprocessing.json").read_text())
    assert [*card["files"]] == ["paddle", "paddlex"] and len(card["checks"]) == 4
    assert not (out / "model.onnx").exists() and run_paddle(out, pixels_of(2)).shape == (2, 16)
    said = refusal(export, net, tmp_path / "alone", preprocessing=PREPROCESSING, formats=["onnx"])
    assert said.endswith("; nothing was written") and not (tmp_path / "alone").exists()


@needs_onnx
def test_an_onnx_graph_of_other_numbers_affects_only_its_own_format(tmp_path):
    class Cut(Net):
        def __init__(self):
            super().__init__()
            self.cut = nn.Hardtanh(-0.3, 0.4)  # paddle2onnx 2.1 cuts at -1 and 1

        def forward(self, images):
            return self.cut(self.embedding(images))

    said = refusal(export, trained(Cut()), tmp_path / "out", preprocessing=PREPROCESSING)
    assert "no ONNX graph: " in said and "the onnx graph of this backbone, at batch 1, differs from" in said
    assert "converts Hardtanh correctly; paddle written to" in said
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".pdiparams", ".txt"}


def test_preprocessing_json(tmp_path):
    report = export(
        trained(Net()),
        tmp_path / "out",
        preprocessing=PREPROCESSING,
        formats=["paddle"],
        flip=True,
        threshold=0.31,
    )
    card = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert {**card, "folder": str(tmp_path / "out")} == report
    assert {key: card["preprocessing"][key] for key in ("size", "channels")} == {
        "size": [16, 12],
        "channels": "RGB",
    }
    assert "INTER_AREA" in card["preprocessing"]["resize"] and "mean" not in card["preprocessing"]
    inside = card["inside_the_graph"]
    assert (inside["mean"], inside["scale"]) == (PREPROCESSING.mean, PREPROCESSING.scale)
    assert (card["threshold"], inside["mirror"]) == (0.31, True)
    assert card["embedding_size"] == 16
    assert card["plsc"] == plsc.__version__ and card["paddle"] == paddle.__version__
    values = "raw pixels 0..255; normalisation is inside the graph"
    assert card["input"] == {"dtype": "float32", "shape": ["batch", *SHAPE], "values": values}
    assert card["output"] == {"dtype": "float32", "shape": ["batch", 16], "normalised": True}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "preprocessing.json",
        "README.txt",
        *card["files"]["paddle"]["files"],
    }


class GreyNet(Net):
    """Takes one channel."""

    def forward(self, images):
        return self.embedding(paddle.concat([images] * 3, axis=1))


@pytest.mark.parametrize("channels", ["RGB", "BGR", "grey"])
@needs_onnx
def test_the_code_of_the_readme_embeds_two_pictures(tmp_path, monkeypatch, channels):
    shape = (1 if channels == "grey" else 3, *SHAPE[1:])
    preprocessing = replace(PREPROCESSING, aligned=True, channels=channels, shape=shape)
    net = GreyNet() if channels == "grey" else trained(Net())
    card = export(net, tmp_path / "out", preprocessing=preprocessing, formats=["onnx"])
    assert card["preprocessing"]["aligned"] is True
    monkeypatch.chdir(tmp_path / "out")
    pixels = pixels_of(2)[:, : shape[0]]
    for name, image in zip(("a.png", "b.png"), pixels):
        cv2.imwrite(name, (image[::-1] if channels == "RGB" else image).transpose(1, 2, 0))
    text = (tmp_path / "out" / "README.txt").read_text()
    assert f"float32 [batch, {shape[0]}, 16, 12], raw pixels 0 to 255, {channels}." in text
    assert "Paddle" not in text.partition("ONNX Runtime")[2]  # nothing about what was not written
    names = {}
    exec("\n".join(line[4:] for line in text.splitlines() if line.startswith("    ")), names)
    net.eval()
    expected = unit_rows(net(preprocessing(paddle.to_tensor(pixels))).numpy())
    np.testing.assert_allclose(np.stack([names["a"], names["b"]]), expected, atol=graphs.TOLERANCE)


@pytest.mark.parametrize("mean, deviation", [(127.5, 127.5), (0, 255)])
def test_pixels_that_were_normalised_before_resemble_nothing(tmp_path, mean, deviation):
    """Otherwise all embeddings would be alike, and every pair would be accepted. Raw pixels beside them do
    not change."""
    export(trained(Net()), tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    pixels = pixels_of(4)
    mixed = pixels.copy()
    mixed[1:3] = (pixels[1:3] - mean) / deviation
    found = run_paddle(tmp_path / "out", mixed)
    np.testing.assert_array_equal(found[1:3], 0)
    np.testing.assert_array_equal(found[::3], run_paddle(tmp_path / "out", pixels)[::3])


def test_lengths_in_the_graph_have_the_rule_of_all(tmp_path):
    """Zeros stay zeros, an overflow is NaN, small ones are not bent."""

    class Lengths(nn.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.create_parameter([2], default_initializer=nn.initializer.Assign([0.0, 0.6]))

        def forward(self, images):
            return paddle.flatten(images, 1)[:, :2] * self.scale

    factor = np.array([0, 1e-18, 1, 1e18, 1e22], np.float32)
    preprocessing = replace(PREPROCESSING, mean=0.0, scale=1.0)
    export(Lengths(), tmp_path / "out", preprocessing=preprocessing, formats=["paddle"])
    pixels = np.full((5, *SHAPE), 100.0, np.float32)
    pixels[:, 0, 0, :2] = factor[:, None]
    found = run_paddle(tmp_path / "out", pixels)
    np.testing.assert_allclose(found[:, 1], [0, 1, 1, 1, np.nan], rtol=1e-6)


def test_the_model_stays_as_it_was(tmp_path):
    net = trained(Net())
    values = {name: value.numpy() for name, value in net.state_dict().items()}
    export(net, tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    assert net.training and not net.norm.training
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), values[name])
    net(paddle.randn([4, *SHAPE])).sum().backward()  # still trains
    assert float(net.conv.weight.grad.abs().sum()) > 0


def test_a_user_without_a_home_that_can_be_written_exports(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null")
    export(trained(Net()), tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    assert os.environ["HOME"] == "/dev/null" and (tmp_path / "out/inference.pdiparams").exists()


def test_an_embedding_of_zeros_stays_zeros(tmp_path):
    net = Net()
    net.embed[3].weight.set_value(paddle.zeros([16]))
    export(net, tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    np.testing.assert_array_equal(run_paddle(tmp_path / "out", pixels_of(2)), np.zeros((2, 16)))


class OtherInStaticMode(Net):
    def forward(self, images):
        return self.embedding(images) + (0.0 if paddle.in_dynamic_mode() else 5.0)


class NotANumber(Net):
    def __init__(self):
        super().__init__()
        self.conv.bias.set_value(paddle.full([8], float("nan")))


class OneByOne(Net):
    """Right in the training graph at any batch, but its static graph is made for one size."""

    def forward(self, images):
        batch = images.shape[0] if paddle.in_dynamic_mode() else 1
        return self.embedding(images.reshape([batch, *SHAPE]))


class NoGraph(Net):
    def forward(self, images):
        return self.embedding(images) * float(np.asarray(images).std() > 0)


class Tokens(nn.Layer):
    """Embeds a pixel as the number of a token. Numbers from 200 on do not exist."""

    def __init__(self):
        super().__init__()
        self.conv = self.norm = nn.BatchNorm2D(3)
        self.token = nn.Embedding(200, 4)

    def forward(self, images):
        return self.token(images[:, 0, 0, :2].clip(0).astype("int64")).flatten(1)


@pytest.mark.parametrize(
    "net, message",
    [
        (
            Tokens,
            (
                r"^Export: the network fails on random pixels .*: ValueError in embedding, .* expected >= 0 "
                r"and < 200, but got .*; change its forward .*ids.clip\(0, count - 1\) before an Embedding$"
            ),
        ),
        (
            OtherInStaticMode,
            r"at batch 1, differs from the training graph by [0-9.]+; at most 0.0001 is allowed",
        ),
        (NotANumber, "at batch 1, differs from the training graph by nan; at most 0.0001 is allowed"),
        (OneByOne, "the paddle graph of this backbone, at batch 8, does not run: ."),
        (NoGraph, "^Export: this backbone cannot be saved as one static graph: ."),
    ],
)
def test_a_graph_that_differs_is_refused_and_the_older_export_stays(tmp_path, net, message):
    export(trained(Net()), tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle"])
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    wrong = trained(net())
    raw = replace(PREPROCESSING, mean=0.0, scale=1.0)
    said = refusal(export, wrong, tmp_path / "out", preprocessing=raw, formats=["paddle"])
    assert re.search(message, said)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert wrong.training


def test_where_there_is_no_converter_onnx_is_skipped_with_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("plsc.apps.export.why_no_onnx", lambda: "needs a converter")
    card = export(Net(), tmp_path / "out", preprocessing=PREPROCESSING, formats=["paddle", "onnx"])
    assert [*card["files"]] == ["paddle"]
    assert [record.getMessage() for record in caplog.records] == [
        "Export.formats: onnx skipped: ONNX needs a converter"
    ]
    assert refusal(
        export, Net(), tmp_path / "deep" / "out", preprocessing=PREPROCESSING, formats=["onnx"]
    ) == ("Export.formats: onnx needs a converter; or set Export.formats=[paddle]")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_why_there_is_no_converter(monkeypatch):
    monkeypatch.setattr(paddle, "__version__", "3.3.1")
    monkeypatch.setattr(sys, "version_info", (3, 12))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name != "onnx" else True)
    clone = "pip install -e '.[export]' in the clone of plsc"
    assert why_no_onnx() == f"needs paddle2onnx, onnxruntime: {clone}"
    monkeypatch.setattr(sys, "version_info", Mock(major=3, minor=13, __ge__=lambda self, other: True))
    assert "does not exist for Python 3.13; use Python 3.10, 3.11 or 3.12" in why_no_onnx()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    assert why_no_onnx() is None
    monkeypatch.setattr(paddle, "__version__", "2.6.2")
    assert why_no_onnx() == "needs Paddle 3 (this is 2.6.2)"


def test_an_earlier_export_is_replaced_whole_and_other_folders_are_not(tmp_path):
    out = tmp_path / "out"
    export(Net(), out, preprocessing=PREPROCESSING, formats=["paddlex"])
    assert (out / "paddlex").is_dir()
    export(Net(), out, preprocessing=PREPROCESSING, formats=["paddle"])
    assert not (out / "paddlex").exists()
    (tmp_path / "thesis.tex").write_text("years of work")
    (out / "notes.txt").write_text("beside an export")
    for place in (tmp_path, tmp_path / "thesis.tex", out):
        assert "contains files that no export wrote; name a new or empty folder" in refusal(
            export, Net(), place, preprocessing=PREPROCESSING, formats=["paddle"]
        )
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "export").symlink_to(tmp_path / "disk")
    for _ in range(2):
        export(Net(), tmp_path / "export", preprocessing=PREPROCESSING, formats=["paddle"])
        assert (tmp_path / "export").is_symlink() and (tmp_path / "disk" / "preprocessing.json").exists()
