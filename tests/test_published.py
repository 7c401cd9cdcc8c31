"""configs/published: each config trains on files of its kind, made here."""

import re

import cv2
import numpy as np
import pytest

from plsc.entry import Entry
from tests.helpers.idx_files import NAMES, ROOT, write_family

pytestmark = pytest.mark.slow

PUBLISHED = ROOT / "configs" / "published"


def train(name, folder, *overrides):
    more = [f"Global.output_dir={folder / 'run'}", "Global.max_steps=2", "LRScheduler.warmup_epochs=0"]
    return Entry(PUBLISHED / name, [*more, "DataLoader.Train.batch_size=4", *overrides]).train()


def test_fashion_mnist_has_fewer_than_250_000_parameters(tmp_path, capsys):
    files = write_family(tmp_path / "files", train=2, test=1)
    overrides = [
        f"DataLoader.{section}.dataset.{key}={files / name}"
        for section, part in (("Train", "train"), ("Eval", "test"))
        for key, name in zip(("images", "labels"), NAMES[part])
    ]
    assert 0 <= train("fashion_mnist.yaml", tmp_path, *overrides)["accuracy"] <= 1
    said = capsys.readouterr().out
    (parameters,) = re.findall(r"backbone SmallResNet, ([\d,]+) parameters", said)
    assert int(parameters.replace(",", "")) < 250_000


def test_omniglot_is_verified_on_the_classes_that_it_leaves_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = []
    for character in range(964):
        for number in range(2):
            lines.append(f"{character}_{number}.png\t{character}\n")
            cv2.imwrite(str(tmp_path / f"{character}_{number}.png"), rng.integers(0, 256, (8, 8), np.uint8))
    (tmp_path / "label.txt").write_text("".join(lines))
    result = train(
        "omniglot.yaml",
        tmp_path,
        f"DataLoader.Train.dataset.list={tmp_path / 'label.txt'}",
        f"DataLoader.Eval.dataset.images={tmp_path / 'label.txt'}",
        "DataLoader.Eval.dataset.num_pairs=40",
    )
    said = capsys.readouterr().out
    assert 0 <= result["accuracy"] <= 1
    assert "1,626 images of 813 classes" in said
    assert "on 40 Omniglot, characters of five unseen alphabets" in said
