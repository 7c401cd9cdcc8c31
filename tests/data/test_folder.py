import pytest

from plsc.data.folder import ImageFolder, read_folder
from plsc.errors import MissingFileError, UserError
from tests.image_files import png, write_folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "faces", {"Zoe": 2, "Ann": 1, "Bob": 3})


def test_the_sorted_names_of_the_folders_are_the_labels(folder):
    data = ImageFolder(str(folder), size=(12, 10))
    assert data.labels.tolist() == [0, 1, 1, 1, 2, 2] and data.num_classes == 3
    assert data.identities.tolist() == data.folders == ["Ann", "Bob", "Zoe"] and data.title == "faces"
    assert data.name(4) == str(folder / "Zoe" / "Zoe_0001.png")
    assert data.encoded(0).tobytes() == png(2) and data.sample(0, 0).shape == (3, 12, 10)
    some = ImageFolder(str(folder), classes=(1, 3))
    assert some.labels.tolist() == [0, 0, 0, 1, 1] and some.identities.tolist() == ["Bob", "Zoe"]


def test_what_is_no_image_of_an_identity_is_said(folder, capsys):
    for name in ("note.txt", "Ann/list.csv", ".hidden"):
        (folder / name).write_text("")
    (folder / "Ann" / "more").mkdir()
    (folder / "Ann" / "more" / "A.JPG").write_bytes(png(0))
    paths, labels, _ = read_folder(str(folder))
    assert (
        len(paths) == 7 and labels.tolist() == [0, 0, 1, 1, 1, 2, 2] and paths.written(1) == "Ann/more/A.JPG"
    )
    said = capsys.readouterr().out
    assert "faces: 2 files are no images of an identity, and are left out: note.txt, Ann/list.csv\n" in said
    assert ImageFolder(str(folder)).identities.tolist() == ["Ann", "Bob", "Zoe"]


def test_formats_that_are_not_read_are_named(folder, tmp_path, capsys):
    (folder / "Ann" / "1.gif").write_bytes(b"")
    assert len(ImageFolder(str(folder))) == 6
    assert (
        "faces: 1 files are .gif, which is not read, and are left out; convert them"
        in capsys.readouterr().out
    )
    only = tmp_path / "only" / "Ann"
    only.mkdir(parents=True)
    (only / "1.gif").write_bytes(b"")
    with pytest.raises(UserError, match=r"has no images in folders of their own.*; \.gif is not read"):
        ImageFolder(str(tmp_path / "only"))


def test_empty_folders_are_named(folder, tmp_path):
    for name in "Xyz":
        (folder / name).mkdir()
    with pytest.raises(
        UserError, match=r"faces: 3 folders have no image; remove them, or give them images: X, y, z$"
    ):
        ImageFolder(str(folder))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(png(0))
    with pytest.raises(
        UserError, match=r"flat: has no images in folders of their own, one folder for each identity"
    ):
        ImageFolder(str(tmp_path / "flat"))
    with pytest.raises(MissingFileError, match=r"^folder: 'none' is no folder \(looked in "):
        ImageFolder.check(folder="none")
