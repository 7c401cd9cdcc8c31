"""ONNX files of other programs: how their pictures are prepared, and what is refused."""

import json
import re
from unittest.mock import Mock

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime", reason="the extra export is not installed")
from onnx import TensorProto, helper, numpy_helper

from plsc.apps.gallery.embed import _RunNetwork, open_network
from plsc.utils.logging import setup_logging
from tests.helpers.refusals import refusal

SIDE, LENGTH = 8, 16
PIXELS = 3 * SIDE * SIDE
WEIGHT = np.random.default_rng(0).standard_normal((PIXELS, LENGTH)).astype(np.float32)
FLOAT = TensorProto.FLOAT


def network(
    path, before=(), shape=("n", 3, SIDE, SIDE), dtype=FLOAT, weight=WEIGHT, after=(), outputs=("out",)
):
    """Write a network: nodes from "in" to "x", pixels times a weight, and nodes from "out" on."""
    constants = {"weight": weight, "mean": np.float32([127.5]), "scale": np.float32([1 / 127.5])}
    constants["shape"] = np.int64([0, weight.shape[0]])
    start = list(before) or [helper.make_node("Cast", ["in"], ["x"], to=FLOAT)]
    nodes = [
        *start,
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["out"]),
        *after,
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("in", dtype, shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


NORMALISE = [
    helper.make_node("Sub", ["in", "mean"], ["centred"]),
    helper.make_node("Mul", ["centred", "scale"], ["x"]),
]
LAST_TO_FIRST = [
    helper.make_node("Cast", ["in"], ["float"], to=FLOAT),
    helper.make_node("Transpose", ["float"], ["x"], perm=[0, 3, 1, 2]),
]


def test_a_file_of_plsc_warns_that_the_trained_people_are_unknown(tmp_path, capsys):
    """They would measure a rate of strangers that is too good. Another program's users know its people."""
    path = network(tmp_path / "net.onnx")
    setup_logging()
    assert open_network(path).trained_on() == frozenset() and "WARNING" not in capsys.readouterr().out
    model = onnx.load(path)
    card = {"preprocessing": {"channels": "RGB"}, "threshold": None, "network": "1"}
    helper.set_model_props(model, {"plsc": json.dumps(card)})
    onnx.save(model, path)
    assert open_network(path).trained_on() == frozenset()
    text = (
        "does not contain the trained classes' names, -c RUN knows them; if a gallery contains such classes, "
    )
    assert f"WARNING {path}: {text}its measured rates are too good\n" in capsys.readouterr().out


@pytest.mark.parametrize("names, text", [(None, "was trained on classes without names"), (["a/Ann"], "")])
def test_a_run_without_names_warns_that_the_trained_people_are_unknown(names, text, capsys):
    run = object.__new__(_RunNetwork)
    run.title, run._saved = "out", Mock(classes=lambda: names)
    setup_logging()
    assert run.trained_on() == frozenset(["Ann"] if names else [])
    assert text in capsys.readouterr().out if text else "WARNING" not in capsys.readouterr().out


@pytest.fixture
def samples():
    return np.random.default_rng(1).integers(0, 256, (5, 3, SIDE, SIDE)).astype(np.uint8)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"before": NORMALISE},
        {"shape": (1, 3, SIDE, SIDE)},
        {"shape": (2, 3, SIDE, SIDE)},
        {"dtype": TensorProto.FLOAT16},
        {"before": LAST_TO_FIRST, "shape": ("n", SIDE, SIDE, 3)},
        {"after": [helper.make_node("Exp", ["x"], ["other"])], "outputs": ("other", "out")},
    ],
    ids=[
        "plain",
        "normalises inside",
        "one at a time",
        "two at a time",
        "float16",
        "channels last",
        "outputs",
    ],
)
def test_pictures_are_prepared_as_the_file_wants(tmp_path, samples, form):
    opened = open_network(network(tmp_path / "a.onnx", **form))
    prepared = (samples.reshape(5, -1).astype(np.float64) - 127.5) / 127.5
    expected = prepared @ WEIGHT
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(opened.embed(samples), expected, atol=2e-3 if "dtype" in form else 1e-5)
    assert opened.finds_faces and opened.pair_threshold is None


def test_a_file_that_takes_bytes_gets_raw_pixels(tmp_path, samples):
    embeddings = open_network(network(tmp_path / "a.onnx", dtype=TensorProto.UINT8)).embed(samples)
    expected = samples.reshape(5, -1).astype(np.float64) @ WEIGHT
    np.testing.assert_allclose(
        embeddings, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
    )


BROKEN = np.where(np.arange(LENGTH) == 3, np.nan, WEIGHT).astype(np.float32)
ALIKE = np.tile(np.eye(1, LENGTH, dtype=np.float32), (PIXELS, 1))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"dtype": TensorProto.DOUBLE}, r"takes tensor\(double\) .* float32, float16 or uint8$"),
        (
            {"shape": ("n", 4, SIDE, SIDE)},
            r"takes .*, 4, 8, 8\]; a network for pictures has one input \[n, 3",
        ),
        ({"shape": ("n", PIXELS)}, r"has one input \[n, 3, H, W\]"),
        ({"weight": WEIGHT[:-3]}, "does not run on pictures of 8 x 8"),
        ({"weight": WEIGHT[:, :4]}, r"gives \[2, 4\] for two pictures"),
        (
            {"after": [helper.make_node("Exp", ["out"], ["b"])], "outputs": ("out", "b")},
            r"gives \[2, 16\], \[2",
        ),
        ({"weight": BROKEN}, "gives NaN or infinity"),
        ({"weight": 0 * WEIGHT}, "gives zeros for two pictures"),
        ({"weight": ALIKE, "dtype": TensorProto.UINT8}, "gives the same embedding for two pictures"),
    ],
)
def test_what_is_no_network_of_pictures_is_one_line(tmp_path, form, text):
    path = network(tmp_path / "a.onnx", **form)
    line = refusal(open_network, path)
    assert line.startswith(f"{path}: ") and "\n" not in line
    assert re.search(text, line), line
