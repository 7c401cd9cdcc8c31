"""Galleries of photos with the published networks, with a run and with its export. Also the command."""

import re
import shutil

import cv2
import numpy as np
import pytest

from plsc import Gallery, cli
from plsc.apps.gallery.embed import open_network
from plsc.entry import Entry
from tests.apps.faces.lfw import ZOO, needs_faces, portraits, scene, write
from tests.helpers.refusals import refusal

pytestmark = needs_faces


@pytest.fixture(autouse=True)
def networks(monkeypatch):
    monkeypatch.setenv("PLSC_CACHE", str(ZOO))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve people with three photos and one further photo each, and four strangers."""
    folder = tmp_path_factory.mktemp("photos")
    *known, s1, s2, s3, s4 = portraits(4, 16).items()
    for number, (name, faces) in enumerate(known):
        for picture, face in enumerate(faces):
            kind = "people" if picture < 3 else "further"
            write(folder / kind / name / f"{picture}.jpg", scene([face], seed=10 * number + picture))
    for name, faces in (s1, s2, s3, s4):
        write(folder / "further" / name / "0.jpg", scene(faces[:1]))
    return folder


@pytest.fixture(scope="module")
def built(photos):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLSC_CACHE", str(ZOO))
        Gallery.build(photos / "a.gallery", photos / "people").close()
    return photos / "a.gallery"


def run(capsys, *arguments):
    """Exit code, and what was said to stdout and to stderr."""
    code = cli.main(["gallery", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_photos_to_names_without_a_run(photos, tmp_path, capsys):
    gallery = tmp_path / "a.gallery"
    (photos / "people" / next(iter(portraits(4, 16))) / "note.jpg").write_text("no picture")
    code, said, log = run(capsys, "build", gallery, photos / "people")
    (photos / "people" / next(iter(portraits(4, 16))) / "note.jpg").unlink()
    first, second, third = said.splitlines()
    assert code == 0 and first == f"{gallery}: 12 people, 36 pictures"
    assert re.fullmatch(
        r"threshold 0\.\d\d; strangers named: \d\.\d% \(target 1\.0%\); enrolled people found: \d+\.\d%",
        second,
    )
    assert third == "skipped: 1 picture, named above" and "note.jpg: not an image" in log
    further = sorted((photos / "further").glob("*/*.jpg"))
    code, said, _ = run(capsys, "search", gallery, *further)
    answers = dict(zip(further, said.splitlines(), strict=True))
    names = [*Gallery.open(gallery)]
    known = [path for path in further if path.parent.name in names]
    right = sum(answers[path].startswith(f"{path}: {path.parent.name} (similarity 0.") for path in known)
    assert len(known) == 12 and right >= 11 and code == 1  # the strangers have no name
    assert ", threshold 0." in said and ": nobody (nearest " in said


def test_people_are_added_listed_and_removed(built, tmp_path, capsys):
    copy = tmp_path / "a.gallery"
    copy.write_bytes(built.read_bytes())
    stranger = portraits(4, 16)[[*portraits(4, 16)][-1]]
    pictures = [write(tmp_path / f"{n}.jpg", scene([face], seed=n)) for n, face in enumerate(stranger)]
    code, said, _ = run(capsys, "add", copy, "New One", *pictures[:2], built)
    assert code == 0 and said.startswith("New One: 2 pictures added; 13 people\nthreshold 0.")
    assert said.endswith("\nskipped: 1 picture, named above\n")
    code, said, _ = run(capsys, "search", copy, pictures[3])
    assert code == 0 and said.startswith(f"{pictures[3]}: New One (similarity 0.")
    code, said, _ = run(capsys, "list", copy)
    assert (
        code == 0
        and said.splitlines()[0].endswith(": 13 people, 38 pictures")
        and "\nNew One: 2 pictures\n" in said
    )
    assert run(capsys, "list", copy, "New One")[:2] == (0, "New One/0.jpg\nNew One/1.jpg\n")
    removed = "New One/1.jpg: removed; 13 people, 37 pictures\n"
    assert run(capsys, "remove", copy, "New One/1.jpg")[:2] == (0, removed)
    assert run(capsys, "remove", copy, "New One")[:2] == (0, "New One: removed; 12 people, 36 pictures\n")
    code, said, log = run(capsys, "add", copy, *pictures[:2])
    assert (code, said) == (2, "") and log.startswith(
        f"ERROR {pictures[0]}: is a file, not a person's name; "
    )
    code, said, _ = run(capsys, "verify", *pictures[:2])
    assert code == 0 and re.fullmatch(r"one person \(similarity 0\.\d\d, threshold 0\.36\)\n", said)
    (other, *_) = sorted((built.parent / "people").glob("*/*.jpg"))
    assert run(capsys, "verify", pictures[0], other)[0] == 1
    nobody = f"ERROR {copy}: has nobody called New One; nothing was changed\n"
    assert run(capsys, "remove", copy, "New One") == (2, "", nobody)


def test_pictures_of_all_kinds_get_one_line_each(built, tmp_path, capsys):
    faces = [faces[3] for faces in portraits(4, 16).values()][:5]
    (name, *_) = portraits(4, 16)
    photo = scene(faces[:1], seed=5)
    asked = {
        "plain.jpg": photo,
        "grey.png": cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY),
        "five.jpg": scene(faces, seed=5),
        "none.jpg": np.full((200, 300, 3), 90, np.uint8),
    }
    for file, picture in asked.items():
        write(tmp_path / file, picture)
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "aligned.png").write_bytes(cv2.imencode(".png", portraits(4, 16)[name][3])[1])
    files = sorted(tmp_path.iterdir())
    code, said, _ = run(capsys, "search", built, *files, tmp_path / "gone.jpg")
    lines = {line.split(": ")[0].rsplit("/")[-1]: line.split(": ", 1)[1] for line in said.splitlines()}
    assert code == 1 and len(lines) == len(said.splitlines()) == len(files) + 1
    for file in ("plain.jpg", "grey.png", "five.jpg", "aligned.png"):
        assert lines[file].startswith(f"{name} (similarity 0."), (file, lines[file])
    assert lines["five.jpg"].endswith("; the largest of 5 faces")
    assert lines["none.jpg"] == "nobody (no face found)" and lines["gone.jpg"] == "nobody (no such image)"
    assert "not an image" in lines["text.jpg"]
    cmyk = pytest.importorskip("PIL.Image", reason="Pillow, which writes CMYK, is not installed")
    cmyk.fromarray(photo[:, :, ::-1]).convert("CMYK").save(tmp_path / "cmyk.jpg")
    assert run(capsys, "search", built, tmp_path / "cmyk.jpg")[1].startswith(f"{tmp_path}/cmyk.jpg: {name} (")


def test_mistakes_are_one_line(built, tmp_path, capsys):
    (tmp_path / "no.onnx").write_text("no network")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, text in (
        (["build", tmp_path / "a", empty], "has no images in subfolders"),
        (
            ["build", tmp_path / "a", empty, "--network", "gone.onnx"],
            "is not a file; give sface, the path",
        ),
        (
            ["build", tmp_path / "a", empty, "--network", tmp_path / "no.onnx"],
            "no.onnx: ONNX Runtime can",
        ),
        (
            ["build", tmp_path / "a", empty, "-o", "Global.device=cpu"],
            "change the run that -c names; give -c",
        ),
        (["search", built, "a.jpg", "-c", tmp_path / "no run"], "no run"),
    ):
        code, said, log = run(capsys, *arguments)
        errors = [line for line in log.splitlines() if line.startswith("ERROR ")]
        assert (code, said, len(errors)) == (2, "", 1) and text in errors[0], log


def test_sface_gives_what_opencv_gives(photos):
    network = open_network()
    (name, *_) = portraits(4, 16)
    path = str(photos / "people" / name / "0.jpg")
    prepared = network.prepare(path)
    (sample,) = prepared.samples
    assert len(prepared.faces) == 1 and sample.shape == (3, 112, 112)
    (embedding,) = network.embed([sample])
    recogniser = cv2.FaceRecognizerSF.create(str(ZOO / "face_recognition_sface_2021dec.onnx"), "")
    theirs = recogniser.feature(np.ascontiguousarray(sample.transpose(1, 2, 0)))[0]
    np.testing.assert_allclose(embedding, theirs / np.linalg.norm(theirs), atol=1e-6)
    of_file = open_network(str(ZOO / "face_recognition_sface_2021dec.onnx"))  # it normalises by itself
    assert np.array_equal(of_file.embed([sample]), network.embed([sample]))
    assert of_file.identity == network.identity and of_file.pair_threshold == network.pair_threshold


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on aligned faces, and its export."""
    folder = tmp_path_factory.mktemp("run")
    for name, faces in portraits(4, 16).items():
        for number, face in enumerate(faces):
            write(folder / "faces" / name / f"{number}.png", face)
    data = {"name": "ImageFolder", "folder": str(folder / "faces"), "size": [112, 112], "aligned": True}
    entry = Entry(
        {
            "Global": {"max_steps": 3, "output_dir": str(folder / "output"), "device": "cpu"},
            "Model": {"widths": [4, 8], "blocks": [1, 1], "embedding_size": 16},
            "DataLoader": {"Train": {"dataset": data, "batch_size": 8}, "Eval": {"dataset": None}},
            "Export": {"formats": ["onnx"]},
        }
    )
    entry.train()
    return folder, entry


