import os

import cv2
import numpy as np
import pytest

from plsc.data.rec import RecImages
from plsc.data.recordio import MAGIC, pack_image, write_records
from plsc.errors import MissingFileError, UserError
from tests.helpers.image_files import INSIGHTFACE, needs_insightface_files, png, write_rec
from tests.helpers.refusals import refusal

LABELS = [0, 0, (1.0, 0.0), 2, (2.0, 7.0)]


@pytest.mark.parametrize("header", [True, False])
def test_both_layouts_give_the_images_and_their_labels(header, tmp_path):
    path = write_rec(tmp_path / "a.rec", LABELS, header)
    data = RecImages(str(path), size=(12, 10), channels="BGR")
    assert data.labels.tolist() == [0, 0, 1, 2, 2] and data.labels.dtype == np.int64 and data.num_classes == 3
    for number in range(5):
        assert data.encoded(number).tobytes() == png(number)
        pixels = cv2.imdecode(data.encoded(number), cv2.IMREAD_COLOR).transpose(2, 0, 1)
        assert np.array_equal(data.sample(number, 0), pixels)
    assert data.title == "a.rec" and data.name(0) == (
        "record 1 (a.rec @ 40)" if header else "record 0 (a.rec @ 0)"
    )


def test_keys_out_of_order_give_the_order_of_the_keys(tmp_path):
    path = write_rec(tmp_path / "a.rec", [0, 1, 2], header=False)
    offsets = [line.split()[1] for line in path.with_suffix(".idx").read_text().splitlines()]
    path.with_suffix(".idx").write_text(
        "".join(f"{key}\t{offset}\n" for key, offset in zip((7, 0, 3), offsets))
    )
    data = RecImages(str(path))
    assert data.labels.tolist() == [1, 2, 0] and data.name(0).startswith("record 0 (a.rec @ ")


def refused(path, **options):
    return refusal(RecImages, str(path), **options).replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    "label, shown", [(0.5, "0.5"), (-1, "-1"), (float("nan"), "nan"), (2**24 + 2, "1.67772e+07")]
)
def test_labels_that_are_no_whole_numbers_name_the_record(label, shown, tmp_path):
    path = write_rec(tmp_path / "a.rec", [0, 1, label, label], header=False)
    said = refused(path)
    assert said.startswith("a.rec: record 2 (a.rec @ ")
    assert said.endswith(
        f" has label {shown}, which is not a whole number from 0 to 16,777,216, up to where float32 is exact "
        "(2 such labels in all)"
    )


def test_a_header_that_promises_other_images_is_refused(tmp_path):
    with write_records(str(tmp_path / "a.rec")) as write:
        write(pack_image(b"", (5.0, 6.0)))
        for number in range(2):
            write(pack_image(png(number), 0.0, number))
    assert refused(tmp_path / "a.rec").startswith(
        "a.rec: its header record promises 4 images, the index has 2 of them; "
    )


def write_many(path, images, promised):
    """A .rec of `images` records whose image is one byte, and its header, written by NumPy at once."""
    payload = [pack_image(b"", (float(promised + 1), float(promised + 2)), 0)]
    head = MAGIC.to_bytes(4, "little") + len(payload[0]).to_bytes(4, "little") + payload[0]
    record = np.zeros(images, [("magic", "<u4"), ("length", "<u4"), ("header", "V24"), ("image", "V4")])
    record["magic"], record["length"] = MAGIC, 25
    with open(path, "wb") as file:
        file.write(head)
        record.tofile(file)
    offsets = len(head) + record.itemsize * np.arange(images)
    with open(path.with_suffix(".idx"), "w") as file:
        file.write("0\t0\n")
        file.writelines(f"{key}\t{offset}\n" for key, offset in enumerate(offsets.tolist(), 1))


