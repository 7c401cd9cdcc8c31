import numpy as np
import pytest

from plsc.data import image_list
from plsc.data.image_list import ImageList, Paths, identity_names, read_list
from plsc.errors import MissingFileError
from tests.helpers.image_files import write_list
from tests.helpers.refusals import refusal


def test_tabs_spaces_crlf_and_byte_order_mark_are_read(folder):
    paths, labels, _ = read_list(
        write_list(folder, b"\xef\xbb\xbfa.png\t0\r\nb c.png\t1\r\nb c.png 1\n\xc3\xa4.png  0")
    )
    assert labels.tolist() == [0, 1, 1, 0] and labels.dtype == np.int64
    assert list(paths) == [str(folder / name) for name in ("a.png", "b c.png", "b c.png", "ä.png")]
    assert paths[-1] == paths[3] and len(paths) == 4
    with pytest.raises(IndexError):
        paths[4]


def test_paths_start_at_the_root(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("lists")
    paths, _, _ = read_list(write_list(elsewhere, "a.png\t0\n/b.png\t0\n"), root=str(folder))
    assert list(paths) == [str(folder / "a.png"), "/b.png"]


def test_a_list_for_prediction_needs_no_labels(folder):
    paths, labels, _ = read_list(write_list(folder, "a.png\nb c.png\nä.png\t7\n"), labelled=False)
    assert [path.rsplit("/", 1)[1] for path in paths] == ["a.png", "b c.png", "ä.png"]
    assert labels.tolist() == [-1, -1, 7]


def test_commas_between_the_columns_are_told(folder):
    said = refusal(read_list, write_list(folder, "a b.png,0\nb.png, 1\n"))
    assert said.endswith("; the columns are separated by commas: give the file a name that ends in .csv")
    assert not refusal(read_list, write_list(folder, "a.png,\n")).endswith(".csv")


CSV = b'\xef\xbb\xbfimage,class\r\n"b c.png","shoe, left"\r\na.png,sku 007\r\nsub/a.png,"shoe, left"\r\n'


def test_a_csv_with_names_is_a_data_set(folder, capsys):
    """The names are those of the classes, in sorted order, as with folders."""
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub/a.png").write_bytes((folder / "a.png").read_bytes())
    (folder / "list.csv").write_bytes(CSV)
    data = ImageList(str(folder / "list.csv"))
    assert data.labels.tolist() == [0, 1, 0] and data.class_names == ["shoe, left", "sku 007"]
    assert data.name(0) == str(folder / "b c.png")
    said = capsys.readouterr().out
    assert f"{folder}/list.csv: line 1 is taken for a heading: 'image,class'\n" in said
    assert f"{folder}/list.csv: 2 classes, numbered by their sorted names\n" in said
    assert read_list(str(folder / "list.csv"), labelled=False)[1].tolist() == [-1, -1, -1]
    (folder / "list.csv").write_text("path\na.png\n")
    assert [*read_list(str(folder / "list.csv"), labelled=False)[0]] == [str(folder / "a.png")]
    (folder / "list.csv").write_text("a.png,0\nb c.png,1\n")
    assert ImageList(str(folder / "list.csv")).labels.tolist() == [0, 1]


def test_names_follow_a_tab_and_have_one_form(folder):
    path = write_list(folder, "a.png\tJose\u0301\na.png\tAnn Lee\nä.png\tJos\u00e9\n")
    data = ImageList(path)
    assert data.labels.tolist() == [1, 0, 1] and data.class_names == ["Ann Lee", "Jos\u00e9"]
    assert refusal(read_list, write_list(folder, "a.png Ann\n")).endswith(
        "line 1: label 'Ann' is not a whole number from 0 up; the label is a number or, after a tab, a name"
    )


def test_a_missing_first_image_is_no_heading(folder):
    path = write_list(folder, "gone.png\tAnn\na.png\tBob\n")
    assert "1 of its images do not exist: gone.png" in refusal(ImageList, path, kind=MissingFileError)


def test_a_csv_with_more_columns_is_refused(folder):
    (folder / "list.csv").write_text("a.png,Ann,train\n")
    said = refusal(read_list, str(folder / "list.csv"))
    assert said.endswith("each line must be 'path,label'; line 1: has 3 columns")


def test_bad_lines_are_all_reported(folder):
    path = write_list(folder, "a.png\t0\na.png\ta b\n\na.png\na.png\t-1\n")
    assert refusal(read_list, path) == (
        f"{path}: each line must be 'path<TAB>label'; line 2: label 'a b' is not a whole number from 0 up, "
        "as other labels are; line 3: empty; line 4: 'a.png' is not both a path and a label; "
        "line 5: label '-1' is not a whole number from 0 up, as other labels are"
    )
    assert refusal(read_list, write_list(folder, "\n".join("abcdefg"))).endswith(
        "line 5: 'e' is not both a path and a label; 7 bad lines in all; the label is a number or, "
        "after a tab, a name"
    )


def test_an_empty_list_is_refused(folder):
    assert refusal(read_list, write_list(folder, "")).endswith(
        "list.txt: the list is empty; it needs one image per line"
    )


def test_missing_files_are_named(folder):
    assert refusal(ImageList.check, kind=MissingFileError, list="no.txt").startswith(
        "list: file 'no.txt' does not exist (looked in "
    )
    assert refusal(
        ImageList.check, kind=MissingFileError, list=write_list(folder, "a.png\t0\n"), root="nowhere"
    ).startswith("root: folder 'nowhere' does not exist (looked in ")


def test_image_list_is_a_data_set(folder):
    data = ImageList(write_list(folder, "a.png\t0\nb c.png\t1\nä.png\t1\n"), size=(12, 16), channels="grey")
    assert len(data) == 3 and data.num_classes == 2 and data.labels.tolist() == [0, 1, 1]
    assert data.image_shape == (1, 12, 16) and data.sample(1, 0).shape == (1, 12, 16)
    assert data.name(1) == str(folder / "b c.png") and data.title == f"{folder.name}/list.txt"


def test_some_of_many_paths():
    names = ["a", "", "bcd", "ä", "e"]
    some = Paths.of("root", names).where(np.array([True, False, True, True, False]))
    assert list(some) == ["root/a", "root/bcd", "root/ä"] and some.written(1) == "bcd"


def test_missing_images_are_counted_and_named_before_the_first_step(folder):
    path = write_list(folder, "a.png\t0\nx.png\t0\n" + "".join(f"y{n}.png\t0\n" for n in range(3)))
    assert refusal(ImageList, path, kind=MissingFileError) == (
        f"{path}: 4 of its images do not exist: x.png, y0.png, y1.png, y2.png "
        f"(relative paths start at {folder})"
    )


def test_of_very_many_images_some_are_looked_for(folder, monkeypatch, capsys):
    monkeypatch.setattr(image_list, "CHECKED", 3)
    path = write_list(folder, "a.png\t0\nno.png\t0\na.png\t0\na.png\t0\na.png\t0\n")
    data = ImageList(path)
    assert len(data) == 5 and data.identities is None
    assert f"{path}: 5 images; looked for 3 of them, evenly spaced\n" in capsys.readouterr().out
    assert "list.txt: 1 of its images do not exist: no.png" in refusal(
        ImageList, write_list(folder, "a.png\t0\n" * 4 + "no.png\t0"), kind=MissingFileError
    )


def test_folders_are_the_identities_where_each_class_has_its_own(folder):
    for name in ("Ann", "Bob"):
        (folder / name).mkdir()
        for number in (1, 2):
            (folder / name / f"{number}.png").write_bytes((folder / "a.png").read_bytes())
    own = write_list(folder, "Bob/1.png\t0\nAnn/1.png\t1\nBob/2.png\t0\n")
    assert ImageList(own).identities.tolist() == ["Bob", "Ann"]
    assert ImageList(write_list(folder, "Bob/1.png\t0\nAnn/1.png\t0\n")).identities is None
    assert ImageList(write_list(folder, "Bob/1.png\t0\nBob/2.png\t1\n")).identities is None


def test_numbered_folders_are_identities_of_their_own_set_only():
    assert identity_names(["/a/Ann_1", "/a/Bob_2"]).tolist() == ["Ann_1", "Bob_2"]
    assert identity_names(["/a/0001", "/a/0002"]).tolist() == ["/a/0001", "/a/0002"]
    assert identity_names(["/a/id7"]).tolist() == ["/a/id7"]
    assert identity_names(["/a/Jose\u0301", "/a/Ann"]).tolist() == ["Jos\u00e9", "Ann"]


def test_a_list_with_other_bytes_than_text_is_refused_in_printable_words(folder):
    said = refusal(read_list, write_list(folder, (folder / "a.png").read_bytes()))
    assert "line 1: '\\x89PNG' is not both a path and a label" in said and said.isprintable()
    assert r"do not exist: \xff.png" in refusal(
        ImageList, write_list(folder, b"\xff.png\t0\n"), kind=MissingFileError
    )
    assert r"2 of its images do not exist: a\x00b.png, \x1b[2J.png" in refusal(
        ImageList, write_list(folder, b"a\0b.png\t0\n\x1b[2J.png\t1\n"), kind=MissingFileError
    )


@pytest.mark.parametrize(
    "written, end",
    [
        ('"a.png"', "; remove the quotes around the paths"),
        ("faces\\a.png", "; write the paths with / in place of \\"),
        ("a.png\t3", "; a line must have two columns"),
        ("faces", ")"),  # a folder is no image
        ("b.png", ")"),
    ],
)
def test_a_missing_image_is_answered_by_what_is_wrong_with_its_path(tmp_path, written, end):
    (tmp_path / "faces").mkdir()
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "list.txt").write_text(f"{written}\t0\na.png\t1\n")
    line = refusal(ImageList, str(tmp_path / "list.txt"))
    assert "list.txt: 1 of its images do not exist: " in line and line.endswith(end)


def test_utf16_is_named(tmp_path):
    (tmp_path / "list.txt").write_text("a.png\t0\n", encoding="utf-16")
    assert refusal(read_list, str(tmp_path / "list.txt")).endswith("list.txt: is UTF-16; save it as UTF-8")
