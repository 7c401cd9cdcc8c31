"""Loss and accuracy of each of several sets: right sums, equal rows after a resume, and other sets
refused."""

import json
import re

import numpy as np
import pytest

from plsc.config import load
from plsc.data.loader import Loader
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.evaluation.report.figures import draw_curves
from plsc.heads import reference
from plsc.training.build import build_trainer
from plsc.training.finetune import start_from
from tests.helpers.bounds import assert_within, perturbed
from tests.helpers.tiny_runs import (
    TINY,
    Linear,
    arrays,
    assert_same_arrays,
    checkpoint,
    make_trainer,
    rows,
    save_now,
    train,
)

NO_PAIRS = "DataLoader.Eval.dataset=null"
FIRST = {"name": "tests.helpers.tiny_runs:People", "people": [f"a{n}" for n in range(9)]}
SECOND = {
    "name": "tests.helpers.tiny_runs:People",
    "people": [*[f"b{n}" for n in range(10)], "a3"],
    "head": "own",
}


def overrides(*sets, **keys):
    return [
        NO_PAIRS,
        f"DataLoader.Train.dataset={json.dumps([*sets])}",
        *(f"{key.replace('__', '.')}={value}" for key, value in keys.items()),
    ]


def test_rows_have_the_loss_and_accuracy_of_each_set_since_the_row_before(tmp_path):
    """Against the dense reference with a softmax for each set, at a learning rate of next to nothing."""
    keys = overrides(
        FIRST, SECOND, Global__log_every=3, LRScheduler__learning_rate=1e-12, Global__max_steps=10
    )
    net = Linear()
    weight, bias = net.linear.weight.numpy(), net.linear.bias.numpy()
    trainer = train(tmp_path, *keys, backbone=net)
    data = trainer.dataset
    assert (data.titles, data.ranges) == (["People", "People 2"], [(0, 9), (9, 20)])
    steps = [*Loader(data, 12, 0, 1, seed=3).epoch(0), *Loader(data, 12, 0, 1, seed=3).epoch(1)][:10]

    def expected(weight, bias, centres):
        dense = reference.DenseHead(centres, None, (reference.arcface, 0.5), 16.0, ranges=data.ranges)
        values = []
        for images, labels, indices in steps:
            emb = (images.reshape(len(images), -1) - 127.5) / 127.5 @ weight + bias
            losses, correct = dense.loss_and_gradients(emb, labels)[0], dense.correct(emb, labels)
            values.append(np.stack([losses, correct, data.sets_of(indices)]))
        found = []
        for part in ([0, 3], [3, 6], [6, 9], [9, 10]):
            losses, correct, sets = np.concatenate(values[slice(*part)], axis=1)
            row = {"loss": losses[-len(values[part[1] - 1][0]) :].mean()}
            for number, title in enumerate(data.titles):
                row[f"loss/{title}"] = losses[sets == number].mean()
                row[f"accuracy/{title}"] = correct[sets == number].mean()
            found.append(row)
        return found

    want, bound = perturbed(expected, weight, bias, trainer.head.bank.state()["centres"])
    found = [{key: row[key] for key in keys} for row, keys in zip(rows(tmp_path), want)]
    assert_within(found, want, bound)
    figure, _ = draw_curves(rows(tmp_path))
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes[:2]]
    assert legends == [["People", "People 2"]] * 2


def test_a_resumed_run_of_weighted_sets_goes_on_exactly(tmp_path):
    first, second = {**FIRST, "weight": 3}, {**SECOND, "weight": 1}
    keys = overrides(first, second, Global__log_every=5, Checkpoint__every_steps=4, Checkpoint__keep=9)
    train(tmp_path / "whole", *keys)
    train(tmp_path / "cut", *keys, resume=checkpoint(tmp_path / "whole", 4))  # between two rows
    assert_same_arrays(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))
    whole = rows(tmp_path / "whole")
    assert [row["step"] for row in whole] == [5, 10, 12] and "loss/People 2" in whole[0]
    assert rows(tmp_path / "cut") == whole


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        ([SECOND, FIRST], "with the data sets People (9 classes), People 2 (11 classes, own), this run has the data sets People ("),
        ([FIRST, {**SECOND, "people": ["c", *SECOND["people"][1:]]}], "its class 9 is 'c', the one trained on is 'b0'"),
        ([{"name": "tests.helpers.tiny_runs:People", "people": [f"c{n}" for n in range(20)]}], "was made with several data sets, this run is without"),
    ],
)  # fmt: skip
def test_a_resume_with_other_sets_is_refused_in_one_line(sets, line, tmp_path):
    save_now(make_trainer(tmp_path, *overrides(FIRST, SECOND)))
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        make_trainer(tmp_path, *overrides(*sets)).resume(checkpoint(tmp_path, 0))
    assert "\n" not in str(caught.value)


def test_a_dry_run_describes_the_sets(tmp_path):
    said = Entry(TINY, [*overrides(FIRST, SECOND), f"Global.output_dir={tmp_path}"]).dry_run()
    assert "plan: sets     People 45 of 9 classes, merged; People 2 55 of 11 classes, own" in said
    assert "plan: data     100 images of 20 classes" in said


def test_a_set_is_added_to_a_run_that_had_one(tmp_path):
    """The first set's classes keep their names, and so their centres; a name that both have is new in the
    second's range."""
    save_now(make_trainer(tmp_path, *overrides(FIRST)))
    cfg = load(TINY, [*overrides(FIRST, SECOND), f"Global.init_from={checkpoint(tmp_path, 0)}"])
    trainer = build_trainer(cfg)
    start = start_from(cfg, trainer.backbone, trainer.head, trainer.dataset)
    assert start.identities["kept"] == 9 and start.identities["dropped"] == []
    assert start.identities["new"] == [*(f"b{number}" for number in range(10)), "People 2/a3"]
    before = arrays(checkpoint(tmp_path, 0))["head: centres"]
    assert np.array_equal(trainer.head.bank.state()["centres"][:9], before)
