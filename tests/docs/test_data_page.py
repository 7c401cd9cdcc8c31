"""docs/data.md names data sets that a config may name, and no format is missing."""

import re

import numpy as np
import paddle
import pytest
import yaml
from paddle import nn

from plsc.config import load
from plsc.data.config import DATASETS
from plsc.data.dataset import make_sample
from tests.helpers.launch import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def rows(heading):
    """The data sets in the table below a heading."""
    chapter = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\|.*\| `(\{.*\})` \|$", chapter, re.MULTILINE)


@pytest.mark.parametrize("part, text", [(part, text) for part in ("Train", "Verify") for text in rows(part)])
def test_a_row_is_a_data_set_of_a_config(part, text):
    section = "Train" if part == "Train" else "Eval"
    assert load(None, [f"DataLoader.{section}.dataset={text}"])


def test_every_format_has_a_row():
    named = {yaml.safe_load(text)["name"] for part in ("Train", "Verify") for text in rows(part)}
    without_files = {"Glyphs", "GlyphPairs", "Synthetic"}
    assert {*DATASETS.builtin} - named == without_files


def test_its_network_gets_the_vectors_that_its_data_set_stores(tmp_path):
    mine = {}
    exec(re.search(r"```python\n# vectors.py\n(.*?)```", PAGE, re.DOTALL)[1], mine)
    vectors = np.random.default_rng(0).uniform(-4, 4, (6, 128)).astype(np.float32)
    vectors[0, :2] = -4, 4
    np.save(tmp_path / "x.npy", vectors)
    np.save(tmp_path / "y.npy", np.arange(6) // 2)
    data = mine["Vectors"](str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))
    assert data.num_classes == 3 and len(data) == 6
    samples = np.stack([make_sample(data, index, 0, data.preprocessing.shape) for index in range(6)])
    network = mine["Perceptron"](4)
    got = network(paddle.to_tensor(data.preprocessing(samples))).numpy()
    expected = nn.Sequential.forward(network, paddle.to_tensor(vectors)).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-2)  # a number is rounded to 4 / 65535
