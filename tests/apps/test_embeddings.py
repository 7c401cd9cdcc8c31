"""One picture has one embedding, whichever command computes it."""

import importlib.util

import numpy as np
import paddle
import pytest

from plsc.apps.export.graphs import TOLERANCE, run_graph
from plsc.apps.gallery.embed import open_network
from plsc.data.synthetic import Synthetic
from plsc.entry import Entry
from tests.helpers.tiny_runs import TINY

CAN_ONNX = paddle.__version__.startswith("3") and all(
    importlib.util.find_spec(name) for name in ("paddle2onnx", "onnx", "onnxruntime")
)

LETTERS = {
    f"DataLoader.{part}.dataset": {
        "name": "tests.apps.test_embeddings:Letters",
        "num_classes": 23,
        "images_per_class": 5,
        "image_shape": [1, 12, 10],
    }
    for part in ("Train", "Eval")
}


class Letters(Synthetic):
    """Samples that are no pictures: four letters, 0 to 3."""

    mean, scale = 0, 1

    def sample(self, index, epoch):
        return super().sample(index, epoch) // 64


def trained(folder, **keys):
    Entry(TINY, {"Global.output_dir": str(folder), "Global.max_steps": 4, **keys}).train()
    return str(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("flip", [False, True])
def test_predict_a_gallery_and_the_export_embed_alike(run, tmp_path, flip):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 1, 12, 10), np.uint8)
    pixels[..., :5] //= 4  # lopsided, so that the outputs for a picture and its mirror image differ in length
    pixels[0] = 1  # black
    keys = {"DataLoader.Eval.flip": flip, "Export.formats": ["paddle", "onnx"] if CAN_ONNX else ["paddle"]}
    predicted, _ = Entry(run, keys).predict(pixels, tmp_path / "predict")
    network = open_network(config=run, overrides=[f"DataLoader.Eval.flip={str(flip).lower()}"])
    assert not predicted[0].any() and np.array_equal(network.embed([*pixels]), predicted)
    card = Entry(run, keys).export(tmp_path / "export")
    for kind, names in card["files"].items():
        exported = run_graph(tmp_path / "export", names, pixels.astype(np.float32))
        np.testing.assert_allclose(exported, predicted, rtol=0, atol=TOLERANCE, err_msg=kind)
    assert network.identity == card["network"] and network.pair_threshold == card["threshold"]
    assert (network.pair_threshold is None) == flip, "it is that of embeddings without mirror images"


def test_samples_that_are_no_pictures_have_embeddings(tmp_path, capsys):
    run = trained(tmp_path / "run", **LETTERS)
    assert "WARNING" not in capsys.readouterr().out
    pixels = np.random.default_rng(0).integers(0, 4, (5, 1, 12, 10), np.uint8)
    predicted, _ = Entry(run).predict(pixels)
    assert predicted.any(axis=1).all()
    formats = ["paddle", "onnx"] if CAN_ONNX else ["paddle"]
    card = Entry(run, {"Export.formats": formats}).export(tmp_path / "export")
    for kind, names in card["files"].items():
        exported = run_graph(tmp_path / "export", names, pixels.astype(np.float32))
        np.testing.assert_allclose(exported, predicted, rtol=0, atol=TOLERANCE, err_msg=kind)


def test_samples_that_look_like_black_pictures_are_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Letters, "mean", 1)
    trained(tmp_path / "run", **LETTERS)
    said = capsys.readouterr().out
    what = (
        "Letters: the embeddings of 115 of 115 images are zero, since they have no pixel above 3; if the data"
    )
    assert said.count(what) == 1 and "alike" not in said
