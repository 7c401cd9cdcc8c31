"""The verbs on one process after one small training: what they return, print, write and refuse."""

import contextlib
import errno
import importlib.util
import io
import json
import os
import re
import shutil
from unittest.mock import ANY, Mock

import numpy as np
import paddle
import pytest
from paddle import inference
from PIL import Image

from plsc import cli
from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.entry import Entry
from plsc.errors import MissingFileError, UserError
from plsc.heads.banks import device
from plsc.training.embed import embed
from plsc.training.inference import write_embeddings
from plsc.training.load_weights import load_network
from plsc.training.run_folder import RUN_FILES, find_checkpoint
from plsc.utils.logging import setup_logging
from tests.helpers.bounds import assert_within, perturbed, rounded
from tests.helpers.image_files import write_grey
from tests.helpers.launch import run_python
from tests.helpers.pictures import drawn
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import (
    TINY,
    Linear,
    arrays,
    assert_same_arrays,
    checkpoint,
    checkpoints,
    rows,
    steps,
)

SHAPE = (1, 12, 10)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, *SHAPE), np.uint8)
CAN_ONNX = paddle.__version__.startswith("3") and all(
    importlib.util.find_spec(name) for name in ("paddle2onnx", "onnx", "onnxruntime")
)
FORMATS = ["paddle", "onnx"] if CAN_ONNX else ["paddle"]
WRITTEN = {
    *("config.yaml", "metrics.jsonl", "train.log", "visualdl"),
    *("checkpoints", "report.html", "results.json"),
}


def entry(output, *overrides, model=None):
    return Entry(TINY, [f"Global.output_dir={output}", f"Export.formats={FORMATS}", *overrides], model)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Output folder, what train() returned and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()) as said, drawn():
        result = entry(folder).train()
    setup_logging()  # closes train.log
    return folder, result, said.getvalue()


@pytest.fixture
def trained(run):
    return run[0]


