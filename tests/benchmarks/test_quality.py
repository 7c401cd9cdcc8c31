"""The benchmark of planted faults: what it plants, and what it counts."""

import json
from collections import Counter

import cv2
import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import quality
from plsc.apps.curate import detector
from plsc.apps.serving.gallery.quality import Finding
from tests.apps.serving.faces import PatternEmbedder, picture

pytestmark = pytest.mark.slow


def test_planted_faults_are_found(tmp_path, monkeypatch, capsys):
    """A network that knows these people, and no detector: all but faces out of their place."""
    for person in range(220):
        (tmp_path / f"faces/p{person:03}").mkdir(parents=True)
        for number in range(1 if person % 3 else 6):
            large = cv2.resize(picture(person, number), (112, 112), interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(str(tmp_path / f"faces/p{person:03}/{number}.png"), large)
    monkeypatch.setattr(quality, "from_run", lambda run: PatternEmbedder(threshold=None))
    monkeypatch.setattr(detector, "installed", lambda: False)
    words = ["--run", "r", "--faces", str(tmp_path / "faces"), "--pictures", "260", "--faults", "36"]
    assert benchmark.main(["quality", *words, "--json", str(tmp_path / "numbers.json")]) == 0
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    kinds = numbers["kinds"]
    assert {kind: of for kind, (_, of) in kinds.items()} == dict.fromkeys(quality.KINDS[:5], 6) | {
        "copy": 3,
        "twin": 3,
    }
    for kind in ("blur", "small", "stretched", "copy"):
        assert kinds[kind][0] == kinds[kind][1], kind
    assert kinds["wrong person"][0] >= 5  # each is by chance among the most alike, 5 %
    assert sum(numbers["false_alarms"].values()) <= 3
    said = capsys.readouterr().out
    assert "precision " in said and "FPIR of " in said and "not checked: faces" in said


def test_an_original_that_is_named_finds_its_copy():
    kinds = np.array(["", "copy", "", "blur"])
    planted = quality.Planted(["a", "a again", "b", "c"], ["1", "2", "3", "4"], kinds, {"2": "1"}, [])
    found = quality.count(planted, [Finding(0, "same picture", "", ""), Finding(2, "blurred", "", "")])
    assert found["kinds"]["copy"] == [1, 1] and found["kinds"]["blur"] == [0, 1]
    assert found["false_alarms"] == {"blurred": 1} and found["precision"] == found["recall"] == 0.5


def test_only_people_of_the_half_are_planted(tmp_path):
    people = {f"p{person}": [f"p{person}/{n}" for n in range(4)] for person in range(20)}
    people |= {f"s{person}": [f"s{person}/0"] for person in range(40)}
    halves = []
    for second in (False, True):
        planted = quality.plant(people, second, 45, 6 * 0, tmp_path, np.random.default_rng(0))
        halves.append({*planted.people})
        assert len(planted.files) == 45 and Counter(planted.kinds.tolist()) == {"": 45}
        assert not {file.split("/")[0] for file in planted.strangers} & halves[-1]
    assert not halves[0] & halves[1]
