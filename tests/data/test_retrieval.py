import numpy as np
import pytest

from plsc.data.retrieval import QueryGallery
from plsc.errors import MissingFileError, UserError
from plsc.evaluation.sets import eval_set
from tests.helpers.image_files import png, write_folder


@pytest.fixture
def lists(tmp_path):
    """A gallery of four images and two queries, of the identities 7, 30 and shoe, from two cameras."""
    for number in range(6):
        (tmp_path / f"{number} a.png").write_bytes(png(number))
    (tmp_path / "gallery.txt").write_bytes(
        b"\xef\xbb\xbf0 a.png\t30\tc1\r\n1 a.png\t7\tc2\r\n2 a.png\t30\tc2\r\n3 a.png\tshoe\tc1\r\n"
    )
    (tmp_path / "query.txt").write_text("4 a.png\t30\tc2\n5 a.png\t7\tc2\n")
    return {"gallery": str(tmp_path / "gallery.txt"), "query": str(tmp_path / "query.txt")}


def test_lists_with_identities_and_cameras(lists):
    data = QueryGallery(**lists, size=(12, 10))
    eval_set(data).check()
    assert data.gallery.tolist() == [0, 1, 2, 3] and data.probe.tolist() == [4, 5] and data.num_images == 6
    assert data.names[data.identities].tolist() == ["30", "7", "30", "shoe", "30", "7"]
    assert data.cameras.tolist() == [0, 1, 1, 0, 1, 1]
    assert data.encoded(5).tobytes() == png(5) and data.title == "gallery"
    assert data.images(3, 5).shape == (2, 3, 12, 10)


def test_without_queries_every_image_is_one(lists, tmp_path):
    (tmp_path / "products.txt").write_text("0 a.png\t4\n1 a.png\t4\n2 a.png\t12\n")
    data = QueryGallery(str(tmp_path / "products.txt"))
    eval_set(data).check()
    assert data.probe.tolist() == data.gallery.tolist() == [0, 1, 2] and data.cameras is None
    assert data.identities[0] == data.identities[1] != data.identities[2]
    assert data.names is None  # numbers mean something in this list only


def test_a_query_that_is_in_the_gallery_is_one_image(lists, tmp_path):
    (tmp_path / "query.txt").write_text("5 a.png\t7\tc2\n./2 a.png\t30\tc2\n4 a.png\t30\tc2\n")
    data = QueryGallery(**lists)
    eval_set(data).check()
    assert data.probe.tolist() == [4, 2, 5] and data.num_images == 6
    assert [data.image_name(index)[-7:] for index in data.probe] == ["5 a.png", "2 a.png", "4 a.png"]
    assert data.names[data.identities[data.probe]].tolist() == ["7", "30", "30"]
    (tmp_path / "query.txt").write_text("3 a.png\tshoe\tc1\n")
    assert QueryGallery(**lists).probe.tolist() == [3]
    for line, rule in (
        ("7\tc1", "is of identity '7' as a query, of 'shoe'"),
        ("shoe\tc2", "is of camera 'c2'"),
    ):
        (tmp_path / "query.txt").write_text(f"3 a.png\t{line}\n")
        with pytest.raises(UserError, match=f"3 a.png: {rule}"):
            QueryGallery(**lists)


def test_folders_name_the_identities(tmp_path):
    gallery = write_folder(tmp_path / "gallery", {"Ann": 2, "Bob": 1})
    query = write_folder(tmp_path / "query", {"Bob": 2})
    data = QueryGallery(str(gallery), str(query), title="people", size=(12, 10))
    assert data.names[data.identities].tolist() == ["Ann", "Ann", "Bob", "Bob", "Bob"]
    assert data.title == "people" and data.image_name(3) == str(query / "Bob" / "Bob_0001.png")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "line 1: must be 'path<TAB>identity' or"),
        ("0 a.png 30\n", "line 1: must be 'path<TAB>identity' or"),
        ("0 a.png\t30\tc1\n1 a.png\t7\n\n", "line 2, line 3: must have 3 columns .* 2 bad lines"),
        ("0 a.png\t \tc1\n", "line 1: must have 3 columns"),
        ("0 a.png\t30\n", "one of the lists has cameras"),
        ("0 a.png\t30\tc1\nno\x1b.png\t7\tc1\n", r"line 2: no\\x1b.png does not exist"),
    ],
)
def test_wrong_lists_are_refused_in_one_line(lists, tmp_path, text, rule):
    (tmp_path / "query.txt").write_text(text)
    with pytest.raises(UserError, match=rule) as error:
        QueryGallery(**lists)
    assert "\n" not in str(error.value)


def test_wrong_arguments_are_refused_before_anything_is_read(lists, tmp_path):
    with pytest.raises(MissingFileError, match="'no.txt' does not exist"):
        QueryGallery.check(gallery="no.txt")
    with pytest.raises(UserError, match="two folders or two lists"):
        QueryGallery.check(gallery=lists["gallery"], query=str(tmp_path))


def test_cameras_must_be_whole_numbers_of_each_image(lists):
    data = QueryGallery(**lists)
    data.cameras = np.array(["a"] * 6)
    with pytest.raises(UserError, match="QueryGallery.cameras: must be int64"):
        eval_set(data).check()
