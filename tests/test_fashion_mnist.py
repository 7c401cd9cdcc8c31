"""configs/fashion_mnist_lenet.yaml trains to the same parameters on any number of ranks, and is evaluated by
classification.

The real files are used if they exist. Otherwise ten easy classes in files with the same names are used, see
idx_files.py.
"""

import re
import shutil

import numpy as np
import pytest

from plsc.config import load
from plsc.data.idx import IdxImages
from plsc.data.synthetic import Synthetic
from plsc.entry import Entry
from plsc.training.build import build_trainer
from plsc.training.metrics import read_metrics
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.idx_files import DATA, NAMES, ROOT, write_family
from tests.helpers.launch import launch
from tests.helpers.pictures import drawn
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import arrays, checkpoint

pytestmark = pytest.mark.slow

TITLE = NAMES["test"][0]
CONFIG = ROOT / "configs" / "fashion_mnist_lenet.yaml"


class Eleven(Synthetic):
    """Like the small files, with a class more."""

    mean, scale = IdxImages.mean, IdxImages.scale

    def __init__(self):
        super().__init__(num_classes=11, images_per_class=2, image_shape=(1, 28, 28))


def files(folder):
    return [
        f"DataLoader.{section}.dataset.{key}={folder / name}"
        for section, part in (("Train", "train"), ("Eval", "test"))
        for key, name in zip(("images", "labels"), NAMES[part])
    ]


def test_ten_steps_on_1_2_and_4_ranks_end_in_the_same_parameters(tmp_path):
    folder = DATA / "fashion_mnist"
    if not folder.is_dir():
        folder = write_family(tmp_path, train=300, test=1)

    def overrides(name, ranks=1):
        keys = ["Global.max_steps=10", f"Global.output_dir={tmp_path / name}", "DataLoader.Eval.dataset=null"]
        # As many steps as the epoch of the real files: after fewer, rates are so large that a ReLU which
        # rounding turns shows.
        keys += [
            f"LRScheduler.warmup_epochs={234 * 256 / (60_000 if folder == DATA / 'fashion_mnist' else 300)}"
        ]
        return [*keys, "Global.threads=1", f"DataLoader.Train.batch_size={256 // ranks}", *files(folder)[:2]]

    cfg = load(CONFIG, overrides("here"))
    net = build_trainer(cfg).backbone

    def train():
        shutil.rmtree(tmp_path / "here", ignore_errors=True)  # a step is saved once
        trainer = build_trainer(cfg, backbone=net)
        trainer.train(None)
        head = {f"head: {name}": value for name, value in trainer.head.bank.state().items()}
        return {**{f"backbone: {name}": value.numpy() for name, value in net.state_dict().items()}, **head}

    # The longest sum, the first bias's gradient, is over 26 x 26 places per sample.
    want, bound = rounded(net, train, terms=256 * 26 * 26, times=2)
    parameters = {name for name in want if not name.endswith("momentum")}
    assert sum(want[name].size for name in parameters) == 129_068
    learnt = "backbone: layers.7.bias"
    assert np.abs(want[learnt]).max() > 50 * bound[learnt].max(), "what is compared must have been learnt"
    for ranks in (1, 2, 4):
        words = ["-c", str(CONFIG), "-o", *overrides(str(ranks), ranks)]
        launch(ROOT / "tools" / "train.py", ranks, tmp_path, *words)
        found = arrays(checkpoint(tmp_path / str(ranks), 10))
        assert {name for name in found if not name.startswith("optimizer: ")} == want.keys()
        for name in parameters:
            assert_within(found[name], want[name], bound[name], paths=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training on the small files: its output folder, files' folder, overrides and result."""
    folder = tmp_path_factory.mktemp("run")
    write_family(folder)
    overrides = [f"Global.output_dir={folder / 'out'}", "Global.threads=1", *files(folder)]
    overrides += ["Global.epochs=8", "DataLoader.Train.batch_size=20"]
    with drawn():
        return folder / "out", overrides, Entry(CONFIG, overrides).train()


def test_a_training_is_judged_by_the_heads_predictions(run):
    output, _, result = run
    assert result["accuracy"] > 0.5 and result["images"] == 100
    rows = [row for row in read_metrics(output / "metrics.jsonl") if "eval" in row]
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1] == {
        "eval": TITLE,
        "step": 8 * 15,
        "epoch": 8,
        "accuracy": result["accuracy"],
        "images": 100,
    }
    said = (output / "train.log").read_text()
    percent = f"{100 * result['accuracy']:.2f} %"
    assert f"INFO classification: accuracy {percent} on {TITLE}\n" in said
    assert said.count("INFO epoch ") == 8 + said.count("/8 step "), "a line with its time for each epoch"
    page = re.sub(r"base64,[^\"]*", "", (output / "report.html").read_text())  # its letters are any
    assert "accuracy (top-1)" in page and "ROC" not in page


@pytest.mark.parametrize("head", ["softmax", "dist_softmax"])
def test_a_checkpoint_is_judged_the_same_on_any_number_of_ranks(head, run, tmp_path, capsys):
    output, overrides, result = run
    more = [*overrides, f"Head.name={head}"]
    assert Entry(CONFIG, more).evaluate() == {"accuracy": result["accuracy"], "images": 100}
    last = capsys.readouterr().out.splitlines()[-1]
    done = f"done: accuracy {100 * result['accuracy']:.2f} % on {TITLE}, results in {output / 'test'}"
    assert last.startswith(done)
    said = launch(ROOT / "tools" / "eval.py", 3, tmp_path, "-c", str(CONFIG), "-o", *more).stdout
    assert said.count(done) == 1


def test_a_head_that_the_checkpoint_has_not(run):
    assert "bias is not in this run" in refusal(Entry(CONFIG, [*run[1], "Head.bias=false"]).evaluate)
    assert re.search(
        r"Head.name: is arcface, and .*-00000120 was made with softmax$",
        refusal(Entry(CONFIG, [*run[1], "Head={name: arcface}"]).evaluate),
    )


@pytest.mark.parametrize(
    "dataset, said",
    [
        (
            "{name: Synthetic, num_classes: 10, images_per_class: 2, image_shape: [1, 28, 28]}",
            "its samples have mean 127.5 (trained on 0.0), scale ",
        ),
        (
            "{name: tests.test_fashion_mnist:Eleven}",
            "its images have 11 classes, but the head was trained on 10; give images of the trained ",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_set_that_cannot_be_classified(verb, dataset, said, run, tmp_path):
    overrides = [*run[1], f"DataLoader.Eval.dataset={dataset}"]
    if verb == "train":
        overrides.append(f"Global.output_dir={tmp_path}")
    assert f"DataLoader.Eval.dataset: {said}" in refusal(getattr(Entry(CONFIG, overrides), verb))
