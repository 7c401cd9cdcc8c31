import csv
import errno
import os
import struct

import cv2
import numpy as np
import pytest

from plsc import cli
from plsc.apps.curate import detector
from plsc.apps.curate.alignment import TEMPLATE, align
from plsc.apps.curate.landmarks import COLUMNS

SMOOTH = cv2.GaussianBlur(np.random.default_rng(4).integers(0, 256, (150, 130, 3), np.uint8), (0, 0), 3)
FACE = TEMPLATE + 12


def encoded(picture=SMOOTH, extension=".png"):
    return cv2.imencode(extension, picture)[1].tobytes()


def exif_jpeg(orientation):
    """A JPEG of SMOOTH whose EXIF says how it is to be turned."""
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 1, 0x112, 3, 1, orientation) + bytes(4)
    data = encoded(extension=".jpg")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


class Photos:
    """A folder of photos, their landmarks in a CSV, and a target."""

    def __init__(self, folder):
        self.folder, self.target, self.csv = folder / "photos", folder / "aligned", folder / "landmarks.csv"
        self.lines = [",".join(("file", *COLUMNS))]
        self.folder.mkdir()

    def add(self, name, content=None, *faces):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded() if content is None else content)
        self.lines += [",".join([name, *map(str, np.ravel(face).tolist())]) for face in faces]

    def align(self, *arguments):
        self.csv.write_text("\n".join(self.lines) + "\n")
        return cli.main(
            ["align", str(self.folder), str(self.target), "--landmarks", str(self.csv), *arguments]
        )

    def rows(self):
        with open(self.target / "alignment.csv", newline="") as file:
            return [*csv.DictReader(file)]

    def statuses(self):
        return {row["file"]: row["status"] for row in self.rows()}


@pytest.fixture
def photos(tmp_path):
    return Photos(tmp_path)


def test_folders_stay_and_the_pictures_are_lossless(photos, capsys):
    photos.add("Ann/1.png", None, FACE)
    photos.add("Ann/summer/2.jpg", encoded(extension=".jpg"), FACE)
    photos.add("Bob/1.png", None, FACE * 1.02)
    assert photos.align() == 0
    written = cv2.imread(str(photos.target / "Bob/1.png"))
    assert np.array_equal(written, align(SMOOTH, FACE * 1.02))
    assert [row["aligned"] for row in photos.rows()] == ["Ann/1.png", "Ann/summer/2.png", "Bob/1.png"]
    assert "3 files: 3 pictures written" in capsys.readouterr().out
    photos.target = photos.target.with_name("small")
    assert photos.align("--size", "64", "--jpeg", "90") == 0
    assert cv2.imread(str(photos.target / "Ann/1.jpg")).shape == (64, 64, 3)


def test_every_bad_photo_has_a_row_that_says_why(photos):
    os.mkfifo(photos.folder / "pipe.png")
    os.symlink("nowhere", photos.folder / "broken.png")
    os.symlink(".", photos.folder / "circle")
    photos.add("cut.png", encoded()[:500], FACE)
    photos.add("empty.jpg", b"", FACE)
    photos.add("text.jpg", b"no picture", FACE)
    photos.add("bomb.png", encoded()[:16] + struct.pack(">II", 60000, 60000) + encoded()[24:], FACE)
    photos.add("other.gif", b"GIF89a")
    photos.add("notes.txt", b"")
    photos.add("unknown.png")
    photos.add("outside.png", None, FACE + 60)
    photos.add("point.png", None, FACE * 0 + 7)
    photos.add("mirrored.png", None, FACE[[1, 0, 2, 4, 3]])
    photos.add("nan.png", None, FACE * np.nan)
    photos.add("small.png", None, FACE / 4)
    photos.add("good.png", None, FACE)
    assert photos.align() == 1
    assert photos.statuses() == {
        **dict.fromkeys(
            ["bomb.png", "broken.png", "circle", "cut.png", "empty.jpg", "other.gif", "pipe.png", "text.jpg"],
            "unreadable",
        ),
        **dict.fromkeys(["outside.png", "point.png", "mirrored.png", "nan.png"], "bad landmarks"),
        "notes.txt": "no photo",
        "unknown.png": "no landmarks",
        "small.png": "too small",
        "good.png": "written",
    }
    reasons = {row["file"]: row["detail"] for row in photos.rows()}
    assert "(145.532, 123.501) lies outside of the photo, 130 x 150" in reasons["outside.png"]
    assert all(reason or name == "good.png" for name, reason in reasons.items())
    written = [name for _, _, names in os.walk(photos.target) for name in names]
    assert sorted(written) == ["alignment.csv", "alignment.json", "good.png"]


