"""plsc gallery: what it prints, its exit codes, and that its answer is all that stdout has."""

import json

import cv2
import numpy as np
import pytest

from plsc import Gallery, cli
from plsc.apps.serving import embedder as module
from plsc.apps.serving.gallery.store import SqliteStore
from plsc.utils.calibration import Calibration
from plsc.utils.files import sha256_of
from plsc.utils.logging import get_logger
from tests.apps.serving.fake_embedder import FakeEmbedder, Turned, pictures, units

THRESHOLDS = [{"far": 0.01, "cosine": 0.9}]
CALIBRATION = Calibration(
    method="logistic",
    set="demo",
    step=1,
    pairs=9,
    prior=0.5,
    cosine=[-1.0, 1.0],
    log_odds=[-4.0, 4.0],
    thresholds=THRESHOLDS,
)


@pytest.fixture
def networks(monkeypatch):
    """Config -> embedder, in the place of checkpoints."""
    known = {
        "a.yaml": FakeEmbedder(
            threshold=0.95,
            calibration=CALIBRATION,
            origin={"config": "a.yaml", "overrides": [], "checkpoint": "output/checkpoints/step-1"},
        ),
        "b.yaml": FakeEmbedder(seed=1, threshold=None),
        "turned.yaml": Turned(),
    }

    def from_run(config, overrides=()):
        get_logger().info("a line of the log")
        return known[config]

    monkeypatch.setattr(module, "from_run", from_run)
    return known