@pytest.mark.slow
def test_more_images_than_float32_counts_are_read(tmp_path):
    """Record 0 reports 16,777,220 where 16,777,219 is meant. WebFace42M's is rounded in this way."""
    many = 2**24 + 2
    write_many(tmp_path / "a.rec", many, many)
    data = RecImages(str(tmp_path / "a.rec"))
    assert len(data) == many and data.name(many - 1).startswith(f"record {many} (")
    write_many(tmp_path / "a.rec", many, many - 4)
    assert "promises 16,777,214 images, the index has 16,777,218 of them" in refused(tmp_path / "a.rec")


def test_more_images_than_the_header_promises_are_refused(tmp_path):
    write_many(tmp_path / "a.rec", 5, 4)
    assert "promises 4 images, the index has 5 of them" in refused(tmp_path / "a.rec")
    write_many(tmp_path / "a.rec", 5, 5)
    assert len(RecImages(str(tmp_path / "a.rec"))) == 5


def test_an_image_that_is_missing_among_the_others_is_refused(tmp_path):
    with write_records(str(tmp_path / "a.rec")) as write:
        for payload in (pack_image(b"", (3.0, 4.0)), *map(pack_image, (png(0), b"", png(1)), (0.0,) * 3)):
            write(payload)
    assert "a.rec: record 2 (a.rec @ " in refused(tmp_path / "a.rec")


def test_a_record_without_an_image_is_refused(tmp_path):
    with write_records(str(tmp_path / "a.rec")) as write:
        write(pack_image(png(0), 0.0))
        write(pack_image(b"", 0.0))
    assert refused(
        tmp_path / "a.rec"
    ) == "a.rec: record 1 (a.rec @ {}) has no image (1 such records in all)".format(
        os.path.getsize(tmp_path / "a.rec") - 32
    )


def test_missing_files_are_named(tmp_path):
    assert refusal(RecImages.check, kind=MissingFileError, path="no.rec").startswith(
        "path: file 'no.rec' does not exist (looked in "
    )
    path = write_rec(tmp_path / "a.rec", [0])
    path.with_suffix(".idx").unlink()
    assert refusal(RecImages, str(path), kind=MissingFileError).endswith(
        "a.idx: no such file, which MXNet's tools write beside a .rec"
    )


@needs_insightface_files
def test_mxnets_own_file_holds_868_images_of_100_people():
    data = RecImages(str(INSIGHTFACE / "lfw_mxnet" / "train.rec"))
    assert (len(data), data.num_classes) == (868, 100) and data.name(0) == "record 1 (train.rec @ 40)"
    assert data.sample(867, 0).shape == (3, 112, 112)
    assert all(data.encoded(index)[:2].tobytes() == b"\xff\xd8" for index in range(868))


@needs_insightface_files
def test_im2recs_own_file_gives_the_labels_of_its_list():
    folder = INSIGHTFACE / "popkorn_adaface"
    data = RecImages(str(folder / "train.rec"))
    rows = sorted(
        map(str.split, (folder / "train.lst").read_text().splitlines()), key=lambda row: int(row[0])
    )
    assert data.labels.tolist() == [int(float(row[1])) for row in rows]
    assert data.name(1).startswith("record 1 (") and data.records.keys.tolist() == [0, 4, 7, 5, 1, 6, 3, 2]


def test_random_damage_gives_one_line_or_the_file_as_it_is(tmp_path):
    path = write_rec(tmp_path / "a.rec", LABELS)
    whole = {name: (tmp_path / name).read_bytes() for name in ("a.rec", "a.idx")}
    rng = np.random.default_rng(0)
    refused = 0
    for turn in range(200):
        name = ("a.rec", "a.idx")[turn % 2]
        damaged = bytearray(whole[name])
        at = int(rng.integers(0, len(damaged)))
        if turn % 3:
            damaged[at] ^= 1 << int(rng.integers(0, 8))
        else:
            del damaged[at:]
        (tmp_path / name).write_bytes(damaged)
        try:
            data = RecImages(str(path))
            assert len(data) == 5 and all(len(data.encoded(index)) for index in range(5))
        except UserError as error:
            refused += 1
            assert str(tmp_path) in str(error) and "\n" not in str(error)
        (tmp_path / name).write_bytes(whole[name])
    assert refused > 100
