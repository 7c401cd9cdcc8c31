import numpy as np
import pytest

from plsc.data.templates import GalleryProbe, IjbPairs
from plsc.errors import MissingFileError
from plsc.evaluation.sets import eval_set
from tests.helpers.image_files import png, write_folder
from tests.helpers.refusals import refusal


@pytest.fixture
def ijb(tmp_path):
    """The two lists in IJB's layout over four images, with templates 7, 30 and 2."""
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "media.txt").write_text("0.png 7 100\n1.png 7 100\n2.png 30 5\n3.png 2 6\n")
    (tmp_path / "pairs.txt").write_text("7 30 1\n2 7 0\n2 30 0\n")
    return {"images": str(tmp_path / "media.txt"), "list": str(tmp_path / "pairs.txt")}


def test_templates_are_numbered_and_paired(ijb):
    data = IjbPairs(**ijb, size=(12, 10))
    assert data.template.tolist() == [1, 1, 2, 0] and data.media.tolist() == [100, 100, 5, 6]
    assert data.pairs.tolist() == [[1, 2], [0, 1], [0, 2]] and data.same.tolist() == [True, False, False]
    assert data.pairs.dtype == data.template.dtype == np.int64 and data.title == "pairs"
    assert data.images(0, 4).shape == (4, 3, 12, 10) and data.encoded(2).tobytes() == png(2)


@pytest.mark.parametrize(
    "file, text, said",
    [
        ("media", "0.png 7 100\n1.png x 1\n\n", "media.txt: line 2: must be 'name template media'"),
        ("media", "0.png ² 1\n", "media.txt: line 1: must be 'name template media'"),  # a digit, no number
        ("media", "", "media.txt: is empty"),
        (
            "media",
            "0.png 7 1\nx.png 30 1\n3.png 2 1\n",
            "media.txt: 1 of its images do not exist: x.png (",
        ),
        ("pairs", "7 30 1\n7 8 0\n9 8 0\n", "pairs.txt: line 2: template 8 has no image in "),
        (
            "pairs",
            "7 30 2\n",
            "pairs.txt: lines must be 'template template 1' or 0, three whole numbers each",
        ),
        ("pairs", "7 30 1\n7 x 1\n", "pairs.txt: lines must be 'template template 1' or 0, three"),
    ],
)
def test_wrong_lists_are_refused(file, text, said, ijb, tmp_path):
    (tmp_path / f"{file}.txt").write_text(text)
    assert refusal(IjbPairs, **ijb).startswith(f"{tmp_path}/{said}")


def test_missing_lists_are_named(ijb):
    assert refusal(IjbPairs.check, kind=MissingFileError, images="no.txt", list=ijb["list"]).startswith(
        "images: file 'no.txt' does not exist"
    )


def test_folders_are_searched_by_name(tmp_path):
    gallery = write_folder(tmp_path / "gallery", {"Ann": 2, "Bob": 1})
    probe = write_folder(tmp_path / "probe", {"Bob": 2, "Cy": 1})
    data = GalleryProbe(str(gallery), str(probe), size=(12, 10))
    assert data.gallery.tolist() == [0, 1, 2] and data.probe.tolist() == [3, 4, 5] and data.num_images == 6
    assert data.names[data.identities].tolist() == ["Ann", "Ann", "Bob", "Bob", "Bob", "Cy"]
    assert data.image_name(3) == str(probe / "Bob" / "Bob_0001.png") and data.title == "gallery"
    assert data.images(2, 4).shape == (2, 3, 12, 10)


def test_probes_that_are_pictures_of_the_gallery_are_found(tmp_path):
    gallery = write_folder(tmp_path / "gallery", {"Ann": 2, "Bob": 1})
    probe = write_folder(tmp_path / "probe", {"Bob": 2, "Cy": 1})
    for path in probe.glob("*/*"):
        path.write_bytes(png(100 + len(path.name)))
    (probe / "Bob" / "again.png").write_bytes((gallery / "Ann" / "Ann_0002.png").read_bytes())
    known = eval_set(GalleryProbe(str(gallery), str(probe), size=(12, 10)))
    known.check()
    (doubt,) = known.doubts
    copy = f"{probe}/Bob/again.png = {gallery}/Ann/Ann_0002.png"
    assert doubt.startswith("1 of 4 probes are also gallery pictures, ") and copy in doubt
    same = eval_set(GalleryProbe(str(gallery), str(gallery), size=(12, 10)))
    same.check()
    assert same.doubts[0].startswith("3 of 3 probes")
    (probe / "Bob" / "again.png").unlink()
    apart = eval_set(GalleryProbe(str(gallery), str(probe), size=(12, 10)))
    apart.check()
    assert not apart.doubts


def test_lists_are_searched_by_label(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "gallery.txt").write_text("0.png\t10\n1.png\t700\n")
    (tmp_path / "probe.txt").write_text("2.png\t700\n3.png\t3\n")
    lists = str(tmp_path / "gallery.txt"), str(tmp_path / "probe.txt")
    data = GalleryProbe(*lists)
    assert data.identities.tolist() == [1, 2, 2, 0] and data.names is None
    (tmp_path / "probe.txt").write_text("2.png\t1\n")
    assert refusal(GalleryProbe, *lists).endswith(
        f"{lists[1]}: none of its identities is in {lists[0]}; both must use the same names"
    )
    (tmp_path / "gallery.txt").write_text("0.png\tAnn\n1.png\tBob\n")
    (tmp_path / "probe.txt").write_text("2.png\tBob\n")
    assert GalleryProbe(*lists).names.tolist() == ["Ann", "Bob"]  # compared with the trained classes
    (tmp_path / "probe.txt").write_text("x.png\t10\n")
    assert "probe.txt: 1 of its images do not exist: x.png" in refusal(
        GalleryProbe, *lists, kind=MissingFileError
    )