@pytest.fixture
def folder(tmp_path, monkeypatch, networks):
    """people/Ann/0.png, 1.png, people/Bob/2.png, and stranger.png; the gallery g of the people."""
    monkeypatch.chdir(tmp_path)
    for number, picture in enumerate(pictures(4)):
        path = tmp_path / ("stranger.png" if number == 3 else f"people/{'AAB'[number]}/{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), picture[0])
    assert cli.main(["gallery", "build", "g", "-c", "a.yaml", "people/"]) == 0
    Gallery.open("g").set_threshold(0.95)
    return tmp_path


def run(capsys, *args):
    capsys.readouterr()
    code = cli.main(["gallery", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_search(folder, capsys):
    code, out, err = run(capsys, "search", "g", "people/B/2.png", "--json")
    (answer,) = json.loads(out)
    assert code == 0 and "a line of the log" in err
    assert answer["picture"] == "people/B/2.png" and answer["threshold"] == 0.95
    assert [match["name"] for match in answer["matches"]] == ["B", "A"]
    assert answer["name"] == "B" and [match["accepted"] for match in answer["matches"]] == [True, False]
    code, out, _ = run(capsys, "search", "g", "people/B/2.png", "stranger.png", "--top", "1")
    assert code == 1 and "people/B/2.png: B\n" in out and "stranger.png: nobody; the nearest is " in out
    assert " of 0.9500\n" in out
    code, out, _ = run(capsys, "search", "g", "people/B/2.png", "--threshold", "-1")
    assert "people/B/2.png: B; 2 people are above the threshold -1.0000, the nearest is named\n" in out


def test_thresholds(folder, capsys):
    words = ["verify", "g", "A", "people/A/0.png"]
    code, out, _ = run(capsys, *words)
    assert code == 1 and out.startswith("no\n")
    code, out, _ = run(capsys, *words, "--far", "0.01")
    assert code == 0 and out.startswith("yes\n")
    assert run(capsys, "verify", "g", "A", "stranger.png", "--threshold", "-1")[1].startswith("yes\n")
    code, _, err = run(capsys, *words, "--far", "0.3")
    assert code == 2 and "FAR 0.3: 'demo' gave no threshold for it" in err


def test_add_remove_list(folder, capsys):
    assert run(capsys, "add", "g", "D\x1b[2J", "stranger.png")[1] == "D\\x1b[2J: 1 picture added; 3 people\n"
    code, out, _ = run(capsys, "list", "g", "--json")
    facts = json.loads(out)
    assert code == 0 and [each["name"] for each in facts["people"]] == ["A", "B", "D\x1b[2J"]
    assert facts["people"][2]["pictures"] == [str(folder / "stranger.png")]
    code, _, err = run(capsys, "add", "g", "D\x1b[2J", "stranger.png")
    assert (
        code == 0 and f"1 of these files count more than once now, such as {folder / 'stranger.png'};" in err
    )
    assert "\x1b" not in run(capsys, "list", "g")[1]
    assert run(capsys, "search", "g", "stranger.png")[0] == 0
    assert run(capsys, "remove", "g", "D\x1b[2J")[0] == 0
    code, _, err = run(capsys, "remove", "g", "D\x1b[2J")
    assert code == 2 and err.endswith("has nobody named 'D\\x1b[2J'; plsc gallery list shows the names\n")


def test_a_receipt_says_who_was_removed_and_no_file_has_them(folder, capsys):
    run(capsys, "add", "g", "Dee", "stranger.png")
    store = SqliteStore("g")
    with store.snapshot():
        rows = [vector.tobytes() for vector in store.vectors(store.pictures()[0])]
    store.close()
    code, out, _ = run(capsys, "remove", "g", "Dee", "A", "--receipt", "receipt.json")
    assert code == 0 and out == "Dee, A: removed; 1 person\n"
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["gallery"] == str(folder / "g") and receipt["time"].startswith("20")
    assert receipt["removed"] == [
        {"name": "Dee", "pictures": [str(folder / "stranger.png")], "rows": 1},
        {"name": "A", "pictures": [str(folder / f"people/A/{number}.png") for number in (0, 1)], "rows": 1},
    ]
    assert receipt["before"]["people"] == receipt["before"]["rows"] == 3
    assert receipt["after"]["people"] == receipt["after"]["rows"] == 1
    assert receipt["after"]["sha256"]["g"] == sha256_of("g") != receipt["before"]["sha256"]["g"]
    texts = [path.read_bytes() for path in folder.glob("g*")]
    assert any(rows[2] in text for text in texts) and len(rows) == 4
    gone = (b"Dee", b"people/A", b"stranger.png", rows[0], rows[1], rows[3])
    assert not any(trace in text for text in texts for trace in gone)
    left = {path.name for path in folder.iterdir()}
    for receipt in ("receipt.json", "nowhere/receipt.json"):
        code, _, err = run(capsys, "remove", "g", "B", "--receipt", receipt)
        assert code == 2 and f"--receipt: {receipt}: must be a new file, in a folder that is there" in err
    assert {path.name for path in folder.iterdir()} == left and Gallery.open("g").names() == ["B"]
    code, out, _ = run(capsys, "remove", "g", "B", "--json")
    assert code == 0 and json.loads(out)["after"]["people"] == 0
    assert run(capsys, "remove", "g")[:2] == (0, "nobody: removed; 0 people\n")


def test_metadata_and_collections(folder, capsys):
    words = ["add", "g", "Dee", "stranger.png", "--meta", '{"id": 7}', "--collection", "guests"]
    assert run(capsys, *words)[0] == 0
    people = json.loads(run(capsys, "list", "g", "--json")[1])["people"]
    assert [(each["name"], each["collection"], each["meta"]) for each in people] == [
        ("A", "", None),
        ("B", "", None),
        ("Dee", "guests", {"id": 7}),
    ]
    (answer,) = json.loads(run(capsys, "search", "g", "stranger.png", "--json")[1])
    assert answer["matches"][0]["meta"] == {"id": 7} and len(answer["matches"]) == 3
    (answer,) = json.loads(run(capsys, "search", "g", "stranger.png", "--collection", "guests", "--json")[1])
    assert [match["name"] for match in answer["matches"]] == ["Dee"]
    code, _, err = run(capsys, "add", "g", "Dee", "stranger.png", "--meta", "{")
    assert code == 2 and "ERROR --meta: is not JSON; give an object such as" in err
    assert run(capsys, "build", "h", "-c", "a.yaml", "people/", "--collection", "staff")[0] == 0
    assert {each.collection for each in Gallery.open("h").people()} == {"staff"}


def test_a_gallery_of_vectors(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    vectors = 7 * units(30)
    np.save("x.npy", vectors)
    (tmp_path / "names.txt").write_text("".join(f"Zoë {number % 15}\n" for number in range(30)))
    code, out, _ = run(capsys, "build", "g", "--vectors", "x.npy", "--labels", "names.txt")
    assert code == 0 and out.startswith("g: built, 15 people, 15 rows\nthreshold ")
    np.save("who.npy", vectors[4] + vectors[19])
    code, out, _ = run(capsys, "search", "g", "who.npy", "--threshold", "0.99")
    assert code == 0 and out.startswith("who.npy: Zoë 4\n")
    assert run(capsys, "add", "g", "New", "who.npy")[1] == "New: 1 picture added; 16 people\n"
    np.save("short.npy", vectors[0, :5])
    (tmp_path / "no.npy").write_text("no array")
    for name, message in [
        ("short.npy", "must be an array float32 [8] like every sample"),
        ("none.npy", "no such file"),
        ("no.npy", "is no .npy file of numbers"),
    ]:
        code, _, err = run(capsys, "search", "g", name)
        assert code == 2 and f"ERROR {name}: {message}" in err
    np.save("few.npy", vectors[:29])
    code, _, err = run(capsys, "build", "h", "--vectors", "few.npy", "--labels", "names.txt")
    assert (
        code == 2
        and "few.npy: must be [n, D] with a line of names.txt for each row, got [29, 8] and 30 lines" in err
    )
    for words in (["people", "--vectors", "x.npy"], ["--vectors", "x.npy"], []):
        code, _, err = run(capsys, "build", "h", *words)
        assert code == 2 and "build: takes the folder of people with -c or --export, or --vectors" in err
    code, _, err = run(capsys, "build", "h", "people")
    assert code == 2 and "build: name the network, -c CONFIG or --export FOLDER" in err


def test_backup(folder, capsys):
    code, out, _ = run(capsys, "backup", "g", "copy")
    assert code == 0 and out.startswith("copy: 2 people, ")
    assert sorted(path.name for path in folder.glob("copy*")) == ["copy"]
    copy = Gallery.open("copy")
    assert copy.names() == ["A", "B"] and copy.threshold == 0.95 and copy.facts == Gallery.open("g").facts
    code, _, err = run(capsys, "backup", "g", "copy")
    assert code == 2 and "copy: exists already; remove it" in err


def test_another_network_needs_an_upgrade(folder, capsys):
    code, _, err = run(capsys, "search", "g", "stranger.png", "-c", "b.yaml")
    assert code == 2 and "of the network run 0 (000000000000), these are of run 1" in err
    assert run(capsys, "upgrade", "g", "-c", "b.yaml")[0] == 0
    assert run(capsys, "upgrade", "g", "-c", "b.yaml", "people")[0] == 0
    code, _, err = run(capsys, "upgrade", "g", "-c", "b.yaml", "nobody")
    assert code == 2 and "'nobody' is no folder" in err
    for more in (["people", "others"], ["people", "--map", "others"], ["--mop", "others"]):
        with pytest.raises(SystemExit):
            run(capsys, "upgrade", "g", "-c", "b.yaml", *more)
    code, _, err = run(capsys, "search", "g", "people/B/2.png", "-c", "b.yaml")
    assert code == 2 and "g: has no threshold" in err
    assert run(capsys, "search", "g", "people/B/2.png", "-c", "b.yaml", "--threshold", "0.9")[0] == 0
    code, _, err = run(capsys, "verify", "g", "B", "people/B/2.png", "-c", "b.yaml", "--far", "0.1")
    assert code == 2 and "g has no calibration; store one with plsc eval --calibrate" in err
    Gallery.open("g").set_threshold(0.9)
    code, _, err = run(capsys, "search", "g", "stranger.png", "-o", "Global.seed=1")
    assert code == 2 and err.endswith("ERROR -o, --device: change the config that -c names; give -c too\n")
    code, _, err = run(capsys, "search", "g", "stranger.png")
    assert code == 2 and "does not say where its network is; name its run with -c" in err


def test_upgrade_without_pictures_of_the_people(folder, capsys, monkeypatch, networks):
    for number, picture in enumerate(pictures(60, seed=9)):
        (folder / f"others/p{number}").mkdir(parents=True)
        cv2.imwrite(str(folder / f"others/p{number}/0.png"), picture[0])
    for path in folder.glob("people/*/*.png"):
        path.unlink()
    code, _, err = run(capsys, "upgrade", "g", "-c", "turned.yaml", "--old", "a.yaml")
    assert code == 2 and "--old: names the network that --map leads from; give --map too" in err
    (folder / "old-run").mkdir()
    networks["old-run"] = networks["b.yaml"]
    for old in ("b.yaml", "old-run"):
        code, _, err = run(capsys, "upgrade", "g", "-c", "turned.yaml", "--map", "others", "--old", old)
        assert code == 2 and "of the network run 0 (000000000000), these are of run 1" in err
    code, out, _ = run(capsys, "upgrade", "g", "-c", "turned.yaml", "--map", "others")
    assert code == 0 and "g: upgraded by a map, 2 people, 2 rows\nrows carried over from run 0 (" in out
    assert "fitted on 60 pictures of 60 people" in out and "\nhas no threshold: how often a stranger" in out
    found = json.loads(run(capsys, "list", "g", "--json")[1])
    assert found["mapped"].startswith("carried over from run 0") and found["threshold"] is None
    monkeypatch.setattr(
        "plsc.apps.serving.gallery.command.fit_map", None
    )  # what cannot be used is not fitted
    code, _, err = run(capsys, "upgrade", "g", "-c", "turned.yaml", "--map", "others", "--old", "turned.yaml")
    assert code == 2 and "already; name another network" in err


def test_pictures_that_cannot_be_used(folder, capsys):
    (folder / "people" / "A" / "bad.png").write_bytes(b"no picture")
    code, out, err = run(capsys, "build", "h", "-c", "a.yaml", "people/", "--template", "images")
    assert (
        code == 1
        and out.startswith("h: built, 2 people, 3 rows\n")
        and out.endswith("\nleft out: 1 picture\n")
        and err.count("people/A/bad.png: not an image") == 1
    )
    code, _, err = run(capsys, "add", "g", "Cy", "people/A/bad.png", "none.png", "stranger.png")
    assert code == 2 and [line.split(":")[0] for line in err.splitlines() if line.startswith("ERROR")] == [
        "ERROR people/A/bad.png",
        "ERROR none.png",
    ]
    assert "Cy" not in run(capsys, "list", "g")[1]


def test_evaluate_sets_the_threshold(folder, capsys):
    for number, picture in enumerate(pictures(10, seed=3)):
        (folder / "test" / f"s{number}").mkdir(parents=True)
        cv2.imwrite(str(folder / "test" / f"s{number}" / "1.png"), picture[0])
    code, out, _ = run(capsys, "evaluate", "g", "test", "--set-threshold", "0.1", "--json")
    numbers = json.loads(out)
    assert code == 0 and numbers["strangers"] == 10 and numbers["known"] == 0
    code, out, _ = run(capsys, "list", "g", "--json")
    facts = json.loads(out)
    assert facts["measured"]["by"] == "strangers" and facts["measured"]["people"] == 10
    assert facts["threshold"] != 0.95


def test_people_are_known_whatever_characters_their_folders_names_have(folder, capsys):
    """macOS writes accents behind their letters."""
    shown = pictures(10, seed=3)
    gallery = Gallery.open("g", FakeEmbedder(threshold=0.95))
    for number, picture in enumerate(shown):
        gallery.add(f"Jos\xe9{number}", picture[np.newaxis])
        (folder / "test" / f"Jose\u0301{number}").mkdir(parents=True)
        cv2.imwrite(str(folder / "test" / f"Jose\u0301{number}" / "1.png"), picture[0])
    code, _, err = run(capsys, "evaluate", "g", "test", "--set-threshold", "0.1")
    assert code == 2 and "0 strangers are too few for a threshold" in err


def test_numbers_are_written_for_people(folder, capsys):
    for name in ("A", "B"):
        run(capsys, "remove", "g", name)
    _, out, _ = run(capsys, "add", "g", "Cy", "stranger.png", "-c", "a.yaml")
    assert out == "Cy: 1 picture added; 1 person\n"
    assert "\nthreshold   0.9500\n" in run(capsys, "list", "g")[1]


def test_a_folder_in_the_place_of_a_picture(folder, capsys):
    code, _, err = run(capsys, "search", "g", "people/A", "-c", "a.yaml")
    assert code == 2 and "ERROR people/A: is a folder; name the pictures in it\n" in err


def test_who_was_trained_on_is_no_stranger_when_added(folder, capsys, networks, monkeypatch):
    monkeypatch.setattr(networks["a.yaml"], "trained_on", lambda: frozenset({"Cy"}))
    assert run(capsys, "build", "h", "-c", "a.yaml", "people/")[0] == 0
    assert run(capsys, "add", "h", "Cy", "stranger.png")[0] == 0
    text = run(capsys, "list", "h")[1]
    assert (
        "\nhas no threshold: how often a stranger would get a name cannot be known from pictures of 2 people"
        in text
    )
    assert "\npair_threshold 0.9500\n" in text
