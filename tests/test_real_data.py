"""Configs for real pictures: every config is whole, and LFW's and Omniglot's train if the pictures exist."""

import tarfile
from pathlib import Path

import pytest

from plsc import cli, config
from plsc.entry import Entry
from plsc.training.metrics import read_metrics
from tests.helpers.idx_files import DATA, ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def unpacked(name, tmp_path_factory):
    if not (DATA / f"{name}.tar").is_file():
        pytest.skip(f"needs {name}.tar in $PLSC_TEST_DATA")
    folder = tmp_path_factory.mktemp(name)
    with tarfile.open(DATA / f"{name}.tar") as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def lfw(tmp_path_factory):
    folder = unpacked("lfw_dev", tmp_path_factory)
    return [
        f"DataLoader.Train.dataset.list={folder}/label_devtrain_min2.txt",
        f"DataLoader.Eval.dataset.list={folder}/pairsDevTest.txt",
        f"DataLoader.Eval.dataset.root={folder}/images",
    ]


@pytest.fixture(scope="module")
def omniglot(tmp_path_factory):
    folder = unpacked("omniglot_small1", tmp_path_factory)
    lists = [folder / "trained.txt", folder / "unseen.txt"]
    lines = [line.split("\t") for line in (folder / "label.txt").read_text().splitlines()]
    for path, labels in zip(lists, (range(100), range(100, 136))):
        own = (f"{image}\t{labels.index(int(label))}\n" for image, label in lines if int(label) in labels)
        path.write_text("".join(own))
    return [f"DataLoader.Train.dataset.list={lists[0]}", f"DataLoader.Eval.dataset.images={lists[1]}"]


def first_pairs(path, folder):
    """The first 50 pairs of each kind, from LFW's 500."""
    count, *lines = Path(path).read_text().splitlines()
    kept = ["50", *lines[:50], *lines[int(count) : int(count) + 50]]
    (folder / "pairs.txt").write_text("".join(f"{line}\n" for line in kept))
    return folder / "pairs.txt"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_whole(path):
    assert config.load(path).to_yaml()


@pytest.mark.parametrize(
    "name, images, classes, pairs", [("lfw_dev", 6671, 1184, 100), ("omniglot_small1", 2000, 100, 6000)]
)
def test_real_pictures_train_and_are_verified(name, images, classes, pairs, request, tmp_path, capsys):
    overrides = list(request.getfixturevalue(name.split("_")[0]))
    if name == "lfw_dev":
        overrides[1] = f"DataLoader.Eval.dataset.list={first_pairs(overrides[1].split('=')[1], tmp_path)}"
    short = ["Global.max_steps=2", "LRScheduler.warmup_epochs=0", f"Global.output_dir={tmp_path}"]
    Entry(ROOT / "configs" / f"{name}.yaml", [*overrides, *short]).train()
    (row,) = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "eval" in row]
    assert row["pairs"] == pairs and 0.4 < row["accuracy"] < 1
    assert f"{images:,} images of {classes:,} classes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lfw_dev", "omniglot_small1"])
def test_no_identity_is_trained_and_verified(name, request, capsys):
    overrides = request.getfixturevalue(name.split("_")[0])
    assert cli.main(["doctor", "-c", str(ROOT / "configs" / f"{name}.yaml"), "-o", *overrides]) == 0
    assert "ERROR" not in capsys.readouterr().out
