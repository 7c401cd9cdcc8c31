"""What becomes of images that cannot be decoded: a few replaced and said, many refused before the first
step."""

import re

import cv2
import numpy as np
import pytest

from plsc.data.corrupt_images import PROBE, CorruptImages
from plsc.data.image_list import ImageList
from plsc.data.loader import Loader
from plsc.errors import CorruptImageError
from tests.data.counting import Counting
from tests.helpers.refusals import refusal


def said(capsys):
    return [line.partition("WARNING ")[2] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_of_a_thousand_is_replaced_and_reported_once(capsys, num_workers):
    loader = Loader(Counting(1000, (200,)), 50, 0, 1, seed=3, num_workers=num_workers)
    loader.probe()
    for epoch in (0, 1):
        replaced = []
        for images, labels, indices, *_ in loader.from_step(epoch * loader.steps_per_epoch):
            assert 200 not in indices and np.array_equal(labels, 3 * indices)
            assert np.array_equal(images[:, 0, 0, 0], indices % 256) and np.all(images[:, 0, 0, 1] == epoch)
            replaced += indices.tolist()
        assert len(replaced) == 1000 and len(set(replaced)) == 999
        substitute = next(index for index in replaced if replaced.count(index) == 2)
    (line,) = said(capsys)
    assert line == (
        f"cannot decode record 200 (train.rec @ 819200): replaced by sample {substitute}; 1 replaced so far "
        "(at most 10 per epoch, over all ranks)"
    )


def test_what_is_found_before_the_first_step_is_reported_although_it_is_allowed(capsys):
    """A run that is resumed may not come to such an image for a long time."""
    CorruptImages(Counting(500, (0, 1, 2, 3, 4))).probe(0)
    (line,) = said(capsys)
    assert re.fullmatch(
        r"\d of 256 images tried cannot be decoded: record .*; others will replace them", line
    )


def test_a_name_with_a_line_break_does_not_forge_a_line_of_the_log(capsys):
    class Forged(Counting):
        def name(self, index):
            return "a\n2026-01-01 00:00:00 INFO training is done"

    corrupt = CorruptImages(Forged(1000))
    corrupt.note([(0, 7, 3)])
    (line,) = capsys.readouterr().out.splitlines()
    assert "cannot decode a\\n2026-01-01" in line
    refusal(corrupt.refuse, range(20), kind=CorruptImageError)


def test_a_fifth_is_refused_before_the_first_batch():
    """For each batch size and world size, with the same line on each rank."""
    data = Counting(1000, tuple(range(0, 1000, 5)))
    lines = set()
    for world_size, global_batch in ((1, 4), (2, 256), (4, 32)):
        for rank in range(world_size):
            loader = Loader(data, global_batch, rank, world_size, 3)
            lines.add(refusal(loader.probe, kind=CorruptImageError).partition(";")[0])
    (line,) = lines
    count, seen = (int(word) for word in line.split(" images tried ")[0].split(" of "))
    assert 0.12 < count / seen < 0.28 and seen == PROBE
    assert line.count("record") == 3 and line.endswith(", ...")


def test_the_line_that_refuses(capsys):
    corrupt = CorruptImages(Counting(400))
    corrupt.note([(0, 5, 1), (1, 6, 2), (2, 7, 3), (3, 8, 4), (0, 9, 5)])
    assert refusal(corrupt.refuse, corrupt.replaced, kind=CorruptImageError) == (
        "5 images of an epoch cannot be decoded: record 5 (train.rec @ 20480), record 6 (train.rec @ 24576), "
        "record 7 (train.rec @ 28672), ...; at most 1 in 100 may be replaced; plsc doctor lists them "
        "all: repair or remove them"
    )
    assert said(capsys)[-1].endswith("5 replaced so far (at most 4 per epoch, over all ranks)")


def test_the_limit_is_that_of_all_ranks():
    """200 images, one of them corrupt: allowed on one rank, so on four ranks too."""
    for ranks in (1, 2, 4):
        loaders = [Loader(Counting(200, (20,)), 20, rank, ranks, seed=3) for rank in range(ranks)]
        for loader in loaders:
            list(loader.from_step(0))
        assert sum(len(loader.corrupt.replaced) for loader in loaders) == 1
        assert {loader.corrupt.limit for loader in loaders} == {2}


def test_the_same_samples_take_their_place_on_any_number_of_ranks():
    data = Counting(900, (3, 77, 130))

    def flat(world_size, num_workers=0):
        loaders = [Loader(data, 24, rank, world_size, 9, num_workers) for rank in range(world_size)]
        return [
            index
            for step in zip(*(loader.from_step(2 * loader.steps_per_epoch) for loader in loaders))
            for _, _, indices, *_ in step
            for index in indices.tolist()
        ]

    one = flat(1)
    assert len(one) == 900 and not {3, 77, 130} & set(one)
    assert one == flat(2) == flat(3) == flat(1, num_workers=2)


def test_sets_to_evaluate_on_are_never_patched():
    data = Counting(100, (7,))
    assert len(data.images(0, 7)) == 7
    assert (
        refusal(data.images, 0, 8, kind=CorruptImageError)
        == "record 7 (train.rec @ 28672): not an image that OpenCV can decode"
    )


def test_a_small_set_is_probed_whole():
    assert refusal(Loader(Counting(40, (39,)), 8, 0, 1, seed=0).probe, kind=CorruptImageError).startswith(
        "1 of 40 images tried"
    )
    Loader(Counting(100, (39,)), 8, 0, 1, seed=0).probe()


def test_pictures_of_few_bits_in_16_are_reported_before_the_first_step(tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 1021, (8, 8), np.uint16)
    pixels[0, 0] = 1020
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), pixels * (1 if number else 64))
    (tmp_path / "list.txt").write_text("".join(f"{number}.png\t{number // 2}\n" for number in range(3)))
    Loader(ImageList(str(tmp_path / "list.txt"), size=(8, 8)), 2, 0, 1, seed=0).probe()
    assert said(capsys) == [
        (
            f"2 of 3 images tried are almost empty: {tmp_path}/1.png: 16-bit, largest value 1,020: read "
            "as nearly black; scale to 65,535 or to 8 bits"
        )
    ]
