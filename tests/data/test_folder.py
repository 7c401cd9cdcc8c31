import errno
import os

import pytest

from plsc.data.folder import ImageFolder, images_below, read_folder
from plsc.errors import MissingFileError
from plsc.utils.logging import setup_logging
from tests.helpers.image_files import png, write_folder
from tests.helpers.refusals import refusal


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "faces", {"Zoe": 2, "Ann": 1, "Bob": 3})


def test_the_sorted_names_of_the_folders_are_the_labels(folder):
    data = ImageFolder(str(folder), size=(12, 10))
    assert data.labels.tolist() == [0, 1, 1, 1, 2, 2] and data.num_classes == 3
    assert data.identities.tolist() == ["Ann", "Bob", "Zoe"] and data.title == "faces"
    assert data.name(4) == str(folder / "Zoe" / "Zoe_0001.png")
    assert data.encoded(0).tobytes() == png(2) and data.sample(0, 0).shape == (3, 12, 10)


def test_folders_of_one_name_in_two_unicode_forms_are_one_identity(tmp_path):
    folder = write_folder(tmp_path / "faces", {"Jose\u0301": 2, "Jos\u00e9": 1, "Josz": 1})
    data = ImageFolder(str(folder))
    assert data.identities.tolist() == ["Josz", "Jos\u00e9"] and data.labels.tolist() == [1, 1, 0, 1]
    assert [data.name(index).count("\u00e9") for index in range(4)] == [0, 0, 0, 2]


def test_a_file_that_is_not_an_identitys_image_is_reported(folder, capsys):
    for name in ("note.txt", "Ann/list.csv", ".hidden", "alignment.csv"):
        (folder / name).write_text("")
    (folder / "Ann" / "more").mkdir()
    (folder / "Ann" / "more" / "A.JFIF").write_bytes(png(0))
    paths, labels, _ = read_folder(str(folder))
    assert len(paths) == 6 and labels.tolist() == [0, 1, 1, 1, 2, 2]
    said = capsys.readouterr().out
    assert (
        "faces: 3 files skipped, since they are not images in an identity's folder: Ann/list.csv, "
        "Ann/more, note.txt\n"
    ) in said
    assert ImageFolder(str(folder)).identities.tolist() == ["Ann", "Bob", "Zoe"]


def test_an_empty_folder_is_no_class_and_is_reported_once_in_a_run(folder, capsys):
    (folder / "Cid").mkdir()
    (folder / "Cid" / ".hidden").touch()
    for _ in range(2):
        assert ImageFolder(str(folder)).identities.tolist() == ["Ann", "Bob", "Zoe"]
    assert capsys.readouterr().out.count("faces: 1 empty folder skipped: Cid\n") == 1
    setup_logging()
    read_folder(str(folder))
    assert "1 empty folder skipped" in capsys.readouterr().out


def test_images_at_any_depth(folder, tmp_path, capsys):
    """The log reports each file that is skipped, except hidden files and alignment.csv."""
    for name in ("b.heic", "Ann/note.txt", ".c.png", "alignment.csv"):
        (folder / name).touch()
    (folder / ".thumbnails").mkdir()
    (folder / ".thumbnails" / "0.png").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0.PNG").touch()
    (folder / "Ann" / "link").symlink_to(tmp_path / "elsewhere")
    assert images_below(str(folder)) == (images := images_below(str(folder)))
    assert images == sorted(images) and len(images) == 7 and f"{folder}/Ann/link/0.PNG" in images
    said = capsys.readouterr().out
    assert said.count("faces: 2 files skipped, since their names do not end in .jpg, .jpeg") == 2
    assert said.endswith(".avif: Ann/note.txt, b.heic\n")


@pytest.mark.parametrize("name", ["a.gif", "a.avif", "a.PNG"])
def test_folders_have_every_format_that_opencv_decodes(folder, name):
    """A release of OpenCV that lacks one reports the image as damaged, so that every machine has the same."""
    (folder / "Ann" / name).write_bytes(png(0))
    assert f"{folder}/Ann/{name}" in images_below(str(folder))
    assert f"{folder}/Ann/{name}" in [*read_folder(str(folder))[0]]


def test_a_link_to_a_folder_above_is_refused(folder):
    (folder / "Ann" / "loop").symlink_to(folder)
    said = refusal(images_below, str(folder))
    assert said == f"{folder}/Ann/loop: is a link to a folder that contains it; remove it"


def test_a_folder_that_was_aligned_says_so(folder):
    assert "aligned" not in ImageFolder(str(folder)).preprocessing.to_json()
    (folder / "alignment.csv").write_text("")
    assert ImageFolder(str(folder)).preprocessing.aligned is True
    assert ImageFolder(str(folder), aligned=False).preprocessing.aligned is False


def test_folders_without_an_image_are_named(folder, tmp_path):
    for name in "Xyz":
        (folder / name).mkdir()
        (folder / name / "a.mp4").touch()
    said = refusal(ImageFolder, str(folder))
    assert said.startswith(f"{folder}: 3 folders without an image (.jpg, ")
    assert ") directly in it: X, y, z; remove it, add images" in said
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(png(0))
    assert "flat: has no images in subfolders; each identity needs a folder" in refusal(
        ImageFolder, str(tmp_path / "flat")
    )
    assert refusal(ImageFolder.check, kind=MissingFileError, folder="none").startswith(
        "folder: 'none' is not a folder (looked in "
    )


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "faces", {"Ann": 1, "Bob": 1})

    def scandir(path):
        if path.endswith("Bob"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    listed = os.scandir
    monkeypatch.setattr("os.scandir", scandir)
    assert refusal(read_folder, str(folder)).endswith("faces/Bob: cannot be read: Permission denied")


def test_a_folder_whose_name_has_a_line_break_forges_no_line(tmp_path):
    folder = write_folder(tmp_path / "faces", {"Ann": 1, "Bob": 1})
    (folder / "Cy\n2026-01-01 INFO done").mkdir()
    (folder / "Cy\n2026-01-01 INFO done" / "a.mp4").touch()
    assert r"Cy\n2026-01-01 INFO done" in refusal(read_folder, str(folder))