def embeddings(folder, flip=False):
    """Embed PIXELS by the newest checkpoint: unit vectors, and how far another path may lie from them."""
    saved = Checkpoint.open(checkpoint(folder))
    backbone = load_network(saved, entry(folder).config)
    preprocessing = saved.preprocessing

    def compute():
        emb = embed(backbone, lambda start, stop: PIXELS[start:stop], len(PIXELS), preprocessing, 5, flip)
        return emb / np.linalg.norm(emb, axis=1, keepdims=True)

    return rounded(backbone, compute)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """PIXELS as files, and a list of them."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = write_grey(folder, PIXELS)
    (folder / "list.txt").write_text("".join(f"{number}.png\t0\n" for number in range(len(PIXELS))))
    return paths, folder / "list.txt"


def test_any_thread_computes_and_needs_no_streams(trained, tmp_path):
    code = (
        "import sys, threading, numpy as np\nfrom plsc import Entry\nsys.stderr = None\n"
        "thread = threading.Thread(target=__import__, args=['paddle'])\nthread.start()\nthread.join()\n"
        f"entry = Entry('{trained}', ['Global.device=cpu'])\n"
        "print(entry.predict(np.zeros((1, 1, 12, 10), np.uint8), 'out')[1])"
    )
    assert run_python("-c", code, cwd=tmp_path).stdout.endswith("['0']\n")


# ---- train


def test_training_leaves_its_files(trained):
    # The lock's file stays: who removed it could take it away from a run that has just opened it.
    assert {path.name for path in trained.iterdir()} == WRITTEN | {".lock"} and set(RUN_FILES) > WRITTEN
    assert steps(rows(trained)) == list(range(1, 13)) and checkpoints(trained) == [8, 10, 12]
    folders = f"Global.folders={[os.getcwd(), str(TINY.parent)]}"
    assert load(trained / "config.yaml") == entry(trained, folders).config
    logged = (trained / "train.log").read_text()
    assert "plan: data     115 images of 23 classes" in logged and "epoch 2/2 step 12/12 loss " in logged
    assert re.search(r"^pairs +40 \(20 same, 20 different\)$", logged, re.MULTILINE)
    assert logged.splitlines()[-1].startswith("done: accuracy ")


def test_training_returns_and_prints_the_last_verification(run):
    folder, result, said = run
    (last,) = rows(folder, evaluations=True)
    assert {name: result[name] for name in last.keys() & result.keys()}.items() <= last.items()
    assert {"accuracy", "std", "threshold", "auc", "eer", "pairs"} <= last.keys() & result.keys()
    assert result["output_dir"] == str(folder) and result["seconds"] > 0 and 0 <= result["accuracy"] <= 1
    accuracy = f"accuracy {100 * result['accuracy']:.2f} % ± {100 * result['std']:.2f}"
    assert re.search(r"^pairs +40 \(20 same, 20 different\)$", said, re.MULTILINE)
    checkpoints = f"newest checkpoint step 12, best step 12 (accuracy {result['accuracy']:.4f})"
    last_line = (
        f"done: {accuracy} on noise pairs, {checkpoints}, results in {folder}, report {folder}/report.html\n"
    )
    assert said.endswith(last_line)


def test_the_report_stands_alone_and_shows_the_run(trained):
    page = (trained / "report.html").read_text()
    assert page.count("data:image/png;base64,") > 3 and "<script" not in page and "http" not in page
    assert "dist_arcface" in page and "max_steps: 12" in page
    assert "step 12: verification on noise pairs" in page
    for fact in (
        "date",
        "command",
        "version",
        "training and evaluation",
        "Synthetic",
        "23 classes",
        trained.name,
    ):
        assert fact in page


def test_a_stopped_run_resumes_where_it_was(trained, tmp_path):
    entry(tmp_path, "Global.max_steps=8").train()
    result = entry(tmp_path, "Global.resume=true").train()
    assert rows(tmp_path) == rows(trained)
    assert [row["step"] for row in rows(tmp_path, evaluations=True)] == [8, 12]
    assert rows(tmp_path, evaluations=True)[-1] == rows(trained, evaluations=True)[-1]
    assert_same_arrays(checkpoint(trained), checkpoint(tmp_path))
    assert "resuming at step 8 from " in (tmp_path / "train.log").read_text()
    again = entry(tmp_path, "Global.resume=true").train()  # nothing is left: the same result, no second row
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    assert [row["step"] for row in rows(tmp_path, evaluations=True)] == [8, 12]


def test_a_model_of_the_users(tmp_path):
    net = Linear(8, SHAPE)
    user = entry(tmp_path, "Global.max_steps=1", "DataLoader.Eval.dataset=null", model=net)
    assert user.train() == {
        "accuracy": None,
        "seconds": ANY,
        "output_dir": str(tmp_path),
    }
    assert "backbone: linear.weight" in arrays(checkpoint(tmp_path, 1))

    def reference(weight, bias):
        emb = (PIXELS.reshape(5, -1) - 127.5) / 127.5 @ weight + bias
        return emb / np.linalg.norm(emb, axis=1, keepdims=True)

    found, _ = user.predict(PIXELS)
    assert_within(found, *perturbed(reference, net.linear.weight.numpy(), net.linear.bias.numpy()))


def test_a_run_that_was_moved_is_used_from_anywhere(trained, tmp_path, monkeypatch, capsys):
    moved = shutil.copytree(trained, tmp_path / "moved")
    shutil.rmtree(checkpoint(moved, 12))  # so that its newest is not that of `trained`
    monkeypatch.chdir(tmp_path)
    embeddings, _ = Entry("moved").predict(PIXELS, "moved/predict")
    reading, done = capsys.readouterr().out.splitlines()  # and no line about threads
    assert reading.endswith("reading checkpoint moved/checkpoints/step-00000010 (newest)")
    assert done.startswith("done: 5 embeddings")
    assert (moved / "predict/embeddings.npy").is_file()
    expected, _ = entry(trained, f"Global.checkpoint={checkpoint(trained, 10)}").predict(
        PIXELS, tmp_path / "expected"
    )
    assert np.array_equal(embeddings, expected)
    Entry("moved/config.yaml", ["Global.resume=true"]).train()
    assert rows(moved) == rows(trained)
    Entry("moved/config.yaml", ["Global.resume=false", "Global.overwrite=true", "Global.max_steps=1"]).train()
    assert steps(rows(moved)) == [1] and checkpoints(moved) == [1]


# ---- test


def test_a_checkpoint_tests_as_it_did_in_training(run, capsys):
    folder, result, _ = run
    found = entry(folder).evaluate()
    assert {**result, **found} == result
    assert (folder / "test" / "report.html").is_file()
    assert capsys.readouterr().out.splitlines()[-1].startswith("done: accuracy ")
    page = (folder / "test" / "report.html").read_text().replace("<wbr>", "")
    assert f"checkpoint {checkpoint(folder)}" in page and "step 12: verification on noise pairs" in page


# ---- predict


def test_predict_gives_the_same_for_pixels_paths_and_a_list(trained, pictures, tmp_path):
    paths, listed = pictures
    kinds = {"pixels": PIXELS, "paths": paths, "list": listed}
    found = {kind: entry(trained).predict(images, tmp_path / kind) for kind, images in kinds.items()}
    emb, names = found["pixels"]
    assert emb.shape == (5, 8) and emb.dtype == np.float32 and names == ["0", "1", "2", "3", "4"]
    assert_within(emb, *embeddings(trained), paths=2)
    for kind in ("paths", "list"):
        assert np.array_equal(found[kind][0], emb) and found[kind][1] == paths
    for kind, (emb, names) in found.items():
        assert np.array_equal(np.load(tmp_path / kind / "embeddings.npy"), emb)
        assert (tmp_path / kind / "names.txt").read_text().split() == names
        assert {path.name for path in (tmp_path / kind).iterdir()} == {"embeddings.npy", "names.txt"}
    one, names = entry(trained).predict(paths[3], tmp_path / "one")
    assert_within(one, emb[3:4], embeddings(trained)[1][3:4], paths=2)
    assert names == [paths[3]]


def test_predict_takes_folders_and_objects_and_writes_only_if_asked(trained, pictures, tmp_path, monkeypatch):
    paths, _ = pictures
    run = entry(trained)
    before = set(os.listdir(trained))
    folder, names = run.predict(os.path.dirname(paths[0]))
    assert names == sorted(paths)
    again = Mock(side_effect=AssertionError("read again"))
    monkeypatch.setattr("plsc.training.inference.open_checkpoint", again)
    objects, numbers = run.predict([Image.open(path) for path in sorted(paths)])
    assert np.array_equal(folder, objects) and numbers == ["0", "1", "2", "3", "4"]
    assert set(os.listdir(trained)) == before


def test_a_run_gives_its_network(trained):
    layer, preprocessing = entry(trained).model()
    rows = layer(preprocessing(paddle.to_tensor(PIXELS))).numpy()
    found, _ = entry(trained).predict(PIXELS)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    assert not layer.training and np.allclose(rows / lengths, found, atol=1e-5)


def test_an_entry_is_shown_by_what_it_is(trained):
    assert repr(entry(trained)) == f"Entry(output_dir='{trained}', model='SmallResNet', head='dist_arcface')"


def test_a_config_says_how_it_is_changed(trained):
    config = entry(trained).config
    line = refusal(setattr, config.Head, "margin", 0.1)
    assert line.startswith("margin: a config cannot be changed; make a new one from it, load(config, {")
    assert '"Head.margin": ...' in line
    assert '"Head": ...' in refusal(setattr, config, "Head", None)


ARRAY = "predict: pixels must be uint8 [n, C, H, W], here [n, 1, 12, 10] with the channels grey"


@pytest.mark.parametrize(
    "images, line",
    [
        ([], "predict: no images given, give at least one"),
        (PIXELS[:0], "predict: no images given, give at least one"),
        (PIXELS / 1.0, f"{ARRAY}, got float64 [5, 1, 12, 10]; or give PIL images, which plsc converts"),
        (PIXELS[:, 0], f"{ARRAY}, got uint8 [5, 12, 10]; or give PIL images, which plsc converts"),
        (
            [PIXELS[0]],
            (
                "predict: expected str, bytes or os.PathLike object, not ndarray; give paths, PIL images, "
                "or pixels in one array uint8 [n, C, H, W] with the network's size and order of channels"
            ),
        ),
        (["no.png"], "no.png: no such image"),
        (
            ["no.png", "nor.png"],
            "predict: none of 2 images can be read, the first one: no.png: no such image",
        ),
        ("no.txt", f"predict: 'no.txt' does not exist (looked in {os.getcwd()})"),
    ],
)
def test_predict_refuses_what_is_no_picture(trained, tmp_path, images, line):
    assert refusal(entry(trained).predict, images, tmp_path / "out") == line
    assert not (tmp_path / "out").exists()


def test_an_evaluation_needs_a_set(trained):
    key = "DataLoader.Eval.dataset"
    line = f"-o {key}=null: {key}: is null; name a data set to test on"
    assert refusal(entry(trained, f"{key}=null").evaluate) == line


def test_predict_names_the_image_whose_embedding_is_not_finite(trained, monkeypatch, tmp_path):
    rows = np.array([[1, 0], [1e22, 0], [np.nan, 0]], np.float32)
    monkeypatch.setattr("plsc.training.inference.embed", lambda *_: rows)
    line = refusal(entry(trained).predict, np.repeat(PIXELS[:1], 3, axis=0), tmp_path / "out")
    assert line.startswith("predict: the embedding of 1 is not finite (2 of 3 images); the network of ")
    assert not (tmp_path / "out").exists()


def test_predict_reports_embeddings_that_are_zero(trained, monkeypatch, tmp_path, capsys):
    rows = np.array([[1, 0], [0, 0], [0, 0]], np.float32)
    monkeypatch.setattr("plsc.training.inference.embed", lambda *_: rows)
    entry(trained).predict(np.repeat(PIXELS[:1], 3, axis=0), tmp_path / "out")
    said = capsys.readouterr().out
    assert "WARNING predict: 2 of 3 embeddings are zero, the first one that of 1; " in said


def test_predict_embeds_all_pictures_that_can_be_read(trained, pictures, tmp_path, capsys):
    """A damaged picture keeps its row, so that the rows of a list agree with the user's own."""
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    (tmp_path / "list.txt").write_text(
        "\n".join([pictures[0][0], "damaged.png", "gone.png", *pictures[0][1:]])
    )
    run = ["-c", str(trained), "--output", str(tmp_path)]
    assert cli.main(["predict", str(tmp_path / "list.txt"), *run]) == 1
    said = capsys.readouterr().out
    assert f" WARNING skipped {tmp_path}/damaged.png: not an image that OpenCV can decode (10 bytes)" in said
    assert f" WARNING skipped {tmp_path}/gone.png: no such image\n" in said and " zero" not in said
    assert said.endswith("embeddings.npy; 2 of the images cannot be read, see the log\n")
    found, (whole, _) = np.load(tmp_path / "embeddings.npy"), entry(trained).predict(pictures[0])
    assert np.isnan(found[1:3]).all() and np.allclose(found[[0, 3, 4, 5, 6]], whole, atol=1e-5)
    names = [pictures[0][0], f"{tmp_path}/damaged.png", f"{tmp_path}/gone.png", *pictures[0][1:]]
    assert (tmp_path / "names.txt").read_text().splitlines() == names
    assert cli.main(["predict", *names, "--classes", *run]) == 1
    rows = (tmp_path / "classes.csv").read_text().splitlines()[1:]
    assert rows[1:3] == [f"{tmp_path}/damaged.png,,", f"{tmp_path}/gone.png,,"]
    assert cli.main(["predict", pictures[0][0], *run]) == 0


