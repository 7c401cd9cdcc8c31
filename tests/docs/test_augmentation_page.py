"""The augmentation keys against the text of plsc.data.images.EncodedImages, and docs/training.md's; their
picture can be made."""

import re
import runpy
import sys

import cv2
import pytest

from plsc.config import load
from plsc.data.augment import Augment
from plsc.data.images import EncodedImages
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
KEYS = vars(Augment())


def test_the_text_explains_every_key():
    assert [key for key in KEYS if f"`{key}`: " not in EncodedImages.__doc__] == []


def test_the_keys_in_the_page_are_a_config():
    (text,) = re.findall(r"^`(flip: .*?)` are keys", PAGE, re.MULTILINE)
    section = load(None, [f"DataLoader.Train.dataset={{name: ImageFolder, folder: faces, {text}}}"])
    assert section.DataLoader.Train.dataset.keywords.items() >= {"flip": True, "cutout": 0.1}.items()


@pytest.mark.slow
def test_the_picture_can_be_made(tmp_path, monkeypatch, capsys):
    target, own = tmp_path / "out.png", tmp_path / "own.png"
    cv2.imwrite(str(own), cv2.imread(str(ROOT / "docs/pictures/augmentation.png"))[:90, :120])
    monkeypatch.setattr(sys, "argv", ["plot_augmentation.py", str(target), str(own)])
    runpy.run_path(str(ROOT / "tools/plot_augmentation.py"))
    assert cv2.imread(str(target)).shape == cv2.imread(str(ROOT / "docs/pictures/augmentation.png")).shape
    said = dict(re.findall(r"^(\w[\w ]+?)(?:: \S+)? (\d+)$", capsys.readouterr().out, re.MULTILINE))
    assert set(said) == {"decoding the jpg", "off", "several", *KEYS}