def test_a_run_and_its_export_give_the_names_of_predict(trained, tmp_path):
    pytest.importorskip("paddle2onnx", reason="the extra export is not installed")
    folder, entry = trained
    entry.export()
    files = sorted(map(str, (folder / "faces").glob("*/*.png")))
    embeddings, _ = entry.predict(files)
    owners = [file.split("/")[-2] for file in files]
    people = sorted({*owners})
    means = np.array([sum(v for v, owner in zip(embeddings, owners) if owner == name) for name in people])
    by_hand = [
        people[n] for n in (embeddings @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(1)
    ]
    model = str(tmp_path / "moved.onnx")  # without preprocessing.json
    shutil.copy(folder / "output" / "export" / "model.onnx", model)
    for number, network in enumerate((open_network(config=str(folder / "output")), open_network(model))):
        assert network.finds_faces and network.preprocessing.shape[1:] == (112, 112)
        gallery = Gallery.build(tmp_path / f"{number}.gallery", folder / "faces", network)
        assert [answer.matches[0].name for answer in gallery.search(files)] == by_hand
        gallery.close()
        again = Gallery.open(tmp_path / f"{number}.gallery")  # the network is found again
        assert (
            again.search(files[:1])[0].matches[0].name == by_hand[0]
            and again.network.identity == network.identity
        )
    assert "another network" in refusal(Gallery.open, tmp_path / "0.gallery", open_network())
