"""LFW's View 2: who trains what, which threshold is taken, and the curve."""

import json
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import __main__ as benchmark
from benchmarks import lfw_view2
from plsc.errors import UserError
from tests.apps.serving.faces import PatternEmbedder, picture
from tests.helpers.launch import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def official(tmp_path):
    """Two people a fold with two pictures, and one with a single one; a pair of either kind a fold."""
    people = ["10"]
    pairs = ["10\t1"]
    for fold in range(10):
        people.append("3")
        for number, pictures in ((0, 2), (1, 2), (2, 1)):
            name = f"F{fold}_{number}"
            people.append(f"{name}\t{pictures}")
            (tmp_path / f"images/{name}").mkdir(parents=True)
            for which in range(1, pictures + 1):
                cv2.imwrite(
                    str(tmp_path / f"images/{name}/{name}_{which:04}.jpg"),
                    picture(3 * fold + number, which, unlike=0.1),
                )
        pairs += [f"F{fold}_0\t1\t2", f"F{fold}_0\t1\tF{fold}_1\t1"]
    (tmp_path / "people.txt").write_text("\n".join(people) + "\n")
    (tmp_path / "pairs.txt").write_text("\n".join(pairs) + "\n")
    return tmp_path


def words(folder, *more):
    return [
        "lfw_view2",
        "--images",
        f"{folder}/images",
        "--protocol",
        f"{folder}",
        "--output",
        f"{folder}/out",
        *more,
    ]


def test_ten_networks_are_trained_and_tested(official, monkeypatch, capsys):
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(lfw_view2, "from_run", lambda run: PatternEmbedder())
    assert benchmark.main(words(official, "-o", "Global.epochs=3")) == 0
    assert len(commands) == 10
    assert "Global.epochs=3" in commands[0] and f"Global.output_dir={official}/out/fold_01/run" in commands[0]
    assert "1.0000 ± 0.0000" in capsys.readouterr().out  # the embedder knows these people
    curve = np.loadtxt(official / "out/roc.txt")
    assert curve[0].tolist() == [0, 0] and curve[-1].tolist() == [1, 1] and [1, 0] in curve.tolist()


def test_the_published_config_trains_a_fold(official, monkeypatch):
    monkeypatch.chdir(ROOT)
    few = ["Global.max_steps=2", "LRScheduler.warmup_epochs=0", "DataLoader.Train.batch_size=4"]
    assert benchmark.main(words(official, "--folds", "10", "-o", *few)) == 0
    report = json.loads((official / "out/fold_10/run/results.json").read_text())
    assert "LFW View 2, pairs for the threshold" in json.dumps(report)


def test_a_fold_trains_on_nobody_of_its_own_pairs_and_of_those_for_the_threshold(official):
    protocol = lfw_view2.read_protocol(official)
    for fold in range(1, 11):
        lfw_view2.write_lists(protocol, fold, official / "faces", official / "lists")
        lines = [line.split("\t") for line in (official / "lists/train.txt").read_text().splitlines()]
        people = {Path(path).parent.name for path, _ in lines}
        assert len(lines) == 32 and len({label for _, label in lines}) == len(people) == 16
        others = {f"F{place}" for place in range(10)} - {name[:2] for name in people}
        assert others == {f"F{fold - 1}", f"F{fold % 10}"}
        for name, place in (("test", fold - 1), ("threshold", fold % 10)):
            assert f"F{place}_0\t1\t2" in (official / f"lists/{name}.txt").read_text().splitlines()


def test_a_finished_fold_is_not_trained_again(official, monkeypatch):
    for fold in range(1, 11):
        (official / f"out/fold_{fold:02}/run").mkdir(parents=True)
        (official / f"out/fold_{fold:02}/run/results.json").write_text("{}")
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(lfw_view2, "from_run", lambda run: PatternEmbedder())
    assert benchmark.main(words(official, "--folds", "3")) == 0


def test_the_face_is_cut_out_of_official_pictures_only(official):
    protocol = lfw_view2.Protocol([{"F0_0": 1, "F0_1": 1}], [])
    gradient = np.tile(np.arange(250, dtype=np.uint8), (250, 1))
    cv2.imwrite(str(official / "images/F0_0/F0_0_0001.jpg"), gradient, [cv2.IMWRITE_JPEG_QUALITY, 100])
    lfw_view2.crop_faces(official / "images", official / "faces", protocol)
    top, bottom, left, right = lfw_view2.BOX
    face = cv2.imread(str(official / "faces/F0_0/F0_0_0001.png"), cv2.IMREAD_GRAYSCALE)
    assert face.shape == (bottom - top, right - left) and abs(int(face[0, 0]) - left) <= 1
    assert cv2.imread(str(official / "faces/F0_1/F0_1_0001.png")).shape == (32, 32, 3)
    (official / "images/F0_0/F0_0_0001.jpg").unlink()
    lfw_view2.crop_faces(official / "images", official / "faces", protocol)  # what is cut is not read again
    with pytest.raises(UserError, match="F0_0_0001.jpg is missing or no picture"):
        lfw_view2.crop_faces(official / "images", official / "others", protocol)


def test_other_files_are_no_protocol(official):
    (official / "people.txt").write_text("1\n1\nF0_0\t2\n")
    with pytest.raises(UserError, match="must have 10 folds"):
        lfw_view2.read_protocol(official)


def test_the_threshold_has_the_fewest_errors():
    cosine = np.array([0.9, 0.8, 0.3, 0.6, 0.2, 0.1])
    same = np.array([True, True, True, False, False, False])
    assert lfw_view2.best_threshold(cosine, same) == pytest.approx(0.475)  # 0.25 and 0.7 have one error each
    curve = lfw_view2.roc([(cosine, same), (cosine + 1, same)])
    assert np.all(np.diff(curve, axis=0) >= 0)
