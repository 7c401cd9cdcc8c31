"""Entry's verbs on checkpoints called newest and best, on several sets, and with mirror images."""

import json
import re

import numpy as np
import pytest

from plsc.errors import UserError
from tests.test_entry import PIXELS, entry
from tests.training import checkpoint


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