def test_all_but_training_do_without_the_images_trained_on(trained, tmp_path):
    gone = entry(trained, "DataLoader.Train.dataset={name: ImageList, list: gone/list.txt}")
    gone.predict(PIXELS, tmp_path / "out")
    gone.export()
    assert gone.evaluate()["accuracy"] is not None
    fresh = load(gone.config, {"Global.output_dir": str(tmp_path / "fresh")})
    assert "gone/list.txt" in refusal(Entry(fresh).train, kind=MissingFileError)


# ---- export


def test_a_refusal_of_an_export_on_rank_0_reaches_the_other_ranks(trained, monkeypatch):
    user = entry(trained)
    path = find_checkpoint(user.config.Global)
    monkeypatch.setattr("plsc.training.run_folder.find_checkpoint", lambda section: path)
    monkeypatch.setattr("plsc.entry.start", lambda section: None)
    monkeypatch.setattr("plsc.distributed.collectives.rank", lambda: 1)
    problem = UserError("export: holds other files")
    monkeypatch.setattr(
        "plsc.distributed.collectives.gather_objects", lambda _: [(None, problem), (None, None)]
    )
    assert refusal(user.export) == "export: holds other files"


def test_a_refused_export_names_the_place_of_its_key(trained):
    assert refusal(entry(trained, "Export.formats=[paddlex]").export).startswith(
        "-o Export.formats=[paddlex]: Export.formats: paddlex takes RGB"
    )