def test_hidden_files_and_folders_are_no_photos(photos):
    for name in ("Ann/._1.png", ".thumbs/1.png", "Ann/.thumbs/1.png", "Ann/1.png"):
        photos.add(name, None, FACE)
    assert photos.align() == 0
    assert photos.statuses() == {"Ann/1.png": "written"}


def test_links_that_lead_back_are_not_followed(photos):
    photos.add("a/1.png", None, FACE)
    photos.add("b/2.png", None, FACE)
    os.symlink("../b", photos.folder / "a" / "to_b")
    os.symlink("../a", photos.folder / "b" / "to_a")
    os.symlink("../..", photos.folder / "b" / "up")
    photos.lines += [",".join([name, *map(str, FACE.ravel())]) for name in ("a/to_b/2.png", "b/to_a/1.png")]
    assert photos.align() == 1
    assert photos.statuses() == {
        **dict.fromkeys(["a/1.png", "b/2.png", "a/to_b/2.png", "b/to_a/1.png"], "written"),
        **dict.fromkeys(["a/to_b/to_a", "a/to_b/up", "b/to_a/to_b", "b/up"], "unreadable"),
    }


@pytest.mark.parametrize(
    ("orientation", "turned", "turn"),
    [
        (6, "90 degrees clockwise", lambda picture: np.rot90(picture, -1)),
        (8, "90 degrees counterclockwise", np.rot90),
        (3, "180 degrees", lambda picture: np.rot90(picture, 2)),
        (2, "mirrored", np.fliplr),
        (1, "", lambda picture: picture),
    ],
)
def test_photos_are_turned_by_their_exif(photos, orientation, turned, turn):
    photos.add("1.jpg", exif_jpeg(orientation), FACE - 10)
    assert photos.align() == 0
    (row,) = photos.rows()
    assert row["turned"] == turned
    stored = cv2.imdecode(np.frombuffer(encoded(extension=".jpg"), np.uint8), cv2.IMREAD_COLOR)
    upright = np.ascontiguousarray(turn(stored))
    assert np.array_equal(cv2.imread(str(photos.target / "1.png")), align(upright, FACE - 10))


def test_of_several_faces_the_largest_all_or_none_is_written(photos):
    small, speck = FACE * 0.6, FACE * 0.2
    photos.add("party.png", None, small, FACE, speck)
    photos.add("portrait.png", None, speck, FACE)
    assert photos.align() == 0
    party, portrait = photos.rows()
    assert party["status"] == portrait["status"] == "written, one of several faces"
    assert party["faces"] == "3" and party["side"] == "112" and "sides of 67, 22 pixels" in party["detail"]
    assert np.array_equal(cv2.imread(str(photos.target / "party.png")), align(SMOOTH, FACE))
    photos.target = photos.target.with_name("all")
    assert photos.align("--all") == 1
    assert [(row["aligned"], row["status"]) for row in photos.rows()] == [
        ("party.png_1.png", "written"),
        ("party.png_2.png", "written"),
        ("", "too small"),
        ("portrait.png_1.png", "written"),
        ("", "too small"),
    ]
    assert np.array_equal(cv2.imread(str(photos.target / "party.png_2.png")), align(SMOOTH, small))
    photos.target = photos.target.with_name("single")
    assert photos.align("--single") == 1
    assert photos.statuses() == {
        "party.png": "several faces",
        "portrait.png": "written, one of several faces",
    }


def test_photos_of_one_name_become_different_pictures(photos):
    for name in ("a/1.png", "a/1.jpg", "a/1.JPG", "b/1.png"):
        photos.add(name, None, FACE)
    assert photos.align() == 0
    pictures = sorted(row["aligned"] for row in photos.rows())
    assert pictures == ["a/1.JPG.png", "a/1.jpg.png", "a/1.png.png", "b/1.png"]


def test_names_are_escaped(photos, capsys):
    photos.folder.joinpath("bad\n\x1b[31m.png").write_bytes(encoded())
    photos.add("good.png", None, FACE)
    photos.lines.append(",".join(["\x1b]0;title.png", *map(str, FACE.ravel())]))
    assert photos.align() == 1
    table = (photos.target / "alignment.csv").read_text()
    assert "bad\\n\\x1b[31m.png" in table and "\x1b" not in table
    out = capsys.readouterr().out
    assert "1 names of the landmarks file are no photo here: \\x1b]0;title.png" in out and "\x1b" not in out


