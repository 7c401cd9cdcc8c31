"""docs/augmentation.md against the code: every key is there and valid, the picture can be made, the table's numbers too."""

import re
import runpy
import sys

import cv2
import pytest
import yaml

from plsc.config import load
from plsc.data.augment import Augment
from plsc.data.image_list import ImageList
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "augmentation.md").read_text(encoding="utf-8")
KEYS = {}
for line in re.findall(r"^\| `(.*)` \|", PAGE, re.MULTILINE):
    KEYS.update(yaml.safe_load(line.split("`")[0]))


def test_the_table_has_every_key_with_a_valid_strength():
    assert set(KEYS) == set(vars(Augment()))
    ImageList.check(**KEYS)


def test_the_snippet_is_a_config(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "x.yaml").write_text(text)
    section = load(tmp_path / "x.yaml").DataLoader.Train.dataset
    assert section.keywords.items() >= {"flip": True, "cutout": 0.1}.items()


@pytest.mark.slow
def test_the_picture_and_the_table_can_be_made(tmp_path, monkeypatch, capsys):
    target, own = tmp_path / "out.png", tmp_path / "own.png"
    cv2.imwrite(str(own), cv2.imread(str(ROOT / "docs/pictures/augmentation.png"))[:90, :120])
    monkeypatch.setattr(sys, "argv", ["plot_augmentation.py", str(target), str(own)])
    runpy.run_path(str(ROOT / "tools/plot_augmentation.py"))
    assert cv2.imread(str(target)).shape == cv2.imread(str(ROOT / "docs/pictures/augmentation.png")).shape
    said = dict(re.findall(r"^(\w[\w ]+?)(?:: \S+)? (\d+)$", capsys.readouterr().out, re.MULTILINE))
    assert set(said) == {"decoding the jpg", "off", "several", *KEYS}
