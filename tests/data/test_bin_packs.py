import os
import pickle

import numpy as np
import pytest

from plsc.data.bin_packs import BinPairs, write_pack
from tests.helpers.image_files import INSIGHTFACE, needs_insightface_files, png
from tests.helpers.refusals import refusal

FORMS = {
    "bytes": lambda image: image,
    "column": lambda image: np.frombuffer(image, np.uint8)[:, np.newaxis],
    "row": lambda image: np.frombuffer(image, np.uint8),
    "python 2": lambda image: image.decode("latin-1"),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_images_are_read(form, tmp_path):
    path = tmp_path / "lfw.bin"
    path.write_bytes(
        pickle.dumps(([FORMS[form](png(number)) for number in range(6)], [True, np.bool_(False), 1]), 2)
    )
    pairs = BinPairs(str(path), size=(12, 10))
    assert pairs.num_images == 6 and pairs.pairs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert pairs.same.tolist() == [True, False, True] and pairs.same.dtype == bool
    assert [pairs.encoded(number).tobytes() for number in range(6)] == [png(number) for number in range(6)]
    assert pairs.title == "lfw"
    assert pairs.image_name(3) == "lfw.bin: image 3 (pair 1)" and pairs.images(0, 6).shape == (6, 3, 12, 10)


def test_what_is_written_is_read(tmp_path):
    write_pack(
        str(tmp_path / "a.bin"), (np.frombuffer(png(n), np.uint8) for n in range(4)), np.array([True, False])
    )
    pairs = BinPairs(str(tmp_path / "a.bin"))
    assert pairs.encoded(2).tobytes() == png(2) and pairs.same.tolist() == [True, False]
    images, flags = pickle.loads((tmp_path / "a.bin").read_bytes())
    assert images == [png(n) for n in range(4)] and flags == [True, False], "as InsightFace reads it"


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pack_that_asks_for_more_is_refused(tmp_path):
    (tmp_path / "evil.bin").write_bytes(
        pickle.dumps(([png(0), png(1)], [True], Evil(str(tmp_path / "marker"))))
    )
    assert refusal(BinPairs, str(tmp_path / "evil.bin")).endswith(
        "evil.bin: refused: the file asks for posix.mkdir; none of it was run"
    )
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "pack, said",
    [
        ([1, 2, 3], "is not a verification pack, which holds a list of images and a list of flags"),
        (
            ([b"a"] * 3, [True]),
            "has 3 images and 1 flags; a pack has two images for each flag, and at least one flag",
        ),
        (([b"a"] * 4, [True, 2]), "flag 1 is a int, must be true or false, 1 or 0"),
        (([b"a", None], [True]), "image 1 is NoneType, must be the bytes of an encoded image"),
        (
            ([b"a", np.zeros(3)], [True]),
            "image 1 is an array of float64, must be the bytes of an encoded image",
        ),
    ],
)
def test_what_is_no_pack_is_refused(pack, said, tmp_path):
    (tmp_path / "a.bin").write_bytes(pickle.dumps(pack))
    assert refusal(BinPairs, str(tmp_path / "a.bin")) == f"{tmp_path}/a.bin: {said}"


@needs_insightface_files
def test_the_real_packs_hold_what_they_should():
    devtest = BinPairs(str(INSIGHTFACE / "lfw_mxnet" / "lfw_devtest.bin"))
    assert (devtest.num_images, len(devtest.same), int(devtest.same.sum())) == (2000, 1000, 500)
    small = BinPairs(str(INSIGHTFACE / "small_lfw.bin"))
    assert (small.num_images, small.same.tolist()) == (20, [True] * 10)
    for pairs in (devtest, small):
        assert pairs.image(pairs.num_images - 1).shape == (3, 112, 112)