def test_a_call_that_was_cut_off_goes_on(photos, capsys):
    for number in range(4):
        photos.add(f"{number}.png", None, FACE)
    photos.add("bad.png", b"bad", FACE)
    assert photos.align() == 1
    whole = (photos.target / "alignment.csv").read_text()
    times = {number: (photos.target / f"{number}.png").stat().st_mtime_ns for number in range(4)}
    lines = whole.splitlines(keepends=True)
    (photos.target / "alignment.csv").write_text("".join(lines[:3]) + lines[3][:9])
    (photos.target / "3.png").unlink()
    photos.add("bad.png", None)
    assert photos.align() == 2 and "is not empty" in capsys.readouterr().err
    assert photos.align("--resume", "--all") == 2
    assert "was begun with faces largest, this call has all" in capsys.readouterr().err
    assert photos.align("--resume") == 0
    assert set(photos.statuses().values()) == {"written"} and len(photos.rows()) == 5
    assert (photos.target / "0.png").stat().st_mtime_ns == times[0]  # not made again


@pytest.mark.parametrize("name", ["photos", "photos/aligned", "."])
def test_a_target_in_the_photos_folder_is_refused(photos, name, capsys):
    photos.add("1.png", None, FACE)
    photos.target = photos.folder.parent / name
    assert photos.align() == 2
    assert "lie in one another; name another target" in capsys.readouterr().err
    assert os.listdir(photos.folder) == ["1.png"]


def test_wrong_arguments_get_one_line(photos, capsys, monkeypatch):
    photos.add("1.png", None, FACE)
    for arguments, rule in (
        (["--size", "8"], "--size: must be 16 to 2048, got 8"),
        (["--jpeg", "0"], "--jpeg: must be 1 to 100, got 0"),
        (["--smallest", "0"], "--smallest: must be at least 1, got 0"),
        (["--threads", "-1"], "--threads: must be at least 1, got -1"),
        (["--resume"], "has no alignment.csv to go on from"),
        (["--landmarks", "no.csv"], "--landmarks: no.csv: no such file"),
    ):
        assert photos.align(*arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and rule in lines[0]
    assert cli.main(["align", str(photos.folder / "1.png"), str(photos.target)]) == 2
    assert "1.png: is a file; give the folder that the photo is in" in capsys.readouterr().err
    monkeypatch.setattr(detector, "_PACKAGES", {"no_such_module": "no-such-package"})
    assert cli.main(["align", str(photos.folder), str(photos.target)]) == 2
    assert "pip install no-such-package (the extra align)" in capsys.readouterr().err
    assert not photos.target.exists()


@pytest.mark.skipif(not detector.installed(), reason="the extra align is not installed")
def test_faces_are_found(photos):
    data = pytest.importorskip("skimage.data", reason="scikit-image, which ships the photo, is not installed")
    astronaut = cv2.cvtColor(data.astronaut(), cv2.COLOR_RGB2BGR)
    photos.add("Eileen/1.png", encoded(astronaut))
    photos.add("Eileen/none.png")
    assert cli.main(["align", str(photos.folder), str(photos.target)]) == 1
    assert photos.statuses() == {"Eileen/1.png": "written", "Eileen/none.png": "no face"}
    # The table serves as a landmarks file, and gives the same picture.
    first = (photos.target / "Eileen/1.png").read_bytes()
    again = photos.target.with_name("again")
    table = str(photos.target / "alignment.csv")
    assert cli.main(["align", str(photos.folder), str(again), "--landmarks", table]) == 1
    difference = cv2.imread(str(again / "Eileen/1.png")).astype(int) - cv2.imdecode(
        np.frombuffer(first, np.uint8), cv2.IMREAD_COLOR
    )
    assert np.abs(difference).max() <= 1  # the table has hundredths of a pixel


def test_a_full_disk_is_one_line(photos, capsys, monkeypatch):
    photos.add("1.png", None, FACE)

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plsc.apps.curate.photo.replace_file", full)
    assert photos.align() == 2
    assert f"{photos.target}/1.png: cannot be written: No space left" in capsys.readouterr().err
    monkeypatch.setattr("plsc.apps.curate.align.replace_file", full)
    assert photos.align("--resume") == 2
    assert f"{photos.target}/alignment.csv: cannot be written: No space left" in capsys.readouterr().err
