"""Samples that are no images: trained, resumed, verified, predicted and exported by config alone."""

from __future__ import annotations

import importlib.util
import itertools
import json

import numpy as np
import paddle
import pytest

from plsc import Entry
from plsc.apps.curate.doctor import main as doctor
from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.data.loader import Loader
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError
from plsc.training.build import build_trainer
from plsc.training.embed import embed
from plsc.utils.metrics import Metrics, read_metrics
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.float_samples import SHAPE, RecordingPairs, Whole
from tests.helpers.launch import ROOT, launch
from tests.helpers.pictures import drawn
from tests.helpers.tiny_runs import TINY, assert_same_arrays, checkpoint

DATA = [
    'DataLoader.Train.dataset={name: "tests.helpers.float_samples:Recordings"}',
    'DataLoader.Eval.dataset={name: "tests.helpers.float_samples:RecordingPairs"}',
    "DataLoader.Train.num_workers=1",
    "Checkpoint.keep=5",
]
FORMATS = ["paddle"]
if not paddle.__version__.startswith("2.") and all(
    map(importlib.util.find_spec, ("paddle2onnx", "onnx", "onnxruntime"))
):
    FORMATS.append("onnx")


def entry(folder, *overrides):
    return Entry(TINY, [*DATA, f"Global.output_dir={folder}", *overrides])


def refused(call):
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float") / "run"
    with drawn():
        return folder, entry(folder).train()


def test_it_learns_and_the_report_names_the_worst_pairs(trained):
    folder, result = trained
    losses = [row["loss"] for row in read_metrics(folder / "metrics.jsonl") if "loss" in row]
    assert losses[-1] < losses[0] and result["accuracy"] is not None
    assert (folder / "report.html").is_file()


def test_the_checkpoint_knows_shape_and_dtype(trained):
    saved = Checkpoint.open(checkpoint(trained[0]))
    assert Preprocessing.from_json(saved.preprocessing) == Preprocessing(SHAPE, "float32")


def test_a_resumed_run_is_the_same(trained, tmp_path):
    again = tmp_path / "again"
    entry(again, "Global.max_steps=8").train()
    entry(again, "Global.resume=true").train()
    assert_same_arrays(checkpoint(again), checkpoint(trained[0]))


def test_two_ranks_train_with_workers(tmp_path):
    linear = ['Model={name: "tests.helpers.tiny_runs:Linear", embedding_size: 8}', "Global.max_steps=4"]
    cfg = entry(tmp_path / "two", *linear, "DataLoader.Train.batch_size=6").config
    (tmp_path / "two.yaml").write_text(cfg.to_yaml())
    launch(ROOT / "tools/train.py", 2, tmp_path, "-c", "two.yaml")
    assert read_metrics(tmp_path / "two/metrics.jsonl")[-1]["eval"] == "recordings"

    def losses(run):
        return np.array(
            [row["loss"] for row in read_metrics(tmp_path / run / "metrics.jsonl") if "loss" in row]
        )

    runs = itertools.count()
    cfg = [*DATA, *linear, "DataLoader.Eval.dataset=null"]
    net = build_trainer(load(TINY, cfg)).backbone

    def train():
        name = f"one {next(runs)}"
        metrics = Metrics(tmp_path / name)
        build_trainer(load(TINY, [*cfg, f"Global.output_dir={tmp_path / name}"]), backbone=net).train(metrics)
        metrics.close()
        return losses(name)

    assert_within(losses("two"), *rounded(net, train), paths=2)


def test_evaluation_prediction_and_export_give_the_same_embeddings(trained, tmp_path):
    folder, result = trained
    run = entry(folder)
    assert run.test()["accuracy"] == result["accuracy"]
    pairs = RecordingPairs()
    samples = pairs.images()
    assert pairs.image_name(3) == "sample 3"
    predicted, names = run.predict(samples)
    assert names == [str(number) for number in range(len(samples))]

    from plsc.training.trained import load_network

    saved = Checkpoint.open(checkpoint(folder))
    backbone = load_network(saved, run.config).backbone

    def evaluate():
        emb = embed(backbone, pairs.images, len(samples), pairs.preprocessing, 7)
        return emb / np.linalg.norm(emb, axis=1, keepdims=True)

    evaluated, bound = rounded(backbone, evaluate)
    assert_within(predicted, evaluated, bound, paths=2)

    facts = entry(folder, f"Export.formats=[{', '.join(FORMATS)}]").export()
    card = json.loads((folder / "export" / "preprocessing.json").read_text())
    assert card["input"]["shape"] == ["batch", *SHAPE]
    assert card["preprocessing"] == {"shape": [*SHAPE], "dtype": "float32"}

    from plsc.apps.export.graphs import run_graph

    for form in FORMATS:
        got = run_graph(folder / "export", facts["files"][form], samples)
        assert_within(got, evaluated, bound, paths=2)

    np.save(tmp_path / "some.npy", samples[:3])
    from_file, _ = run.predict(str(tmp_path / "some.npy"))
    assert_within(from_file, evaluated[:3], bound[:3], paths=2)


