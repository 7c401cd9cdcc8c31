"""Entry.classify and `plsc predict --classes`: the most similar class in the training data."""

import cv2
import numpy as np
import paddle
import pytest

from plsc import cli
from plsc.config import load
from plsc.entry import Entry
from plsc.evaluation.sets import build_sets
from tests.helpers.image_files import write_grey
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import IMAGE_SHAPE, NO_PAIRS, TINY, arrays, checkpoint

PIXELS = np.random.default_rng(0).integers(0, 256, (5, *IMAGE_SHAPE), np.uint8)


def entry(output, *overrides):
    return Entry(TINY, [f"Global.output_dir={output}", *overrides])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    entry(folder, NO_PAIRS).train()
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """PIXELS as files."""
    return write_grey(tmp_path_factory.mktemp("pictures"), PIXELS)


def cosines(folder, emb):
    """Return the cosines of embeddings of length 1 with all class centres, float64 [n, C]."""
    centres = arrays(checkpoint(folder))["head: centres"].astype(np.float64)
    return emb @ (centres / np.linalg.norm(centres, axis=1, keepdims=True)).T


@pytest.mark.parametrize(
    "bank, dtype",
    [
        ("device", "float32"),
        ("host", "float32"),
        ("host", "bfloat16"),
        ("disk", "float32"),
        ("disk", "bfloat16"),
    ],
)
def test_classify_finds_the_nearest_class_in_every_bank(trained, bank, dtype):
    one = entry(trained, f"Head.bank={bank}", f"Head.bank_dtype={dtype}", "DataLoader.Train.batch_size=2")
    classes, similarity, names = one.classify(PIXELS, top=2)
    found = cosines(trained, one.predict(PIXELS)[0])
    precision = 2.0**-8 if dtype == "bfloat16" else 8 * np.finfo(np.float32).eps
    assert names == [*"01234"] and similarity.dtype == np.float32
    numbers = np.array(classes, int)
    assert (np.abs(np.take_along_axis(found, numbers, axis=1) - similarity) <= precision).all()
    assert (np.abs(-np.sort(-found, axis=1)[:, :2] - similarity) <= precision).all()
    assert len(set(numbers[:, 0])) > 1 and (numbers[:, 0] != numbers[:, 1]).all()


def test_predict_writes_the_classes_by_name(trained, pictures, tmp_path, capsys):
    """A picture without any light is as similar to all classes, so it has none."""
    out, dark = tmp_path / "out", str(tmp_path / "dark.png")
    cv2.imwrite(dark, np.zeros(IMAGE_SHAPE[1:], np.uint8))
    paths = [*pictures, dark]
    assert cli.main(["predict", *paths, "--classes", "-c", str(trained), "--output", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"done: the classes of 6 images in {out}/classes.csv"
    classes, similarity, names = entry(trained).classify(paths)
    assert classes[5] == [None] and similarity[5] == 0
    found = ["" if name is None else name for (name,) in classes]
    rows = [f"{path},{name},{value:.4f}" for path, name, value in zip(names, found, similarity[:, 0])]
    assert (out / "classes.csv").read_text().splitlines() == ["image,class,cosine", *rows]


def test_predict_writes_a_row_for_each_image_and_class(trained, pictures, tmp_path):
    run = ["-c", str(trained), "--output", str(tmp_path)]
    assert cli.main(["predict", *pictures[:2], "--classes", "--top", "1000", *run]) == 0
    classes, similarity, names = entry(trained).classify(pictures[:2], top=1000)
    count = len(arrays(checkpoint(trained))["head: centres"])
    assert [len(set(row)) for row in classes] == [count, count] and (np.diff(similarity) < 0).all()
    rows = [
        f"{names[row]},{classes[row][column]},{similarity[row, column]:.4f}"
        for row in range(2)
        for column in range(count)
    ]
    assert (tmp_path / "classes.csv").read_text().splitlines() == ["image,class,cosine", *rows]


def test_a_picture_that_cannot_be_read_has_no_class_whatever_its_sample_gives(trained, pictures, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    monkeypatch.setattr(
        "plsc.training.inference.embed", lambda _, read, *__: rows if read(0, 2).any() else None
    )
    classes, similarity, _ = entry(trained).classify(["gone.png", pictures[0]], top=2)
    assert classes[0] == [None, None] and np.isnan(similarity[0]).all()
    assert None not in classes[1] and np.isfinite(similarity[1]).all()


@pytest.mark.parametrize("top", [0, -1, 2.5, "3"])
def test_the_number_of_classes_is_checked(trained, top):
    line = refusal(entry(trained).classify, PIXELS, top=top)
    assert line == f"classify: top, the number of classes per image, must be 1 or more (got {top!r})"


def test_the_classes_of_plain_softmax_are_those_of_the_evaluation(tmp_path):
    """Their names are the training set's."""
    people = [f"person {number}" for number in range(7)]
    data = {"name": "tests.helpers.tiny_runs:People", "people": people}
    more = {
        "Head": {"name": "dist_softmax", "bias": True},
        "Global.output_dir": str(tmp_path),
        "Global.max_steps": 4,
    }
    run = Entry(load(TINY, {**more, "DataLoader.Train.dataset": data, "DataLoader.Eval.dataset": data}))
    accuracy = run.train()["accuracy"]
    layer, preprocessing = run.model()
    (images,) = build_sets(run.config.DataLoader, run.config.Global.seed, preprocessing, 7, people).values()
    pixels = images.images(0, images.count)
    classes, logits, _ = run.classify(pixels)
    assert np.mean([people.index(name) for (name,) in classes] == images.labels) == accuracy
    saved = arrays(checkpoint(tmp_path, 4))
    emb = layer(preprocessing(paddle.to_tensor(pixels))).numpy().astype(np.float64)
    want = emb @ saved["head: centres"].T.astype(np.float64) + saved["head: bias"].ravel()
    assert np.allclose(logits[:, 0], want.max(axis=1), rtol=1e-4, atol=1e-4)
    assert [people.index(name) for (name,) in classes] == want.argmax(axis=1).tolist()


def test_classify_refuses_another_kind_of_head(trained):
    line = refusal(entry(trained, "Head={name: dist_softmax}").classify, PIXELS)
    assert f"is dist_softmax, and {checkpoint(trained)} was made with dist_arcface" in line
