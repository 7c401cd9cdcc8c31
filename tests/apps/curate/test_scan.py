import hashlib

import cv2
import numpy as np
import pytest

from plsc.apps.curate.scan import same_content, scan
from plsc.data.bin_packs import BinPairs, write_pack
from plsc.data.folder import ImageFolder
from plsc.data.glyphs import GlyphPairs
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import eval_set
from tests.helpers.image_files import png, write_folder


def test_every_image_is_looked_at(tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 130, "Bob": 150})  # more than two parts
    cv2.imwrite(str(folder / "Bob" / "Bob_0001.png"), np.zeros((7, 9, 3), np.uint8))
    data = ImageFolder(str(folder), size=(112, 112))
    (folder / "Ann" / "Ann_0002.png").write_bytes(b"broken")
    (folder / "Ann" / "Ann_0003.png").unlink()
    (folder / "Ann" / "Ann_0004.png").write_bytes(b"")
    found = scan(eval_set(data))
    assert [*found.faults] == [1, 2, 3] and found.dark == {130: "all pixels are 0"}
    assert found.faults[1].startswith(f"{folder}/Ann/Ann_0002.png: not an image that OpenCV can decode")
    assert found.faults[2].endswith("Ann_0003.png: no such image")
    digest = hashlib.blake2b(png(0), digest_size=16).digest()
    assert found.digests[0].tobytes() == digest and not found.digests[1].any()


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("shape", [(20, 20), (20, 20, 3)])
def test_pictures_of_10_to_14_bits_in_16_are_read_as_nearly_black(tmp_path, kind, shape):
    folder = write_folder(tmp_path / "faces", {"Bob": 1})
    draws = np.random.default_rng(0)
    for bits in (10, 12, 14, 16):
        (folder / f"{bits} bits").mkdir()
        pixels = draws.integers(0, 2**bits, shape, np.uint16)
        pixels[0, 0] = 2**bits - 1
        cv2.imwrite(str(folder / f"{bits} bits" / f"1.{kind}"), pixels)
    said = scan(eval_set(ImageFolder(str(folder)))).dark
    remedy = "read as nearly black; scale to 65,535 or to 8 bits"
    assert said == {
        n: f"16-bit, largest value {most}: {remedy}" for n, most in enumerate(("1,023", "4,095", "16,383"))
    }


def test_sets_without_files_and_pairs_are_looked_at_too(tmp_path):
    write_pack(str(tmp_path / "a.bin"), [png(0), png(1)] * 2, [True, True])
    for images in (
        Synthetic(num_classes=3),
        GlyphPairs(num_pairs=5, held_out=0.02),
        BinPairs(str(tmp_path / "a.bin")),
    ):
        found = scan(eval_set(images))
        assert len(found.digests) == eval_set(images).count and not found.faults
    assert [group.tolist() for group in same_content(found.digests)] == [[0, 2], [1, 3]]


def test_the_same_content_is_found_and_nothing_else():
    rng = np.random.default_rng(0)
    digests = rng.integers(0, 3, (60, 2)).astype(np.uint64)
    groups = {}
    for index, digest in enumerate(map(tuple, digests.tolist())):
        groups.setdefault(digest, []).append(index)
    wanted = sorted(group for digest, group in groups.items() if len(group) > 1 and any(digest))
    assert [group.tolist() for group in same_content(digests)] == wanted
    assert same_content(np.zeros((3, 2), np.uint64)) == []
