import os

import pytest

from plsc import cli
from plsc.apps.curate.convert import convert
from plsc.data.bin_packs import BinPairs
from plsc.data.folder import ImageFolder
from plsc.data.image_list import ImageList
from plsc.data.rec import RecImages
from tests.helpers.image_files import INSIGHTFACE, needs_insightface_files, png, write_folder, write_rec
from tests.helpers.refusals import refusal


def content(images):
    """(label, bytes) of each image, sorted: what a conversion must not change."""
    return sorted(
        (int(images.labels[index]), images.encoded(index).tobytes()) for index in range(len(images))
    )


@pytest.fixture
def faces(tmp_path):
    return write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 3, "Cy": 1})


def names_of(data):
    return [os.path.basename(name) for name in data.identities.tolist()]


def test_there_and_back_again(faces, tmp_path):
    said = convert(str(faces), str(tmp_path / "a.rec"))
    assert said == f"{tmp_path}/a.rec: 6 images of 3 identities"
    rec = RecImages(str(tmp_path / "a.rec"))
    assert content(rec) == content(ImageFolder(str(faces))) and rec.labels.tolist() == [0, 0, 1, 1, 1, 2]
    convert(str(tmp_path / "a.rec"), str(tmp_path / "numbered"))
    numbered = ImageFolder(str(tmp_path / "numbered"))
    assert content(numbered) == content(rec) and names_of(numbered) == ["0", "1", "2"]
    convert(str(tmp_path / "numbered"), str(tmp_path / "b.rec"))
    for name in ("rec", "idx"):
        assert (tmp_path / f"a.{name}").read_bytes() == (tmp_path / f"b.{name}").read_bytes()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_names_of_identities_are_kept(faces, tmp_path):
    convert(str(faces), str(tmp_path / "copy"))
    assert names_of(ImageFolder(str(tmp_path / "copy"))) == ["Ann", "Bob", "Cy"]
    assert sorted(os.listdir(tmp_path / "copy" / "Bob")) == ["0001.png", "0002.png", "0003.png"]
    (tmp_path / "list.txt").write_text("Bob/Bob_0002.png\t0\nAnn/Ann_0001.png\t1\nBob/Bob_0001.png\t0\n")
    convert(str(tmp_path / "list.txt"), str(tmp_path / "some"), root=str(faces))
    assert content(ImageFolder(str(tmp_path / "some"))) == [(0, png(0)), (1, png(2)), (1, png(3))]
    write_rec(tmp_path / "a.rec", list(range(11)))
    convert(str(tmp_path / "a.rec"), str(tmp_path / "eleven"))
    assert names_of(ImageFolder(str(tmp_path / "eleven")))[:3] == ["00", "01", "02"]


def test_every_format_that_a_folder_may_have_is_named_by_its_first_bytes(tmp_path):
    begins = {".gif": b"GIF89a", ".avif": b"\0\0\0\x20ftypavif", ".png": png(0)}
    for name in ("Ann", "Bob"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for extension, data in begins.items():
            (tmp_path / "set" / name / f"a{extension}").write_bytes(data)
    convert(str(tmp_path / "set"), str(tmp_path / "copy"))
    assert sorted(os.listdir(tmp_path / "copy/Bob")) == ["0001.avif", "0002.gif", "0003.png"]


def test_names_that_are_no_folders_names_are_numbered(tmp_path):
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "list.csv").write_text("a.png,shoes/\na.png,hats\n")
    convert(str(tmp_path / "list.csv"), str(tmp_path / "copy"))
    assert sorted(os.listdir(tmp_path / "copy")) == ["0", "1"]


def test_labels_out_of_order_are_sorted_in_a_rec(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "list.txt").write_text("0.png\t1\n1.png\t0\n2.png\t1\n3.png\t0\n")
    convert(str(tmp_path / "list.txt"), str(tmp_path / "a.rec"))
    rec = RecImages(str(tmp_path / "a.rec"))
    assert content(rec) == content(ImageList(str(tmp_path / "list.txt")))
    assert rec.labels.tolist() == [0, 0, 1, 1]


def test_pairs_become_a_pack(faces, tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "Ann/Ann_0001.png,Ann/Ann_0002.png,1\nAnn/Ann_0001.png,Cy/Cy_0001.png,0\n"
    )
    said = convert(str(tmp_path / "pairs.csv"), str(tmp_path / "a.bin"), root=str(faces))
    assert said == f"{tmp_path}/a.bin: 2 pairs, 1 of them positive"
    pack = BinPairs(str(tmp_path / "a.bin"))
    assert [pack.encoded(index).tobytes() for index in range(4)] == [png(0), png(1), png(0), png(5)]
    assert pack.same.tolist() == [True, False]
    convert(str(tmp_path / "a.bin"), str(tmp_path / "b.bin"))
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


