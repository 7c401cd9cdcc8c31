from plsc.data.autodetect import open_images
from plsc.data.rec import RecImages
from plsc.errors import MissingFileError
from tests.helpers.image_files import png, write_folder, write_rec
from tests.helpers.refusals import refusal


def test_formats_are_recognised_by_looking(tmp_path):
    faces = write_folder(tmp_path / "faces", {"Ann": 1, "Bob": 1})
    (tmp_path / "rec").mkdir()
    rec = write_rec(tmp_path / "rec" / "train.rec", [0, 1])
    (tmp_path / "list.txt").write_text("Ann/Ann_0001.png\t0\nBob/Bob_0001.png\t1\n")
    for path, kind in (
        (faces, "ImageFolder"),
        (rec, "RecImages"),
        (rec.parent, "RecImages"),
    ):
        data = open_images(str(path), size=(12, 10))
        assert (
            type(data).__name__ == kind
            and data.image_shape == (3, 12, 10)
            and data.encoded(0).tobytes() == png(0)
        )
    data = open_images(str(tmp_path / "list.txt"), root=str(faces))
    assert type(data).__name__ == "ImageList" and data.encoded(1).tobytes() == png(1)


def test_only_a_list_has_a_root(tmp_path):
    faces = str(write_folder(tmp_path / "faces", {"Ann": 1, "Bob": 1}))
    line = f"'there' has no effect, because {faces} is not a list; remove it"
    assert refusal(open_images, faces, root="there") == f"root: {line}"


def test_what_is_not_recognised_is_refused(tmp_path):
    assert refusal(open_images, "none", kind=MissingFileError).startswith("'none' does not exist (looked in ")
    (tmp_path / "a.jpg").write_bytes(png(0))
    assert refusal(open_images, str(tmp_path / "a.jpg")).endswith(
        "a.jpg: is neither a .rec file nor text; give a .rec, a list of images or a folder"
    )
    write_rec(tmp_path / "one.rec", [0])
    write_rec(tmp_path / "two.rec", [0])
    for read in (open_images, RecImages):
        assert refusal(read, str(tmp_path)).endswith(": contains 2 .rec files; name the .rec file")
    (tmp_path / "empty").mkdir()
    assert refusal(RecImages, str(tmp_path / "empty")).endswith(
        "empty: contains 0 .rec files; name the .rec file"
    )
    write_rec(tmp_path / "train.rec", [0, 1, 2])
    for read in (open_images, RecImages):
        assert read(str(tmp_path)).num_classes == 3  # as arcface_torch reads a folder
