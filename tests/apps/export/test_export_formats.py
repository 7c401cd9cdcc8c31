"""Exports for other packages: what those packages look for is there, and gives our embeddings.

What is known of their code is written again here, so that their part is tried without them.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import cv2
import numpy as np
import paddle
import pytest
import yaml
from paddle import nn

from plsc.apps.export import export, graphs
from plsc.errors import UserError
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.bounds import assert_within, of_network

SHAPE = (3, 112, 112)
PREPROCESSING = Preprocessing(SHAPE)
NEEDED = ("paddle2onnx", "onnx", "onnxruntime")
CAN_ONNX = all(importlib.util.find_spec(name) for name in NEEDED) and not paddle.__version__.startswith("2.")
needs_onnx = pytest.mark.skipif(not CAN_ONNX, reason=f"needs Paddle 3 and {', '.join(NEEDED)}")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), np.uint8)
BESIDE = {"README.txt", "preprocessing.json"}
FORMATS = ["paddle", "onnx", "insightface", "paddlex"] if CAN_ONNX else ["paddle", "paddlex"]


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 16, stride=16)
        self.norm = nn.BatchNorm2D(8)
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(8 * 7 * 7, 16))

    def forward(self, images):
        return self.embed(nn.functional.relu(self.norm(self.conv(images))))


def trained():
    paddle.seed(0)
    net = Net()
    for _ in range(3):
        net(paddle.randn([8, *SHAPE]))
    net.eval()
    return net


def unit(found):
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def embeddings_of(net, pixels, then=unit):
    """Compute them, or what `then` makes of them, and how far float32 may lie from that."""
    return of_network(net, (pixels - 127.5) / 127.5, then, terms=768)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The network, and the folder with its exports."""
    net, out = trained(), tmp_path_factory.mktemp("formats") / "out"
    export(net, out, preprocessing=PREPROCESSING, formats=FORMATS, threshold=0.3, network="abc")
    return net, out


def pictures(pixels):
    """Images [n, 3, H, W] of RGB as cv2.imread gives them."""
    return [np.ascontiguousarray(image[::-1].transpose(1, 2, 0)) for image in pixels]


class LikeInsightface:
    """insightface 2.1's ArcFaceONNX, by its rules."""

    def __init__(self, file):
        import onnx
        import onnxruntime

        first = [node.name for node in onnx.load(file).graph.node[:8]]
        itself = all(any(name.startswith(start) for name in first) for start in ("Sub", "Mul"))
        self.mean, self.std = (0.0, 1.0) if itself else (127.5, 127.5)
        self.session = onnxruntime.InferenceSession(file)
        (given,), (gives,) = self.session.get_inputs(), self.session.get_outputs()
        assert given.shape[2:] == [112, 112] and gives.shape[1] == 16

    def get_feat(self, picture):
        mean = (self.mean,) * 3
        blob = cv2.dnn.blobFromImages([picture], 1 / self.std, (112, 112), mean, swapRB=True)
        return self.session.run(None, {self.session.get_inputs()[0].name: blob})[0]


class LikePaddleX:
    """PaddleX 3.7's predictor of features, by its rules."""

    def __init__(self, name, model_dir):
        from paddle import inference

        self.config = yaml.safe_load((model_dir / "inference.yml").read_text())
        assert self.config["Global"]["model_name"] == name and name in ("MobileFaceNet", "ResNet50_face")
        (program,) = [path for path in model_dir.iterdir() if path.name in PROGRAMS]
        files = str(program), str(model_dir / "inference.pdiparams")
        self.predictor = inference.create_predictor(inference.Config(*files))

    def predict(self, picture):
        steps = {
            name: given for step in self.config["PreProcess"]["transform_ops"] for name, given in step.items()
        }
        assert list(steps) == ["ResizeImage", "NormalizeImage", "ToCHWImage"]
        normalise = steps["NormalizeImage"]
        picture = cv2.resize(picture[..., ::-1], tuple(steps["ResizeImage"]["size"])).astype(np.float32)
        picture = picture * (normalise["scale"] / np.array(normalise["std"]))
        picture = picture - np.array(normalise["mean"]) / np.array(normalise["std"])
        (name,) = self.predictor.get_input_names()
        given = np.ascontiguousarray(picture.transpose(2, 0, 1)[None], np.float32)
        self.predictor.get_input_handle(name).copy_from_cpu(given)
        self.predictor.run()
        features = self.predictor.get_output_handle(self.predictor.get_output_names()[0]).copy_to_cpu()
        assert list(self.config["PostProcess"]) == ["NormalizeFeatures"]
        yield {"feature": features / np.linalg.norm(features, axis=1, keepdims=True)}


PROGRAMS = ("inference.json", "inference.pdmodel")


@needs_onnx
def test_insightface_normalises_neither_pixels_nor_embeddings(made):
    net, out = made
    model = LikeInsightface(str(out / "insightface" / "model.onnx"))
    found = np.concatenate([model.get_feat(picture) for picture in pictures(PIXELS)])
    assert_within(found, *embeddings_of(net, PIXELS))
    plain = LikeInsightface(str(out / "model.onnx"))  # without the two names: normalised twice
    assert np.abs(plain.get_feat(pictures(PIXELS)[0]) - embeddings_of(net, PIXELS[:1])[0]).max() > 0.01


def test_paddlex_normalises_neither_pixels_nor_embeddings(made):
    net, out = made
    model = LikePaddleX("ResNet50_face", out / "paddlex")
    found = np.concatenate([next(model.predict(picture))["feature"] for picture in pictures(PIXELS)])
    assert_within(found, *embeddings_of(net, PIXELS))


def test_the_card_of_the_whole_lists_every_file(made):
    out = made[1]
    card = json.loads((out / "preprocessing.json").read_text())
    listed = {name for names in card["files"].values() for name in names["files"]}
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == listed | BESIDE and list(card["files"]) == FORMATS
    assert len(card["checks"]) == 2 * len(FORMATS)
    for kind, names in card["files"].items():
        assert np.isfinite(graphs.run_graph(out, names, PIXELS[:1].astype(np.float32))).all(), kind


@pytest.mark.parametrize(
    "kind, preprocessing, got",
    [
        ("insightface", Preprocessing((1, 112, 112)), r"grey \[1, 112, 112\]"),
        ("insightface", Preprocessing((3, 112, 96)), r"RGB \[3, 112, 96\]"),
        ("insightface", Preprocessing((3, 192, 192)), r"RGB \[3, 192, 192\]"),
        ("insightface", replace(PREPROCESSING, channels="BGR"), r"BGR \[3, 112, 112\]"),
        ("paddlex", Preprocessing((1, 32, 32)), r"grey \[1, 32, 32\]"),
    ],
)
def test_pictures_that_a_package_does_not_take_are_refused_at_once(
    tmp_path, monkeypatch, kind, preprocessing, got
):
    monkeypatch.setattr("plsc.apps.export.why_no_onnx", lambda: None)
    with pytest.raises(UserError, match=f"^Export.formats: {kind} takes RGB .*{got}: remove {kind}$"):
        export(Net(), tmp_path / "out", preprocessing=preprocessing, formats=["paddle", kind])
    assert not list(tmp_path.iterdir())
