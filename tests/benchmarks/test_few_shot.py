"""Characters from few examples: what an episode counts, and how a split is read."""

import json

import cv2
import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import few_shot
from plsc.errors import UserError
from tests.apps.serving.faces import PatternEmbedder, picture

pytestmark = pytest.mark.slow


@pytest.fixture
def alphabets(tmp_path):
    for character in range(6):
        folder = tmp_path / f"images/Runes/character{character:02}"
        folder.mkdir(parents=True)
        for number in range(8):
            cv2.imwrite(str(folder / f"{number}.png"), picture(character, number, unlike=0.3))
    lines = [f"Runes/character{character:02}/rot{turn}" for character in range(6) for turn in ("000", "090")]
    (tmp_path / "split.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_unseen_characters_are_classified_from_one_example(alphabets, monkeypatch, capsys):
    monkeypatch.setattr(few_shot, "from_run", lambda run: PatternEmbedder())
    words = ["few_shot", "--run", "r", "--images", f"{alphabets}/images", "--split", f"{alphabets}/split.txt"]
    words += [
        "--ways",
        "5",
        "12",
        "--shots",
        "1",
        "3",
        "--episodes",
        "20",
        "--json",
        f"{alphabets}/numbers.json",
    ]
    assert benchmark.main(words) == 0
    numbers = json.loads((alphabets / "numbers.json").read_text())
    assert numbers["classes"] == 12
    accuracy = {(row["ways"], row["shots"]): row["accuracy"] for row in numbers["rows"]}
    assert accuracy[5, 3] >= accuracy[12, 3] > 0.95  # a turned character is a class of its own
    assert accuracy[12, 3] >= accuracy[12, 1] > 0.8
    assert "12 unseen classes, 20 episodes" in capsys.readouterr().out


def test_an_episode_counts_the_nearest_mean():
    rng = np.random.default_rng(0)
    known = [np.tile(row, (7, 1)).astype(np.float32) for row in np.eye(4)]
    assert few_shot.episode(known, 4, 2, 5, rng) == 1
    alike = [np.ones((7, 4), np.float32) / 2] * 4
    assert few_shot.episode(alike, 4, 2, 5, rng) == 0  # a network that tells nothing apart
    half = [known[0], known[1], alike[0], alike[0]]
    assert few_shot.episode(half, 4, 2, 5, rng) == 0.5
    for ways, shots in ((5, 1), (4, 3)):
        with pytest.raises(UserError, match="the split has 4 classes of at least 7 pictures"):
            few_shot.episode(known, ways, shots, 5, rng)


@pytest.mark.parametrize("line", ["Runes/character99/rot000", "Runes/character01/rot045", "Runes"])
def test_a_class_that_is_not_there_is_named(line, alphabets):
    (alphabets / "split.txt").write_text(f"Runes/character00\n{line}\n")
    with pytest.raises(UserError, match=f"split.txt: line 2: '{line}' must be a folder of PNG files"):
        few_shot.read_split(alphabets / "split.txt", alphabets / "images")
