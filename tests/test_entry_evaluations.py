"""Entry's verbs on checkpoints called newest and best, on several sets, and with mirror images."""

import json
import re
import shutil

import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint import Checkpoint
from plsc.errors import MissingFileError, UserError
from plsc.rewrite import reshard
from tests.test_entry import PIXELS, entry
from tests.training import TINY, checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    entry(folder).train()
    return folder


def test_newest_and_best_are_words_for_checkpoints(tmp_path, capsys):
    values = ["Global.eval_every_steps=4", "Checkpoint.keep=9", "LRScheduler.learning_rate=0.001"]
    entry(tmp_path, *values).train()
    best = json.loads((tmp_path / "results.json").read_text())["best"]
    for word, step in (("newest", 12), ("best", best["step"])):
        capsys.readouterr()
        found = entry(tmp_path, f"Global.checkpoint={word}").test()
        assert f"reading checkpoint {checkpoint(tmp_path, step)} ({word})" in capsys.readouterr().out
        content = json.loads((tmp_path / "test" / "results.json").read_text())
        assert (content["step"], content["checkpoint"]) == (step, str(checkpoint(tmp_path, step)))
        assert content["sets"]["noise pairs"]["accuracy"] == found["accuracy"]
    assert found["accuracy"] == best["value"]
    entry(tmp_path, f"Global.checkpoint={checkpoint(tmp_path, 8)}").predict(PIXELS)
    assert (
        f"reading checkpoint {checkpoint(tmp_path, 8)} (as Global.checkpoint says)" in capsys.readouterr().out
    )


def test_best_where_nothing_was_evaluated(tmp_path):
    entry(tmp_path, "Global.max_steps=1", "DataLoader.Eval.dataset=null").train()
    with pytest.raises(UserError) as raised:
        entry(tmp_path, "Global.checkpoint=best").predict(PIXELS)
    assert str(raised.value) == (
        f"{checkpoint(tmp_path, 1)}: no evaluation has been made up to this checkpoint, so none is the best; take the newest"
    )


def test_several_sets_are_tested_together(trained, tmp_path, capsys):
    more = [
        'DataLoader.Eval.more.templates={name: "tests.test_tester:NoiseTemplates"}',
        'DataLoader.Eval.more.people={name: "tests.test_tester:NoiseGallery"}',
        "DataLoader.Eval.more.seen={name: Synthetic, num_classes: 23, image_shape: [1, 12, 10]}",
    ]
    there = [f"Global.checkpoint={checkpoint(trained)}", f"Global.output_dir={tmp_path}", *more]
    found = entry(trained, *there).test()
    content = json.loads((tmp_path / "test" / "results.json").read_text())
    assert list(content["sets"]) == ["noise pairs", "templates", "people", "seen"]
    assert (
        content["main"] == "noise pairs" and content["sets"]["noise pairs"]["accuracy"] == found["accuracy"]
    )
    said = capsys.readouterr().out
    assert re.search(r"^verification +noise pairs +templates$", said, re.MULTILINE)
    page = (tmp_path / "test" / "report.html").read_text()
    assert all(title in page for title in content["sets"]) and (tmp_path / "test" / "cmc.png").is_file()


def test_mirror_images_count_for_test_predict_and_the_export(trained, tmp_path):
    plain, _ = entry(trained).predict(PIXELS, tmp_path / "plain")
    mirrored, _ = entry(trained).predict(PIXELS[..., ::-1].copy(), tmp_path / "mirrored")
    entry(tmp_path / "run", "DataLoader.Eval.flip=true").train()
    both, _ = entry(tmp_path / "run", "DataLoader.Eval.flip=true").predict(PIXELS, tmp_path / "both")
    assert np.allclose(np.linalg.norm(both, axis=1), 1, atol=1e-5)
    assert both.shape == plain.shape == mirrored.shape and not np.allclose(both, plain, atol=1e-3)
    again, _ = entry(tmp_path / "run", "DataLoader.Eval.flip=true").predict(
        PIXELS[..., ::-1].copy(), tmp_path / "b"
    )
    assert np.allclose(again, both, atol=1e-5), "a mirror image has the embedding of its image"
    cards = [entry(folder).export() for folder in (trained, tmp_path / "run")]
    assert [card["threshold_of"] for card in cards] == [
        "image",
        "image and mirror image, embeddings summed, length 1",
    ]


def test_the_threshold_of_a_later_evaluation_is_exported_when_it_is_asked_for(tmp_path, capsys):
    entry(tmp_path).train()
    before = entry(tmp_path).export()
    other = "DataLoader.Eval.dataset.num_pairs=90"
    found = entry(tmp_path, other).test()
    assert found["threshold"] != before["threshold"] == entry(tmp_path).export()["threshold"]
    assert before["threshold_set"] is None
    arguments = ["-c", str(TINY), "-o", f"Global.output_dir={tmp_path}", other, "DataLoader.Eval.flip=true"]
    assert cli.run("eval", ["--set-threshold", *arguments]) == 0
    stored = json.loads((tmp_path / "test" / "results.json").read_text())["sets"]["noise pairs"]["threshold"]
    card = entry(tmp_path).export()
    assert (card["threshold"], card["threshold_set"], card["threshold_step"]) == (stored, "noise pairs", 12)
    assert card["threshold_of"].startswith("image and mirror image")
    capsys.readouterr()
    entry(tmp_path).predict(PIXELS)
    assert "DataLoader.Eval.flip is False, the threshold of step-00000012 is of embeddings with True" in (
        capsys.readouterr().out
    )
    saved = Checkpoint.open(checkpoint(tmp_path))  # every checksum is right
    assert saved.state["threshold"] == stored
    assert Checkpoint.open(reshard(saved, tmp_path / "cut", 2)).state["threshold"] == stored


def test_a_threshold_needs_pairs_and_a_file_that_is_whole(trained, tmp_path):
    shutil.copytree(checkpoint(trained), tmp_path / "step-00000012")
    there = [f"Global.checkpoint={tmp_path}/step-00000012", f"Global.output_dir={tmp_path}"]
    labelled = "DataLoader.Eval.dataset={name: Synthetic, num_classes: 23, image_shape: [1, 12, 10]}"
    with pytest.raises(UserError, match="main set, 'Synthetic', is not of pairs and gives no threshold"):
        entry(trained, *there, labelled).test(set_threshold=True)
    for wrong in ("{", "[]", '{"threshold": 7.0, "threshold_set": "a", "threshold_step": 1, "flip": false}'):
        (tmp_path / "step-00000012" / "threshold.json").write_text(wrong)
        with pytest.raises(UserError, match=r"threshold.json: is not what plsc-eval --set-threshold writes"):
            entry(trained, *there).export()


def test_an_evaluation_does_without_the_images_trained_on(trained, tmp_path):
    gone = "DataLoader.Train.dataset={name: ImageList, list: gone/list.txt}"
    found = entry(trained, gone).test()
    assert found["accuracy"] is not None
    with pytest.raises(MissingFileError, match="gone/pairs.txt"):
        entry(trained, "DataLoader.Eval.dataset={name: PairList, list: gone/pairs.txt}").test()
