"""Faces of photos, found by YuNet and cut out: `plsc align`."""

import csv
import resource
import struct
import zlib

import cv2
import numpy as np
import pytest

from plsc.apps.faces.alignment import TEMPLATE, align, similarity_transform
from plsc.apps.faces.command import _outputs, main
from plsc.apps.faces.detector import Detector
from plsc.apps.faces.photos import read_photo
from plsc.utils.parallel import in_parallel
from tests.apps.faces.lfw import ZOO, needs_faces, portraits, scene, write
from tests.helpers.refusals import refusal


@pytest.fixture(autouse=True)
def networks(monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(ZOO))


def exif_turned(picture, turn):
    """A JPEG whose EXIF says that it is to be turned."""
    data = cv2.imencode(".jpg", picture)[1].tobytes()
    tags = b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, turn, 0, 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(tags) + 2) + tags + data[2:]


def png_bomb():
    """61 bytes whose last chunk promises 4 GB."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 10, 10, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return data + struct.pack(">I", 0xFFFFFFF0) + b"IDAT" + bytes(20)


def test_a_face_goes_to_its_place():
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    landmarks = 3 * TEMPLATE @ turn.T + [50, 400]
    matrix = similarity_transform(landmarks, TEMPLATE)
    np.testing.assert_allclose(landmarks @ matrix[:, :2].T + matrix[:, 2], TEMPLATE, atol=1e-9)
    # Dots at the landmarks of a photo, small and large, are at the template's places afterwards.
    for times in (1, 5):
        places = times * TEMPLATE + 40
        photo = np.zeros((112 * times + 80, 112 * times + 80, 3), np.uint8)
        for x, y in places:
            cv2.circle(photo, (round(x), round(y)), 3 * times, (255, 255, 255), -1)
        for size in (112, 224):
            cut = align(photo, places, size)
            assert cut.shape == (size, size, 3)
            for x, y in TEMPLATE * size / 112:
                assert cut[round(y), round(x), 0] > 200
            assert cut[5, 5, 0] == 0


@needs_faces
def test_the_transform_is_opencvs():
    photo = scene(next(iter(portraits(1, 1).values())))
    network = cv2.FaceDetectorYN.create(
        str(ZOO / "face_detection_yunet_2023mar.onnx"), "", photo.shape[1::-1], 0.8
    )
    row = network.detect(photo)[1][0]
    recogniser = cv2.FaceRecognizerSF.create(str(ZOO / "face_recognition_sface_2021dec.onnx"), "")
    theirs, ours = recogniser.alignCrop(photo, row), align(photo, row[4:14].reshape(5, 2).astype(float))
    assert np.abs(theirs.astype(int) - ours).mean() < 1


@needs_faces
def test_faces_are_found_in_photos_of_all_sizes():
    (first,), *others = portraits(1, 5).values()
    faces = [first, *(other for (other,) in others)]
    detector = Detector()
    found = detector.find(scene(faces))
    eyes = [np.linalg.norm(face.landmarks[1] - face.landmarks[0]) for face in found]
    assert len(found) == 5 and eyes[0] == max(eyes)  # the largest first
    for side in (112, 400, 2000):  # a face that fills the picture
        assert len(detector.find(cv2.resize(first, (side, side)))) == 1
    assert (
        len(detector.find(scene([cv2.resize(first, (60, 60))], 4000, 3000))) == 1
    )  # a small one in a large photo
    assert detector.find(np.full((300, 300, 3), 128, np.uint8)) == []


@needs_faces
@pytest.mark.parametrize("turn", [None, cv2.ROTATE_180])
def test_faces_much_smaller_than_the_largest_are_found_on_request(turn):
    large, small = (face for (face,) in portraits(1, 2).values())
    photo = np.full((960, 1280, 3), 120, np.uint8)
    photo[100:480, 100:480] = cv2.resize(large, (380, 380), interpolation=cv2.INTER_CUBIC)
    photo[600:700, 900:1000] = cv2.resize(small, (100, 100))
    photo = photo if turn is None else cv2.rotate(photo, turn)
    (only,) = Detector().find(photo)
    first, second = Detector().find(photo, every=True)
    assert np.array_equal(only.landmarks, first.landmarks) and only.box == first.box
    assert second.area < first.area / 10
    left, top, width, height = second.box
    center = (950, 650) if turn is None else (330, 310)
    assert left < center[0] < left + width and top < center[1] < top + height


@needs_faces
def test_a_folder_of_photos(tmp_path, capsys):
    faces = [face for (face,) in portraits(1, 5).values()]
    photos, aligned = tmp_path / "photos", tmp_path / "aligned"
    write(photos / "Ann" / "1.jpg", scene(faces[:1]))
    write(photos / "Ann" / "1.png", scene(faces[1:2]))
    write(photos / "Ann" / "five.jpg", scene(faces))
    upright, depth = scene(faces[:1], seed=1), scene(faces[:1], seed=2).astype(np.uint16) * 257
    lying = cv2.rotate(upright, cv2.ROTATE_90_COUNTERCLOCKWISE)
    (photos / "Ann" / "turned.jpg").write_bytes(exif_turned(lying, 6))
    write(photos / "Ann" / "deep.png", depth)
    write(photos / "Bob" / "none.jpg", np.full((200, 200, 3), 90, np.uint8))
    write(photos / "Bob" / "small.jpg", scene([cv2.resize(faces[0], (40, 40))], 1000, 1000)[:, :, ::-1])
    (photos / "Bob" / "text.jpg").write_text("no picture")
    (photos / "Bob" / "bomb.png").write_bytes(png_bomb())
    (photos / "Bob" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    (photos / "Bob" / "gone.jpg").symlink_to("nowhere")
    (photos / "Bob").rename(tmp_path / "Bob")
    (photos / "Bob").symlink_to(tmp_path / "Bob")
    (photos / ".hidden").write_text("")
    assert main([str(photos), f"{aligned}/"]) == 0
    assert {path.name for path in aligned.iterdir()} == {"Ann", "Bob", "alignment.csv"}
    said = capsys.readouterr()
    with open(aligned / "alignment.csv", newline="") as file:
        rows = {row["photo"]: row for row in csv.DictReader(file)}
    written = {name: row["aligned"] for name, row in rows.items() if row["aligned"]}
    assert written == {
        "Ann/1.jpg": "Ann/1.jpg.png",
        "Ann/1.png": "Ann/1.png.png",
        "Ann/deep.png": "Ann/deep.png",
        "Ann/five.jpg": "Ann/five.png",
        "Ann/turned.jpg": "Ann/turned.png",
        "Bob/small.jpg": "Bob/small.png",
    }
    why = {name: row["left_out"] for name, row in rows.items() if row["left_out"]}
    assert (
        why["Bob/none.jpg"].endswith("none.jpg: no face found")
        and "HEIC" in why["Bob/a.heic"]
        and len(why) == 5
    )
    assert "not an image" in why["Bob/text.jpg"] and "not an image" in why["Bob/bomb.png"]
    assert "11 photos: 6 faces written, 5 skipped" in said.out
    assert said.out.count(f"skipped {photos}/Bob/") == 5
    # A photo that lies on its side is cut out upright.
    turned, plain = (cv2.imread(str(aligned / "Ann" / name)) for name in ("turned.png", "five.png"))
    assert turned.shape == (112, 112, 3) and np.corrcoef(turned.ravel(), plain.ravel())[0, 1] > 0.7


def test_each_photo_has_a_file_of_its_own():
    names = ["a.jpg", "b.jpg", "b.png", "b.jpg.png", "b", "c/b.gif", ".png"]
    assert _outputs(names) == {
        "a.jpg": "a.png",
        "b.jpg": "b.jpg.png",
        "b.png": "b.png.png",
        "b.jpg.png": "b.jpg.png.png",
        "b": "b.png",
        "c/b.gif": "c/b.png",
        ".png": ".png.png",
    }


def test_pictures_that_promise_much_are_refused_before_they_are_decoded():
    assert len(png_bomb()) == 61
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "the picture: not an image" in refusal(read_photo, png_bomb())
    large = b"P5 60000 60000 255\n" + bytes(100)
    assert "not an image" in refusal(read_photo, large)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    whole = cv2.imencode(".png", np.zeros((5, 6, 3), np.uint8))[1].tobytes()
    assert read_photo(whole + b"and more").shape == (5, 6, 3)


def test_mistakes_are_one_line(tmp_path):
    photos = tmp_path / "photos"
    assert "is not a folder" in refusal(main, [str(photos), str(tmp_path / "aligned")])
    photos.mkdir()
    assert "contains no files" in refusal(main, [str(photos), str(tmp_path / "new")])
    assert "exists already" in refusal(main, [str(photos), str(tmp_path)])


@needs_faces
@pytest.mark.parametrize("side", [140, 60])
def test_photos_that_lie_on_a_side_or_upside_down_are_cut_out_upright(side):
    """OpenCV finds some of these faces, with upright faces' landmarks."""
    detector = Detector()
    for number, (portrait,) in enumerate(portraits(1, 12).values()):
        photo = scene([cv2.resize(portrait, (side, side))], seed=number)
        (upright,) = detector.find(photo)
        expected = align(photo, upright.landmarks)
        for turn in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE):
            turned = cv2.rotate(photo, turn)
            (face,) = detector.find(turned)
            np.testing.assert_allclose(align(turned, face.landmarks), expected, atol=40)
            assert np.corrcoef(align(turned, face.landmarks).ravel(), expected.ravel())[0, 1] > 0.99
            left, top, width, height = face.box
            mask = np.zeros(turned.shape, np.uint8)
            mask[top : top + height, left : left + width] = 255
            inside = [mask[round(y), round(x), 0] for x, y in face.landmarks]
            assert all(inside) and abs(face.area - upright.area) < 0.1 * upright.area


