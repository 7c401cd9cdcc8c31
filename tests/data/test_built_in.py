"""Every built-in data set is built and keeps the promises of its kind."""

import cv2
import numpy as np
import pytest

from plsc.data.bin_packs import write_pack
from plsc.data.config import DATASETS
from plsc.data.dataset import Dataset, IdentificationSet, PairSet
from plsc.evaluation.sets import eval_set
from tests.helpers.idx_files import write_idx
from tests.helpers.image_files import png, write_folder, write_rec


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Arguments with which each built-in data set is built. A data set that is missing here fails its
    test."""
    tmp_path = tmp_path_factory.mktemp("examples")
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((10, 10, 3), 60 * number, np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{number}.png\t{number // 2}\n" for number in range(4)))
    idx = {
        "images": str(write_idx(tmp_path / "images", np.zeros((4, 5, 6), np.uint8))),
        "labels": str(write_idx(tmp_path / "labels", np.array([1, 0, 1, 0], np.uint8))),
    }
    faces = str(write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 3}))
    write_pack(str(tmp_path / "a.bin"), map(png, range(6)), [True, False, True])
    (tmp_path / "pairs.csv").write_text("0.png,1.png,1\n1.png,2.png,0\n")
    (tmp_path / "media.txt").write_text("".join(f"{n}.png {n // 2} {n}\n" for n in range(4)))
    (tmp_path / "templates.txt").write_text("0 1 0\n1 1 1\n")
    return {
        "BinPairs": {"path": str(tmp_path / "a.bin"), "size": (16, 12)},
        "GalleryProbe": {"gallery": faces, "probe": faces},
        "IjbPairs": {"images": str(tmp_path / "media.txt"), "list": str(tmp_path / "templates.txt")},
        "ImageFolder": {"folder": faces},
        "ImagePairs": {"images": faces, "num_pairs": 4},
        "PairList": {"list": str(tmp_path / "pairs.csv")},
        "IdxImages": idx,
        "Glyphs": {"held_out": 0.9},
        "GlyphPairs": {"num_pairs": 50, "held_out": 0.05},
        "ImageList": {"list": str(tmp_path / "list.txt"), "size": (16, 12), "flip": True},
        "RecImages": {"path": str(write_rec(tmp_path / "a.rec", [0, 0, 1, 1])), "flip": True},
        "Synthetic": {"num_classes": 3},
    }


@pytest.mark.parametrize("name", DATASETS.builtin)
def test_a_built_in_data_set_is_built_and_keeps_its_promises(name, examples):
    assert name in examples, f"give {name} its arguments in the fixture 'examples'"
    first, second = (DATASETS.get(name)(**examples[name]) for _ in range(2))
    eval_set(first).check()
    expected = first.preprocessing
    assert expected.shape == first.image_shape
    if isinstance(first, IdentificationSet):
        assert {*first.gallery.tolist(), *first.probe.tolist()} <= {*range(first.num_images)}
        assert len(first.identities) == first.num_images
        one, other, named = first.image(1), second.image(1), first.image_name(1)
    elif isinstance(first, PairSet):
        assert first.pairs.shape == (len(first.same), 2) and first.same.dtype == bool and first.title
        templates = getattr(first, "template", np.arange(first.num_images))
        assert len(templates) == first.num_images and np.isin(first.pairs, templates).all()
        one, other, named = first.image(1), second.image(1), first.image_name(1)
    else:
        assert isinstance(first, Dataset)
        assert sorted(set(first.labels.tolist())) == list(range(first.num_classes))
        one, other, named = first.sample(1, 5), second.sample(1, 5), first.name(1)
    assert one.shape == expected.shape and one.dtype == np.uint8 and named
    assert one.tobytes() == other.tobytes(), "two of the same data set must give the same images"