@pytest.mark.parametrize(
    "paths, names",
    [
        (["0.png", "sub/1.png"], ["faces", "sub"]),  # beside the list, and in a folder
        (["sub/../0.png", "sub/1.png"], ["faces", "sub"]),
        (["../0.png", "../faces/1.png"], ["faces", None]),
        (["0.png", ".hidden/1.png"], ["0", "1"]),  # a hidden folder would not be read
        (["a/Ann/0.png", "b/Ann/1.png"], ["0", "1"]),
    ],
)
def test_every_identity_gets_a_folder_of_its_own_within_the_target(tmp_path, monkeypatch, paths, names):
    """Whatever their folders are called: none is lost, none merged, nothing lands beside the target."""
    (tmp_path / "faces" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "faces")
    for number, path in enumerate(paths):
        (tmp_path / "faces" / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "faces" / path).write_bytes(png(number))
    (tmp_path / "faces" / "list.txt").write_text("".join(f"{path}\t{n}\n" for n, path in enumerate(paths)))
    (tmp_path / "out").mkdir()
    convert("list.txt", str(tmp_path / "out" / "copy"))
    assert os.listdir(tmp_path / "out") == ["copy"]
    copy = ImageFolder(str(tmp_path / "out" / "copy"))
    assert names_of(copy) == sorted(name or tmp_path.name for name in names)
    assert sorted(data for _, data in content(copy)) == sorted([png(0), png(1)])


def test_nothing_is_overwritten_and_no_label_rounded(faces, tmp_path, monkeypatch):
    (tmp_path / "a.idx").write_text("mine")
    assert refused(faces, tmp_path / "a.rec").startswith(f"{tmp_path}/a.idx: exists already")
    assert (tmp_path / "a.idx").read_text() == "mine"
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    assert refused(faces, tmp_path / "b").startswith(f"{tmp_path}/b: exists already")
    monkeypatch.setattr("plsc.apps.curate.convert.EXACT", 1)
    assert "a .rec stores labels as float32, exactly up to 1 (got 2)" in refused(faces, tmp_path / "c.rec")
    assert not list(tmp_path.glob("c.*"))
    monkeypatch.setattr("plsc.apps.curate.convert.EXACT", 2)
    convert(str(faces), str(tmp_path / "c.rec"))


def refused(*arguments):
    return refusal(convert, *map(str, arguments))


def test_what_cannot_be_converted_leaves_nothing_behind(faces, tmp_path):
    assert refused(faces, faces) == f"{faces}: exists already; remove it, or name another target"
    assert refused(faces, tmp_path / "a.bin") == (
        f"{faces}: has labelled images and no pairs; a .bin needs a list of pairs"
    )
    for target in (faces / "train.rec", faces / "Ann" / "copy"):
        assert refused(faces, target) == (
            f"{target}: is in {faces}, whose images it would change; name a target elsewhere"
        )
    (faces / "Cy" / "Cy_0001.png").write_bytes(b"")
    before = sorted(os.listdir(tmp_path))
    line = (
        f"{faces}/Cy/Cy_0001.png: is not in a known image format (it is empty); remove it from the set first"
    )
    assert refused(faces, tmp_path / "a.rec") == line
    (faces / "Bob" / "Bob_0001.png").write_bytes(b"what")
    for target in ("copy", "a.rec"):
        assert refused(faces, tmp_path / target) == (
            f"{faces}/Bob/Bob_0001.png: is not in a known image format (begins with 0x77686174); "
            "remove it from the set first"
        )
    assert sorted(os.listdir(tmp_path)) == before


def test_the_console_script(faces, tmp_path, capsys):
    assert cli.main(["convert", str(faces), str(tmp_path / "a.rec")]) == 0
    assert capsys.readouterr().out.endswith("a.rec: 6 images of 3 identities\n")
    assert cli.main(["convert", "none", str(tmp_path / "b.rec")]) == 2
    assert capsys.readouterr().err.startswith("ERROR 'none' does not exist (looked in ")
    assert cli.main(["convert", str(faces), "/dev/null/new"]) == 2
    assert capsys.readouterr().err == "ERROR /dev/null/new: cannot be written: File exists\n"


@needs_insightface_files
def test_mxnets_own_file_is_made_again_byte_for_byte(tmp_path):
    source = INSIGHTFACE / "lfw_mxnet" / "train.rec"
    convert(str(source), str(tmp_path / "folder"))
    convert(str(tmp_path / "folder"), str(tmp_path / "train.rec"))
    assert (tmp_path / "train.rec").read_bytes() == source.read_bytes()
    assert (tmp_path / "train.idx").read_bytes() == source.with_suffix(".idx").read_bytes()
