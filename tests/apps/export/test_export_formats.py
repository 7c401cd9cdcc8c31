"""Exports for other packages and in 8 bits: what those packages look for is there, and gives our embeddings.

`insightface` and `paddlex` are tried where they are installed. What is known of their code is written again
here, so that their part is also tried without them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import types
from dataclasses import replace

import cv2
import numpy as np
import paddle
import pytest
import yaml
from paddle import nn

from plsc.apps.export import export, graphs
from plsc.apps.export.graphs import open_graph
from plsc.apps.export.int8 import Int8Data, Judged
from plsc.apps.export.kit import KitPictures, check
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.utils.calibration import Calibration
from tests.helpers.bounds import assert_within, of_network

SHAPE = (3, 112, 112)
PREPROCESSING = Preprocessing.of_images(SHAPE)
NEEDED = ("paddle2onnx", "onnx", "onnxruntime", "ml_dtypes")
CAN_ONNX = all(importlib.util.find_spec(name) for name in NEEDED) and not paddle.__version__.startswith("2.")
needs_onnx = pytest.mark.skipif(not CAN_ONNX, reason=f"needs Paddle 3 and {', '.join(NEEDED)}")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), np.uint8)
BESIDE = {"README.txt", "preprocessing.json"}
KIT = KitPictures(PIXELS, np.empty((0, 3), int), "noise")
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
    facts = {"threshold": 0.3, "threshold_set": "people", "threshold_step": 5, "network": "abc", "flip": True}
    export(net, out, preprocessing=PREPROCESSING, formats=FORMATS, kit=KIT, **facts)
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


def test_insightface_itself(made):
    insightface = pytest.importorskip("insightface", reason="insightface is not installed")
    net, out = made
    model = insightface.model_zoo.get_model(str(out / "insightface" / "model.onnx"))
    assert (model.taskname, model.input_mean, model.input_std) == ("recognition", 0, 1)
    assert_within(model.get_feat(pictures(PIXELS)), *embeddings_of(net, PIXELS))


def test_paddlex_normalises_neither_pixels_nor_embeddings(made):
    net, out = made
    model = LikePaddleX("ResNet50_face", out / "paddlex")
    found = np.concatenate([next(model.predict(picture))["feature"] for picture in pictures(PIXELS)])
    assert_within(found, *embeddings_of(net, PIXELS))


def test_paddlex_itself(made):
    paddlex = pytest.importorskip("paddlex", reason="paddlex is not installed")
    net, out = made
    model = paddlex.create_model("ResNet50_face", model_dir=str(out / "paddlex"))
    found = [np.ravel(next(iter(model.predict(picture)))["feature"]) for picture in pictures(PIXELS)]
    assert_within(found, *embeddings_of(net, PIXELS))


@pytest.mark.parametrize("kind", ["insightface", "paddlex"])
def test_each_folder_can_be_taken_away_with_the_kit(made, tmp_path, monkeypatch, capsys, kind):
    """The code of its README.txt runs in a copy, compares by the threshold, and the kit notices exchanged
    channels."""
    if kind not in FORMATS:
        pytest.skip("no ONNX export here")
    out = made[1]
    card = json.loads((out / kind / "preprocessing.json").read_text())
    assert {path.name for path in (out / kind).iterdir()} == BESIDE | set(card["files"][kind]["files"])
    assert (card["threshold"], card["network"]) == (0.3, "abc") and max(
        check["max_difference"] for check in card["checks"]
    ) <= graphs.TOLERANCE
    text = (out / kind / "README.txt").read_text()
    assert "0.3000" in text and "people" in text and "mirror image" in text
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (out / kind).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    code = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    monkeypatch.chdir(copy)
    zoo = types.SimpleNamespace(get_model=LikeInsightface)
    monkeypatch.setitem(sys.modules, "insightface", types.SimpleNamespace(model_zoo=zoo))
    make = types.SimpleNamespace(create_model=lambda name, model_dir: LikePaddleX(name, copy))
    monkeypatch.setitem(sys.modules, "paddlex", make)
    shutil.copytree(out / "kit", tmp_path / "kit")
    exec(code, {})
    assert capsys.readouterr().out.split()[1] in ("same", "different")
    assert check.main(["../kit/mine.npy"], tmp_path / "kit") == 0
    exec(code.replace("cv2.imread(name)", "cv2.imread(name)[..., ::-1]"), {})
    assert check.main(["../kit/mine.npy"], tmp_path / "kit") == 1
    assert "fault: colour order: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["paddle", "onnx"])
def test_the_code_of_the_readme_says_how_probable_it_is_that_two_are_the_same(
    tmp_path, monkeypatch, capsys, kind
):
    if kind not in FORMATS:
        pytest.skip("no ONNX export here")
    points = {"cosine": [-0.5, 0.9], "log_odds": [-6.0, 6.0]}
    meaning = Calibration(method="by hand", set="people", step=5, pairs=9, prior=0.5, **points)
    net, out = trained(), tmp_path / "out"
    facts = {
        "threshold": 0.3,
        "threshold_set": "people",
        "threshold_step": 5,
        "calibration": meaning,
        "kit": KIT,
    }
    export(net, out, preprocessing=PREPROCESSING, formats=[kind], flip=True, **facts)
    monkeypatch.chdir(out)
    text = (out / "README.txt").read_text()
    exec("\n".join(line[4:] for line in text.splitlines() if line.startswith("    ")), {})
    cosine, *verdict, word, probability = capsys.readouterr().out.split()
    images = PIXELS[:2]

    def cosine_of(found):
        one, other = unit(unit(found[:2]) + unit(found[2:]))  # each with its mirror image
        return one @ other

    expected, bound = embeddings_of(net, np.concatenate([images, images[..., ::-1]]), cosine_of)
    assert_within(float(cosine), expected, bound)
    assert verdict[0] == ("same" if expected > 0.3 else "different") and word == "P(same)"
    low, high = meaning.probability(expected - bound), meaning.probability(expected + bound)
    assert low <= float(probability) <= high


def test_the_card_of_the_whole_lists_every_file(made):
    out = made[1]
    card = json.loads((out / "preprocessing.json").read_text())
    listed = {name for names in card["files"].values() for name in names["files"]}
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    there = {name for name in there if not name.startswith("kit/")}
    assert there == listed | BESIDE and list(card["files"]) == FORMATS
    assert len(card["checks"]) == 2 * len(FORMATS)
    for kind, names in card["files"].items():
        assert np.isfinite(open_graph(out, names)(PIXELS[:1].astype(np.float32))).all(), kind


def test_a_folder_of_a_format_is_replaced_but_not_with_files_of_others(tmp_path):
    out = tmp_path / "out"
    export(Net(), out, preprocessing=PREPROCESSING, formats=["paddlex"])
    assert {path.name for path in out.iterdir()} == BESIDE | {"paddlex"}
    export(Net(), out, preprocessing=PREPROCESSING, formats=["paddle"])
    assert not (out / "paddlex").exists()
    (out / "paddlex").mkdir()
    (out / "paddlex" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"out: holds other files \(paddlex/thesis.tex\)"):
        export(Net(), out, preprocessing=PREPROCESSING, formats=["paddle"])
    assert (out / "paddlex" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    "kind, preprocessing, got",
    [
        ("insightface", Preprocessing.of_images((1, 112, 112)), r"grey \[1, 112, 112\]"),
        ("insightface", Preprocessing.of_images((3, 96, 96)), r"RGB \[3, 96, 96\]"),
        ("insightface", Preprocessing.of_images((3, 112, 96)), r"RGB \[3, 112, 96\]"),
        ("insightface", Preprocessing.of_images((3, 192, 192)), r"RGB \[3, 192, 192\]"),
        ("insightface", replace(PREPROCESSING, channels="BGR"), r"BGR \[3, 112, 112\]"),
        ("paddlex", Preprocessing.of_images((1, 32, 32)), r"grey \[1, 32, 32\]"),
        ("paddlex", Preprocessing((20, 12), "float32"), r"float32 \[20, 12\]"),
    ],
)
def test_pictures_that_a_package_does_not_take_are_refused_at_once(
    tmp_path, monkeypatch, kind, preprocessing, got
):
    monkeypatch.setattr("plsc.apps.export.check_packages", lambda formats: None)
    with pytest.raises(UserError, match=f"^Export.formats: {kind} takes RGB .*{got}: leave {kind} out$"):
        export(Net(), tmp_path / "out", preprocessing=preprocessing, formats=["paddle", kind])
    assert not list(tmp_path.iterdir())


# ---- 8 bits


def int8(judge):
    return lambda: Int8Data(PIXELS, judge, "people", flip=False, step=7)


@needs_onnx
def test_8_bits_are_close_a_quarter_as_large_and_another_network(tmp_path, capsys):
    seen = []

    def judge(embed):
        seen.append(embed(PIXELS))
        return Judged(0.9 - 0.004 * (len(seen) - 1), 0.2)

    net, out = trained(), tmp_path / "out"
    formats = ["onnx", "onnx_int8"]
    facts = {"network": "abc", "int8": int8(judge), "kit": KIT}
    report = export(net, out, preprocessing=PREPROCESSING, formats=formats, **facts)
    floating, rounded = seen
    assert_within(floating, *embeddings_of(net, PIXELS))
    assert np.sum(floating * rounded, axis=1).min() > 0.99 and np.abs(floating - rounded).max() > 1e-4
    sizes = [(out / folder / "model.onnx").stat().st_size for folder in ("", "onnx_int8")]
    assert sizes[1] < 0.5 * sizes[0]
    card = json.loads((out / "onnx_int8" / "preprocessing.json").read_text())
    assert card["network"] != "abc" and card["network"] == report["files"]["onnx_int8"]["network"]
    assert (card["threshold"], card["threshold_set"], card["threshold_step"]) == (0.2, "people", 7)
    assert card["int8"]["pictures"] == 6 and card["int8"]["accuracy"] == pytest.approx(0.896)
    assert (
        "accuracy 89.60 %, in float32 90.00 %, on people." in (out / "onnx_int8" / "README.txt").read_text()
    )
    assert "in float32" not in (out / "README.txt").read_text()
    assert {path.name for path in (out / "onnx_int8").iterdir()} == BESIDE | {"model.onnx"}
    # To who has this folder alone it is an ONNX graph like another.
    again = open_graph(out / "onnx_int8", card["files"]["onnx"])(PIXELS.astype(np.float32))
    np.testing.assert_array_equal(again, rounded)

    np.save(out / "kit" / "mine.npy", again)
    assert check.main([str(out / "kit" / "mine.npy")], out / "kit") == 0
    assert "pass: as in 8 bits" in capsys.readouterr().out


@needs_onnx
def test_8_bits_that_lose_more_than_half_a_point_are_refused_and_the_older_export_stays(tmp_path):
    out = tmp_path / "out"
    export(trained(), out, preprocessing=PREPROCESSING, formats=["paddle"])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    judged = iter([Judged(0.9, 0.2), Judged(0.894, 0.2)])
    with pytest.raises(UserError) as error:
        export(
            *(trained(), out),
            preprocessing=PREPROCESSING,
            formats=["onnx", "onnx_int8"],
            int8=int8(lambda embed: next(judged)),
        )
    assert str(error.value) == (
        "Export.formats: onnx_int8: accuracy 89.40 % on people, in float32 90.00 %; more than 0.5 points are lost: "
        "leave onnx_int8 out, or try more Export.int8_pictures (here 6) or a larger main set"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@needs_onnx
def test_a_backbone_that_cannot_be_quantized_is_refused_in_one_line(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("Traceback\n  no such operator")

    monkeypatch.setattr("onnxruntime.quantization.quantize_static", fail)
    message = "^Export.formats: onnx_int8: ONNX Runtime cannot quantize this backbone: no such operator$"
    with pytest.raises(UserError, match=message):
        export(
            trained(), tmp_path / "out", preprocessing=PREPROCESSING, formats=["onnx_int8"], int8=int8(None)
        )
    assert not list(tmp_path.iterdir())