def test_an_export_gives_the_embeddings_of_predict(trained):
    found = entry(trained).export()
    assert set(found["files"]) == set(FORMATS) and found["folder"] == str(trained / "export")
    assert {check["format"] for check in found["checks"]} == set(FORMATS)
    card = json.loads((trained / "export" / "preprocessing.json").read_text())
    (last,) = rows(trained, evaluations=True)
    assert card["threshold"] == last["threshold"] and card["preprocessing"]["size"] == [12, 10]
    names = found["files"]["paddle"]
    folder = trained / "export"
    config = inference.Config(str(folder / names["model"]), str(folder / names["params"]))
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    predictor.get_input_handle("image").copy_from_cpu(PIXELS.astype(np.float32))
    predictor.run()
    embedded = predictor.get_output_handle(names["output"]).copy_to_cpu()
    assert_within(embedded, *embeddings(trained), paths=2)


# ---- what they refuse


def test_a_machine_that_computes_the_head_wrongly_trains_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(device.DeviceSelection, "_update", lambda *_: None)
    assert refusal(entry(tmp_path).train).startswith("rank 0 computes the head incorrectly: ")
    assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "checkpoints").exists()


def test_a_report_without_room_is_one_line_after_the_checkpoint(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("plsc.evaluation.report.render", Mock(side_effect=full))
    result = entry(tmp_path, "Global.max_steps=1", "DataLoader.Eval.dataset=null").train()
    assert re.search(
        ": cannot be written: .*; the checkpoints are complete, the report is not; free some space",
        *result["failures"],
    )
    assert checkpoints(tmp_path) == [1]


def test_names_that_are_no_text_do_not_end_a_prediction(trained, tmp_path, pictures):
    """One line each, whatever they contain. The bytes of names stay as they are, except for line breaks."""
    odd = [os.fsencode(tmp_path) + name for name in (b"/J\xf6rg.png", b"/two\nlines.png")]
    for path in odd:
        shutil.copy(pictures[0][0], path)
    entry(trained).predict([os.fsdecode(path) for path in odd], tmp_path / "out")
    names = (tmp_path / "out/names.txt").read_bytes().splitlines()
    assert names == [os.fsencode(tmp_path) + name for name in (b"/J\xf6rg.png", b"/two\\nlines.png")]


def test_a_full_disk_leaves_an_earlier_predictions_files(tmp_path, monkeypatch):
    """The names always belong to the embeddings."""
    write_embeddings(tmp_path, np.zeros((2, 3), np.float32), ["a", "b"])
    monkeypatch.setattr(np, "save", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert "No space left" in refusal(write_embeddings, tmp_path, np.ones((2, 3), np.float32), ["c", "d"])
    assert (tmp_path / "names.txt").read_text() == "a\nb\n" and not np.load(tmp_path / "embeddings.npy").any()
    assert {path.name for path in tmp_path.iterdir()} == {"embeddings.npy", "names.txt"}


# ---- the plan


def test_training_starts_with_the_weights_of_init_from_unless_it_resumes(trained, tmp_path, capsys):
    start = [f"Global.init_from={checkpoint(trained)}", "Global.resume=true"]
    entry(tmp_path, *start, "Global.max_steps=1").train()
    assert "starting with the " in capsys.readouterr().out
    assert "the head is new: the classes" in (tmp_path / "train.log").read_text()
    entry(tmp_path, *start, "Global.max_steps=2").train()
    assert "starting with the " not in capsys.readouterr().out


# ---- checkpoints called newest and best, several sets, mirror images


def test_a_set_that_fails_costs_no_other_its_results(trained, tmp_path):
    bad = 'DataLoader.Eval.more.bad={name: "tests.training.test_evaluator:Unreadable"}'
    there = [f"Global.checkpoint={checkpoint(trained)}", f"Global.output_dir={tmp_path}", bad]
    said = refusal(entry(trained, *there).evaluate)
    assert said.startswith("bad: Unreadable.image(37) (image 37): FileNotFoundError in image, ")
    content = json.loads((tmp_path / "test" / "results.json").read_text())
    assert list(content["sets"]) == ["noise pairs"]


def test_several_sets_are_tested_together(trained, tmp_path, capsys):
    more = [
        'DataLoader.Eval.more.templates={name: "tests.training.test_evaluator:NoiseTemplates"}',
        'DataLoader.Eval.more.people={name: "tests.training.test_evaluator:NoiseGallery"}',
        "DataLoader.Eval.more.seen={name: Synthetic, num_classes: 23, image_shape: [1, 12, 10]}",
    ]
    there = [f"Global.checkpoint={checkpoint(trained)}", f"Global.output_dir={tmp_path}", *more]
    found = entry(trained, *there).evaluate()
    content = json.loads((tmp_path / "test" / "results.json").read_text())
    assert list(content["sets"]) == ["noise pairs", "templates", "people", "seen"]
    assert (
        content["main"] == "noise pairs" and content["sets"]["noise pairs"]["accuracy"] == found["accuracy"]
    )
    said = capsys.readouterr().out
    assert re.search("^verification +noise pairs +templates$", said, re.MULTILINE)
    page = (tmp_path / "test" / "report.html").read_text()
    assert all(title in page for title in content["sets"])


def test_mirror_images_count_for_test_predict_and_the_export(trained, tmp_path):
    plain, _ = entry(trained).predict(PIXELS, tmp_path / "plain")
    mirrored, _ = entry(trained).predict(PIXELS[..., ::-1].copy(), tmp_path / "mirrored")
    entry(tmp_path / "run", "DataLoader.Eval.flip=true").train()
    both, _ = entry(tmp_path / "run", "DataLoader.Eval.flip=true").predict(PIXELS, tmp_path / "both")
    want, bound = embeddings(tmp_path / "run", flip=True)
    assert_within(both, want, bound, paths=2)
    assert both.shape == plain.shape == mirrored.shape and not np.allclose(both, plain, atol=1e-3)
    again, _ = entry(tmp_path / "run", "DataLoader.Eval.flip=true").predict(
        PIXELS[..., ::-1].copy(), tmp_path / "b"
    )
    assert_within(again, both, bound, paths=2)  # a mirror image has the embedding of its image
    cards = [entry(trained).export(), entry(tmp_path / "run", "DataLoader.Eval.flip=true").export()]
    assert [card["inside_the_graph"]["mirror"] for card in cards] == [False, True]
    assert cards[0]["network"] != cards[1]["network"]


def test_an_evaluation_needs_the_images_tested_on(trained):
    assert "gone/pairs.txt" in refusal(
        entry(trained, "DataLoader.Eval.dataset={name: PairList, list: gone/pairs.txt}").evaluate,
        kind=MissingFileError,
    )
