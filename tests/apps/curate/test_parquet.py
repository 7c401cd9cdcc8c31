"""Parquet files of images: structs, bytes and paths, labels as numbers and names, row groups, and what is
refused."""

import json
import os
import tarfile

import pytest

from plsc.apps.curate.convert import convert
from plsc.apps.curate.parquet import ParquetImages
from plsc.data.autodetect import open_images
from plsc.data.shards import Shards
from plsc.errors import CorruptImageError, MissingFileError, UserError
from tests.helpers.image_files import png

pa = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, images, labels, names=None, groups=2, **others):
    table = pa.table({"image": images, "label": labels, **others})
    if names:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path, row_group_size=groups)


def structs(numbers):
    return [{"bytes": png(number), "path": f"{number}.png"} for number in numbers]


def test_two_files_of_structs_become_shards_with_the_names(here):
    (here / "set").mkdir()
    names = ["Ann", "Bob", "Cy"]
    write("set/train-00000-of-00002.parquet", structs(range(5)), [0, 1, 1, 2, 0], names)
    write("set/train-00001-of-00002.parquet", structs(range(5, 8)), [2, 1, 0], names, extra=["x", "y", "z"])
    assert convert("set", "out", shards=2) == "out: 8 images of 3 identities"
    shards = Shards("out")
    assert shards.identities.tolist() == names and shards.labels.tolist() == [0, 1, 1, 2, 0, 2, 1, 0]
    assert [shards.encoded(index).tobytes() for index in range(8)] == [png(index) for index in range(8)]
    images = ParquetImages("set")
    assert images.name(6) == "set/train-00001-of-00002.parquet: row 1"
    assert images.encoded(7).tobytes() == png(7) and images.encoded(0).tobytes() == png(0)


@pytest.mark.parametrize("kind", ["bytes", "paths", "structs of paths"])
def test_kinds_of_images_and_labels_that_are_names(here, kind):
    (here / "pictures").mkdir()
    for number in range(3):
        (here / "pictures" / f"{number}.png").write_bytes(png(number))
    paths = [f"{number}.png" for number in range(3)]
    images = {
        "bytes": [png(number) for number in range(3)],
        "paths": paths,
        "structs of paths": [{"bytes": None, "path": path} for path in paths],
    }[kind]
    write("a.parquet", images, ["Bob", "Ann", "Bob"])
    data = ParquetImages("a.parquet", root="pictures")
    assert data.labels.tolist() == [1, 0, 1] and data.identities.tolist() == ["Ann", "Bob"]
    assert [data.encoded(index).tobytes() for index in range(3)] == [png(index) for index in range(3)]
    assert convert("a.parquet", "a.rec", root="pictures") == "a.rec: 3 images of 2 identities"


def test_what_is_refused(here):
    write("gap.parquet", structs(range(2)), [0, 2])
    write("none.parquet", structs(range(3)), [0, None, 1])
    write("minus.parquet", structs(range(2)), [0, -1])
    write("float.parquet", structs(range(2)), [0.0, 1.0])
    pq.write_table(pa.table({"a": [1], "label": [0]}), "columns.parquet")
    (here / "cut.parquet").write_bytes((here / "gap.parquet").read_bytes()[:-300])
    cases = {
        "gap": "gap.parquet: no image has label 1 (1 of the labels 0 to 2 are missing)",
        "none": "none.parquet: 1 row without a label",
        "minus": "minus.parquet: label must be 0 or more, has -1; leave these rows out",
        "float": "float.parquet: label must be whole numbers or text, is double",
        "columns": "columns.parquet: must have a column image or img or picture or jpg or path or file_name, has a, label; rename one",
        "cut": "cut.parquet: is damaged, or has other columns than its first file: ",
    }
    for name, message in cases.items():
        with pytest.raises(UserError) as raised:
            ParquetImages(f"{name}.parquet")
        assert str(raised.value).startswith(message)
    for image, name in ((pa.array([[1], [2]]), "lists"), (pa.array([1, 2]), "numbers")):
        write(f"{name}.parquet", image, [0, 1])
        with pytest.raises(
            UserError, match=f"{name}.parquet: row 1: image must be the bytes of a file, its path, or"
        ):
            ParquetImages(f"{name}.parquet").encoded(1)
    with pytest.raises(MissingFileError, match="'no.parquet' does not exist"):
        ParquetImages("no.parquet")
    write("empty.parquet", [None, {"bytes": None, "path": "x"}], [0, 1])
    with pytest.raises(CorruptImageError, match="empty.parquet: row 0: has no image"):
        ParquetImages("empty.parquet").encoded(0)


@pytest.mark.parametrize("column", ["label", "image"])
def test_a_second_file_without_a_column_is_refused(here, column):
    (here / "set").mkdir()
    write("set/1.parquet", structs(range(2)), [0, 1])
    pq.write_table(pq.read_table("set/1.parquet").drop_columns([column]), "set/2.parquet")
    with pytest.raises(
        UserError, match=f"^set: is damaged, or has other columns than its first file: .*{column}"
    ):
        ParquetImages("set")


@pytest.mark.parametrize("name", ["a\0b", "é" * 128, "..", "a/"])
def test_names_that_no_folder_can_have_become_numbers(here, name):
    write("a.parquet", structs(range(2)), ["Ann", name])
    convert("a.parquet", "folder")
    convert("a.parquet", "shards", shards=1)
    assert sorted(os.listdir("folder")) == ["0", "1"]
    with tarfile.open("shards/00000.tar") as tar:
        assert tar.getnames()[::2] == ["00000000.png", "00000001.png"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.png", "set/../../outside.png"])
def test_a_path_outside_of_the_root_is_refused(here, path):
    (here / "set").mkdir()
    write("set/a.parquet", [{"bytes": None, "path": path}] * 2, [0, 1])
    with pytest.raises(
        UserError, match=f"row 0: {path} lies outside of {here}/set; name the folder of the images by"
    ):
        convert("set/a.parquet", "a.rec")
    (here / "outside.png").write_bytes(png(0))
    write("set/a.parquet", [{"bytes": None, "path": str(here / "outside.png")}] * 2, [0, 1])
    convert("set/a.parquet", "a.rec", root=str(here))


def test_training_from_it_is_refused_with_the_remedy(here):
    write("a.parquet", structs(range(2)), [0, 1])
    with pytest.raises(UserError) as raised:
        open_images("a.parquet")
    assert (
        str(raised.value)
        == "a.parquet: is Parquet, which is converted first: plsc convert a.parquet NAME --to shards"
    )