def test_what_cannot_be_predicted_is_refused(trained, tmp_path):
    run = entry(trained[0])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "doubles.npy", np.zeros((2, *SHAPE)))
    wanted = "float32 [n, 1, 20, 12]"
    assert refused(lambda: run.predict(np.zeros((2, 1, 20)))).endswith(
        f"must be {wanted}, got float64 [2, 1, 20]"
    )
    assert f"must be {wanted}, got float64" in refused(lambda: run.predict([str(tmp_path / "doubles.npy")]))
    for name in ("objects", "text"):
        assert "is no .npy file of numbers" in refused(lambda n=name: run.predict(f"{tmp_path}/{n}.npy"))
    assert "no such file" in refused(lambda: run.predict("nowhere.npy"))
    assert f"give them as an array or one .npy file, {wanted}" in refused(lambda: run.predict("a.png"))


def test_mirror_images_of_what_is_no_image_are_refused(trained, tmp_path):
    line = "DataLoader.Eval.flip: mirrors images, these samples are float32 [1, 20, 12]; set it to false"
    flip = "DataLoader.Eval.flip=true"
    assert refused(lambda: entry(tmp_path, flip).train()) == line
    assert refused(lambda: entry(trained[0], flip).test()) == line
    assert refused(lambda: entry(trained[0], flip).predict(np.zeros((1, *SHAPE), np.float32))) == line


def test_another_dtype_than_declared_is_refused_by_name(tmp_path):
    for workers in (1, 2):
        line = refused(
            lambda w=workers: entry(
                tmp_path,
                'DataLoader.Train.dataset={name: "tests.helpers.float_samples:Doubles"}',
                f"DataLoader.Train.num_workers={w}",
            ).train()
        )
        assert "must be an array float32 [1, 20, 12] like every sample of its set, got float64" in line


def test_images_do_not_verify_what_is_trained_on_recordings(tmp_path):
    pairs = 'DataLoader.Eval.dataset={name: "tests.helpers.tiny_runs:NoisePairs"}'
    line = refused(lambda: entry(tmp_path, pairs).train())
    assert (
        "DataLoader.Eval.dataset: its samples have shape" in line
        and "dtype uint8 (trained on float32)" in line
    )


def test_whole_numbers_go_through_workers_and_mean_and_scale(tmp_path):
    data = Whole()
    loader = Loader(data, 10, 0, 1, seed=0, num_workers=1)
    samples, _, indices = next(loader.epoch(0))
    assert samples.dtype == np.int16
    assert samples.tobytes() == np.stack([data.sample(index, 0) for index in indices.tolist()]).tobytes()
    assert np.array_equal(data.preprocessing(samples), (samples.astype(np.float32) - 100) * np.float32(0.02))


def test_the_doctor_says_what_it_can(trained, tmp_path, capsys):
    config = trained[0] / "config.yaml"
    assert doctor(["-c", str(config), "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "float32 [1, 20, 12]" in said and "115" in said and "stretched" not in said


def test_the_doctor_names_samples_that_are_not_finite(tmp_path, capsys):
    data = [DATA[1], 'DataLoader.Train.dataset={name: "tests.helpers.float_samples:Poisoned"}']
    assert doctor(["-c", str(TINY), "-o", *data, "--output", str(tmp_path)]) == 2
    assert "sample 7: has numbers that are not finite" in capsys.readouterr().out


def test_the_batch_of_a_skipped_step_is_kept_as_it_was(tmp_path):
    entry(tmp_path, 'DataLoader.Train.dataset={name: "tests.helpers.float_samples:Poisoned"}').train()
    path = next((tmp_path / "diverged").glob("*.json"))
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as kept:
        assert kept["images"].dtype == np.float32 and kept["images"].shape[1:] == SHAPE
        assert np.isnan(kept["images"]).sum() == 1 and 7 in kept["indices"]
    said = json.loads(path.read_text())
    assert said["values"]["max"] == "nan" and said["what"] == "input of sample 7 is NaN"


def test_new_classes_start_from_their_mean_embeddings(trained, tmp_path):
    start = [f"Global.init_from={checkpoint(trained[0])}", "Global.keep_centres=number"]
    more = 'DataLoader.Train.dataset={name: "tests.helpers.float_samples:Recordings", speakers: 30}'
    entry(tmp_path, *start, more, "Global.max_steps=2").train()
    kept = json.loads((tmp_path / "identities.json").read_text())
    assert (kept["kept"], len(kept["new"]), kept["random"]) == (23, 7, [])
