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


@pytest.mark.parametrize("channels", ["RGB", "grey"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_image_is_looked_at(channels, threads, tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 130, "Bob": 150})  # more than two parts
    (folder / "Bob" / "Bob_0001.png").write_bytes(
        cv2.imencode(".png", np.zeros((7, 9, 3), np.uint8))[1].tobytes()
    )
    data = ImageFolder(str(folder), size=(112, 112), channels=channels)
    (folder / "Ann" / "Ann_0002.png").write_bytes(b"broken")
    (folder / "Ann" / "Ann_0003.png").unlink()
    (folder / "Ann" / "Ann_0004.png").write_bytes(b"")
    found = scan(eval_set(data), threads)
    assert [*found.faults] == [1, 2, 3]
    assert (
        found.faults[1]
        == f"{folder}/Ann/Ann_0002.png: not an image that OpenCV can decode (6 bytes); cut off, or not an image?"
    )
    assert found.faults[2].endswith("Ann_0003.png: no such image")
    assert found.sizes[:5].tolist() == [[12, 10], [0, 0], [0, 0], [0, 0], [12, 10]] and found.sizes[
        130
    ].tolist() == [7, 9]
    good = [index for index in range(280) if index not in found.faults]
    flag = cv2.IMREAD_GRAYSCALE if channels == "grey" else cv2.IMREAD_COLOR
    pixels = [cv2.imdecode(data.encoded(index), flag).astype(float) for index in good]
    mean = np.mean([picture.mean() for picture in pixels])  # each image counts alike
    square = np.mean([(picture**2).mean() for picture in pixels])
    assert np.allclose([found.mean, found.std], [mean, np.sqrt(square - mean**2)])
    digest = hashlib.blake2b(png(0), digest_size=16).digest()
    assert found.digests[0].tobytes() == digest and not found.digests[1].any()


def test_one_huge_image_does_not_sway_the_mean(tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 99, "Bob": 1})
    before = scan(eval_set(ImageFolder(str(folder))))
    black = np.zeros((1200, 1200, 3), np.uint8)
    (folder / "Bob" / "Bob_0001.png").write_bytes(cv2.imencode(".png", black)[1].tobytes())
    after = scan(eval_set(ImageFolder(str(folder))))
    assert abs(after.mean - before.mean) < 3 and abs(after.std - before.std) < 3


def test_sets_without_files_and_pairs_are_looked_at_too(tmp_path):
    write_pack(str(tmp_path / "a.bin"), [png(0), png(1)] * 2, [True, False])
    for images in (Synthetic(num_classes=3), GlyphPairs(num_pairs=5), BinPairs(str(tmp_path / "a.bin"))):
        found = scan(eval_set(images))
        assert len(found.digests) == eval_set(images).count and not found.faults and found.std > 0
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
