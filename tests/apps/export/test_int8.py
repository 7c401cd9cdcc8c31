"""What an export in 8 bits takes from the data: pictures to train on, never those that judge it, and the main
set."""

import contextlib
import io
import json

import numpy as np
import pytest

from plsc.apps.export import int8 as of_export
from plsc.apps.export.int8_data import int8_data
from plsc.checkpoint.store import Checkpoint
from plsc.data.synthetic import Synthetic
from plsc.entry import Entry
from plsc.errors import MissingFileError, UserError
from plsc.training.embed import embed
from plsc.training.trained import load_network
from plsc.utils.logging import setup
from tests.apps.export.test_export_formats import needs_onnx
from tests.helpers.bounds import assert_within, rounded
from tests.helpers.datasets import dataset_of
from tests.helpers.pictures import drawn
from tests.helpers.tiny_runs import TINY, checkpoint, rows


class Numbered(Synthetic):
    """Its images have the number of the sample in their first pixel."""

    def sample(self, index, epoch):
        image = super().sample(index, epoch)
        image[0, 0, 0] = index
        return image


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()), drawn():
        entry(folder).train()
    setup()  # closes train.log
    return folder


def entry(folder, *overrides):
    return Entry(TINY, [f"Global.output_dir={folder}", *overrides])


def data(folder, *overrides):
    return int8_data(entry(folder, *overrides).config, Checkpoint.open(checkpoint(folder)))


def test_the_pictures_are_drawn_from_the_training_set_without_repeating_any(trained):
    numbered = "DataLoader.Train.dataset.name=tests.apps.export.test_int8:Numbered"
    drawn = data(trained, numbered, "Export.int8_pictures=50").pictures
    assert drawn.shape == (50, 1, 12, 10) and drawn.dtype == np.uint8
    numbers = drawn[:, 0, 0, 0]
    assert len(set(numbers.tolist())) == 50 and numbers.tolist() != sorted(numbers)
    np.testing.assert_array_equal(drawn, data(trained, numbered, "Export.int8_pictures=50").pictures)
    assert len(data(trained, "Export.int8_pictures=1000").pictures) == 115  # all there are


@pytest.mark.parametrize("flip", [False, True])
def test_it_is_judged_as_an_evaluation_judges(trained, flip):
    run = entry(trained, f"DataLoader.Eval.flip={flip}")
    made = data(trained, f"DataLoader.Eval.flip={flip}")
    saved = Checkpoint.open(checkpoint(trained))
    backbone = load_network(saved, run.config).backbone
    preprocessing = dataset_of(run.config).preprocessing

    def float_network(samples):
        assert samples.dtype == np.uint8
        return embed(backbone, lambda start, stop: samples[start:stop], len(samples), preprocessing, 16)

    judged = made.judge(float_network)
    expected = run.test()
    assert (judged.accuracy, made.title, made.flip) == (expected["accuracy"], "noise pairs", flip)
    want, bound = rounded(backbone, lambda: made.judge(float_network).threshold)
    assert_within(expected["threshold"], want, bound, paths=2)
    assert judged.threshold == want and made.step == saved.step
    assert rows(trained)


@pytest.mark.parametrize(
    "override, kind, message",
    [
        ("DataLoader.Eval.dataset=null", UserError, "DataLoader.Eval.dataset is null; name one, or leave"),
        (
            "DataLoader.Train.dataset={name: ImageList, list: nowhere/list.txt, size: [12, 10]}",
            MissingFileError,
            "onnx_int8 needs pictures to train and to evaluate on: .*nowhere",
        ),
        (
            "DataLoader.Train.dataset.image_shape=[1, 20, 10]",
            UserError,
            r"shape is \[1, 20, 10\] \(trained on \[1, 12, 10\]\); onnx_int8 needs",
        ),
    ],
)
def test_data_that_is_not_there_or_other_data_is_refused(trained, override, kind, message):
    with pytest.raises(kind, match=message) as error:
        data(trained, override)
    assert "\n" not in str(error.value)


@needs_onnx
def test_export_writes_it_where_the_accuracy_allows(trained, monkeypatch):
    monkeypatch.setattr(of_export, "LOSS", 1.0)  # of 40 pairs one is 2.5 points
    facts = entry(trained, "Export.formats=[onnx_int8]").export()
    card = json.loads((trained / "export" / "onnx_int8" / "preprocessing.json").read_text())
    assert card["int8"] == facts["files"]["onnx_int8"]["int8"] and card["int8"]["pictures"] == 115
    assert not (trained / "export" / "model.onnx").exists()
    monkeypatch.setattr(of_export, "LOSS", -1.0)
    with pytest.raises(UserError, match="onnx_int8: accuracy .* on noise pairs, in float32"):
        entry(trained, "Export.formats=[onnx_int8]").export()
