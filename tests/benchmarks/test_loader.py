"""The loader's benchmark: the twin's pictures are what the network would see, and its numbers add up."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import loader
from plsc.data.image_list import ImageList
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from tests.helpers.bounds import EPS, assert_within

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("twin", [loader.Normalised, loader.PerChannel])
def test_the_twins_yield_the_normalised_pictures_of_the_original(tmp_path, twin):
    data = ImageList(loader.write_jpgs(str(tmp_path), 12, 16), size=(10, 9), mean=100.0, scale=0.01)
    batches = [list(Loader(each, 5, 0, 1, seed=2).epoch(1)) for each in (data, twin(data))]
    assert len(batches[0]) == len(batches[1]) == 3
    for (images, labels, indices), (floats, *rest) in zip(*batches):
        assert all(np.array_equal(a, b) for a, b in zip((labels, indices), rest))
        bound = 2 * EPS * (images + 100.0) * 0.01
        assert_within(floats.view(np.float32), (images - 100.0) * 0.01, bound)


def test_the_jpgs_are_of_the_size_of_face_crops(tmp_path):
    data = ImageList(loader.write_jpgs(str(tmp_path), 20, 112))
    assert len(data) == 20 and data.num_classes == 10
    assert 2000 < np.mean([len(data.encoded(index)) for index in range(20)]) < 6000
    assert len({data.sample(index, 0).tobytes() for index in range(20)}) == 20


def test_the_numbers_add_up(tmp_path, capsys):
    sizes = ["--images", "30", "--size", "16", "--batch", "8", "--runs", "1", "--workers", "1", "2"]
    assert benchmark.main(["loader", *sizes, "--json", str(tmp_path / "loader.json")]) == 0
    found = json.loads((tmp_path / "loader.json").read_text())
    assert found["images"] == 30 and found["shape"] == [3, 16, 16] and found["workers"] == [1, 2]
    for twin in ("float32", "per_channel"):
        assert found[f"over_{twin}"] == [ours / theirs for ours, theirs in zip(found["uint8"], found[twin])]
    assert min(found["uint8"]) > 0 and found["identical"] is True
    said = capsys.readouterr().out
    assert said.startswith("30 images [3, 16, 16], batches of 8") and "workers  uint8 img/s" in said
    assert said.endswith("batches with 0, 1 workers: the same bit for bit\n")


def test_a_path_is_read_instead_of_synthetic_pictures(tmp_path):
    path = loader.write_jpgs(str(tmp_path), 12, 16)
    target = tmp_path / "loader.json"
    assert (
        benchmark.main(
            ["loader", path, "--size", "8", "--workers", "0", "--runs", "1", "--json", str(target)]
        )
        == 0
    )
    assert json.loads(target.read_text())["images"] == 12 and json.loads(target.read_text())["shape"] == [
        3,
        8,
        8,
    ]


def test_a_changed_bit_is_seen():
    class Other(Synthetic):
        def sample(self, index, epoch):
            return super().sample(index, epoch) ^ np.uint8(index == 7)

    one, other = (Loader(kind(5, 2, (1, 4, 4)), 4, 0, 1, seed=0) for kind in (Synthetic, Other))
    assert loader.checksum(one) == loader.checksum(one) != loader.checksum(other)