@needs_faces
@pytest.mark.parametrize("side", [480, 640, 1000, 1600])
def test_a_face_that_fills_the_picture_is_found(side):
    detector = Detector()
    for (portrait,) in portraits(1, 12).values():
        filled = cv2.resize(portrait, (side, side), interpolation=cv2.INTER_CUBIC)
        (face,) = detector.find(filled)
        np.testing.assert_allclose(face.landmarks / side, TEMPLATE / 112, atol=0.12)


@needs_faces
def test_groups_are_counted_and_skipped_if_nobody_can_tell_whose_photo_it_is(tmp_path, capsys):
    faces = [face for (face,) in portraits(1, 3).values()]
    photos = tmp_path / "photos"
    wide = np.full((360, 640, 3), 120, np.uint8)
    wide[100:310, 50:260] = cv2.resize(faces[0], (210, 210))
    wide[150:300, 400:550] = cv2.resize(faces[1], (150, 150))
    write(photos / "two.jpg", wide)
    write(photos / "three.jpg", scene(faces))
    assert main([str(photos), str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out
    assert "2 photos: 1 face written, 1 skipped, 1 from photos with several faces" in said
    assert "two.jpg: 2 faces, the second has 5" in said and "with --groups" in said
    with open(tmp_path / "a" / "alignment.csv", newline="") as file:
        three, two = csv.DictReader(file)
    assert (three["faces"], two["faces"], two["aligned"]) == ("3", "2", "") and "second has" in two[
        "left_out"
    ]
    assert 0.25 < float(three["second"]) < 0.4 < float(two["second"]) < 0.6
    assert main([str(photos), str(tmp_path / "b"), "--groups"]) == 0
    assert (tmp_path / "b" / "two.png").is_file()


@needs_faces
def test_threads_give_the_same_bits_as_one():
    photos = [scene(faces, seed=number) for number, faces in enumerate(portraits(2, 6).values())]
    detector = Detector()
    alone = [detector.find(photo)[0] for photo in photos]
    before = cv2.getNumThreads()
    together = [faces[0] for faces in in_parallel(detector.find, photos)]
    assert cv2.getNumThreads() == before
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.landmarks, other.landmarks) and one.box == other.box
