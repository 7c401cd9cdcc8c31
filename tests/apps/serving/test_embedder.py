"""Embedders: a run's and its export's give what plsc predict gives, and say that they are the same
network."""

import contextlib
import importlib.util
import io
import json
import shutil

import numpy as np
import paddle
import pytest

from plsc.apps.serving import embedder as module
from plsc.apps.serving.embedder import from_export, from_origin, from_run
from plsc.checkpoint.store import Checkpoint
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training.thresholds import set_calibration, set_threshold, thresholds_of
from plsc.utils.files import sha256_of
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.tiny_runs import TINY

SHAPE = (1, 12, 10)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, *SHAPE), np.uint8)
CAN_ONNX = paddle.__version__.startswith("3") and all(
    importlib.util.find_spec(name) for name in ("paddle2onnx", "onnx", "onnxruntime")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a trained run and its export."""
    folder = tmp_path_factory.mktemp("run") / "output"
    formats = ["paddle", "onnx"] if CAN_ONNX else ["paddle"]
    with contextlib.redirect_stdout(io.StringIO()):
        entry = Entry(TINY, [f"Global.output_dir={folder}", f"Export.formats={formats}"])
        entry.train()
        entry.export()
    return folder


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "output")


def of(folder, *overrides):
    return from_run(folder / "config.yaml", [f"Global.output_dir={folder}", *overrides])


def test_of_a_run_it_embeds_as_predict_does(run):
    embedder = of(run)
    expected, _ = Entry(run / "config.yaml").predict(PIXELS)
    assert_within(expected, *rounded(embedder._network.backbone, lambda: embedder.embed(PIXELS)), paths=2)
    assert embedder.embed(PIXELS[:0]).shape == (0, embedder.embedding_size) == (0, 8)
    saved = Checkpoint.open(run / "checkpoints" / "step-00000012")
    assert (embedder.network, embedder.threshold) == (saved.network, thresholds_of(saved).threshold)
    assert embedder.described.endswith("output, step 12") and embedder.preprocessing.shape == SHAPE


@pytest.mark.parametrize("named", ["config.yaml", ""])
def test_a_run_that_was_set_aside_is_found_by_its_network(copied, tmp_path, named):
    embedder = from_run(copied / named)
    steps = copied / "checkpoints"
    again = [from_origin(embedder.origin, embedder.network).origin]
    aside = copied / "previous-1"
    aside.mkdir()
    for file in ("config.yaml", "metrics.jsonl", "checkpoints"):
        (copied / file).rename(aside / file)
    again.append(from_origin(embedder.origin, embedder.network).origin)
    shutil.copytree(aside / "checkpoints/step-00000010", steps / "step-00000012")  # of the later training
    shutil.copy(aside / "config.yaml", copied)
    again.append(from_origin(embedder.origin, embedder.network).origin)
    moved = aside / "checkpoints/step-00000012"
    assert [each["checkpoint"] for each in again] == [str(steps / "step-00000012"), str(moved), str(moved)]
    assert [each["config"] for each in again] == [str(copied / named).rstrip("/"), str(aside), str(aside)]
    shutil.rmtree(moved)
    with pytest.raises(UserError, match="output/checkpoints/step-00000012"):
        shutil.rmtree(steps)
        from_origin(embedder.origin, embedder.network)


@pytest.mark.parametrize("engine", ["paddle", "onnx"])
def test_an_export_is_the_same_network(run, engine, monkeypatch):
    if engine == "onnx" and not CAN_ONNX:
        pytest.skip("ONNX export needs Paddle 3 and the extra export")
    if engine == "paddle":
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    exported, original = from_export(run / "export"), of(run)
    for name in ("network", "threshold", "flip", "embedding_size", "preprocessing"):
        assert getattr(exported, name) == getattr(original, name), name
    many = np.random.default_rng(1).integers(0, 256, (70, *SHAPE), np.uint8)
    many[5] = 3  # black
    embeddings, bound = rounded(original._network.backbone, lambda: original.embed(many))
    assert_within(exported.embed(many), embeddings, bound, paths=2)
    assert embeddings.any(1).sum() == 69 and not embeddings[5].any()


def test_images_are_mirrored_as_for_the_threshold(copied):
    saved = Checkpoint.open(copied / "checkpoints" / "step-00000012")
    set_threshold(saved, 0.5, "others", flip=True)
    with contextlib.redirect_stdout(io.StringIO()):
        Entry(copied / "config.yaml", [f"Global.output_dir={copied}", "Export.formats=[paddle]"]).export()
    embedder = of(copied)
    want, bound = rounded(embedder._network.backbone, lambda: embedder.embed(PIXELS))
    assert embedder.flip
    assert_within(embedder.embed(PIXELS[..., ::-1].copy()), want, bound, paths=2)
    exported = from_export(copied / "export")
    assert exported.flip
    assert_within(exported.embed(PIXELS), want, bound, paths=2)


def test_the_identity_is_of_weights_and_preprocessing(copied):
    steps = [Checkpoint.open(copied / "checkpoints" / f"step-{step:08}") for step in (10, 12)]
    assert steps[0].network != steps[1].network and len(steps[1].network) == 64
    again = Checkpoint.open(steps[1].path)
    again.preprocessing = {**again.preprocessing, "mean": 0.0}
    assert again.network != steps[1].network


def test_other_samples_are_refused(run):
    with pytest.raises(
        UserError, match=r"samples must be uint8 \[n, 1, 12, 10\], got float32 \[5, 1, 12, 10\]"
    ):
        of(run).embed(PIXELS.astype(np.float32))


def spoil(copied, change):
    """Change the content of preprocessing.json by `change(card)`."""
    file = copied / "export" / "preprocessing.json"
    card = json.loads(file.read_text())
    change(card)
    file.write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card.pop("network"), "network: Field required; it is not as this plsc writes it"),
        (lambda card: card.pop("sha256"), "sha256: Field required.*export again"),
        (lambda card: card.update(threshold="high"), "threshold: Input should be a valid number"),
        (lambda card: card.update(threshold=True), "threshold: Input should be a valid number"),
        (lambda card: card.update(threshold=float("nan")), "threshold: Input should be a finite number"),
        (lambda card: card.update(threshold=-5), "threshold: Input should be greater than or equal to -1"),
        (lambda card: card.update(embedding_size=-1), "embedding_size: Input should be greater than 0"),
        (lambda card: card.update(embedding_size=31), "gives embeddings of 8 numbers, .* says 31"),
        (lambda card: card.update(embedding_size=10**9), "gives embeddings of 8 numbers, .* says 1,000,000"),
        (lambda card: card["input"]["shape"].append(2), "its graph cannot be loaded|shape"),
        (lambda card: card["inside_the_graph"].update(mean=float("nan")), "inside_the_graph.mean: "),
        (lambda card: card["files"].update(onnx="x", paddle="x"), "files.(onnx|paddle): Input should be"),
        (lambda card: card.update(files=5), "files: Input should be an object"),
        (lambda card: card.update(files={}), "has a graph for other programs only"),
        (lambda card: card.update(calibration=[]), "calibration: Input should be"),
    ],
)
def test_an_export_that_is_none_is_refused(copied, change, message):
    spoil(copied, change)
    with pytest.raises(UserError, match=message) as error:
        from_export(copied / "export")
    assert "export" in str(error.value) and "\n" not in str(error.value)
    (copied / "export" / "preprocessing.json").unlink()
    with pytest.raises(UserError, match="preprocessing.json: is not there; name the folder"):
        from_export(copied / "export")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\0", ""])
def test_a_description_that_is_no_json_is_refused(copied, text):
    (copied / "export" / "preprocessing.json").write_text(text)
    with pytest.raises(UserError, match="preprocessing.json: .*; it is not as this plsc writes it"):
        from_export(copied / "export")


def flip_a_bit(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 64]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    "change", [flip_a_bit, lambda data: data[:50], lambda data: data + b"x", lambda _: b""]
)
@pytest.mark.parametrize("engine", ["paddle", "onnx"])
def test_another_graph_than_the_exported_one_is_refused(copied, engine, change, monkeypatch):
    if engine == "onnx" and not CAN_ONNX:
        pytest.skip("ONNX export needs Paddle 3 and the extra export")
    if engine == "paddle":
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    for name in ("model.onnx", "inference.pdiparams"):
        path = copied / "export" / name
        if path.exists():
            path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match="is of another export, or damaged; export again"):
        from_export(copied / "export")


def test_a_graph_that_is_gone_is_named(copied):
    (copied / "export" / ("model.onnx" if CAN_ONNX else "inference.pdiparams")).unlink()
    with pytest.raises(UserError, match="is not there; export again"):
        from_export(copied / "export")


@pytest.mark.parametrize("engine", ["paddle", "onnx"])
def test_a_graph_that_no_engine_loads_is_refused(copied, engine, monkeypatch):
    if engine == "onnx" and not CAN_ONNX:
        pytest.skip("ONNX export needs Paddle 3 and the extra export")
    if engine == "paddle":
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    name = "model.onnx" if engine == "onnx" else "inference.pdiparams"
    (copied / "export" / name).write_bytes(b"no graph")
    spoil(copied, lambda card: card["sha256"].update({name: sha256_of(copied / "export" / name)}))
    with pytest.raises(UserError, match=r"export: its graph cannot be loaded \(.+\); export again"):
        from_export(copied / "export")


def test_the_calibration_is_that_of_the_checkpoint_for_the_same_embeddings(copied, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    saved = Checkpoint.open(copied / "checkpoints" / "step-00000012")
    assert (
        of(copied).calibration
        == thresholds_of(saved).calibration
        == from_export(copied / "export").calibration
    )
    assert thresholds_of(saved).calibration.set == "noise pairs"
    set_calibration(saved, thresholds_of(saved).calibration.model_copy(update={"flip": True}))
    assert of(copied).calibration is None  # the threshold is of images that were not mirrored
    set_threshold(saved, 0.5, "noise pairs", True)
    assert of(copied).calibration.flip
