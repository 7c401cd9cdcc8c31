"""Stages of a training: what differs in each, the order of data and rates, exact resuming anywhere, and what
is refused."""

import numpy as np
import pytest
from paddle import nn

from plsc import Entry
from plsc.config import ConfigError, load
from plsc.data.loader import Loader
from plsc.data.synthetic import Synthetic
from plsc.errors import UserError
from plsc.training import stages
from plsc.training.optim import build_schedule
from tests.helpers.launch import ROOT, launch
from tests.helpers.tiny_runs import TINY, arrays, assert_same_arrays, checkpoint, rows, train

# 10 steps an epoch; 5 in the second stage, whose batches are twice as large.
STAGES = (
    "Stages=["
    "{epochs: 2, Head: {margin: {from: 0, to: 0.5}}}, "
    "{epochs: 1, DataLoader: {Train: {batch_size: 24}}}, "
    "{epochs: 2, LRScheduler: {name: cosine, learning_rate: 0.01}, Optimizer: {groups: [{match: ^stages.0, freeze: true}]}, "
    "Head: {sample_rate: 0.5}}]"
)
LONG = "Global.max_steps=null"
NO_PAIRS = "DataLoader.Eval.dataset=null"
STEPS = 45


def run(folder, *overrides):
    return Entry(
        TINY, [STAGES, LONG, NO_PAIRS, "Checkpoint.keep=99", f"Global.output_dir={folder}", *overrides]
    ).train()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "whole"
    run(folder)
    return folder


def numbers(folder):
    """Rows without times."""
    return [
        {key: value for key, value in row.items() if key not in ("images_per_second", "data_wait")}
        for row in rows(folder)
    ]


def test_each_stage_has_its_values(whole, tmp_path):
    found = rows(whole)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert [row["epoch"] for row in found] == [1] * 10 + [2] * 10 + [3] * 5 + [4] * 10 + [5] * 10
    rates = [row["lr"] for row in found]
    assert rates[:25] == [0.05] * 25
    of_last = build_schedule(
        load(TINY, ["LRScheduler={name: cosine, learning_rate: 0.01}"]).LRScheduler, 10, 20
    )
    assert rates[25:] == [of_last(step) for step in range(20)]
    before, after = (arrays(checkpoint(whole, step)) for step in (25, STEPS))
    weights = [
        name for name in before if name.startswith("backbone: ") and not name.endswith(("_mean", "_variance"))
    ]
    moved = {name for name in weights if not np.array_equal(before[name], after[name])}
    frozen = {name for name in weights if name.startswith("backbone: stages.0")}
    assert frozen and moved == set(weights) - frozen
    # The first epoch is that of a run without the margin.
    train(tmp_path, "Head.margin=0", "Global.max_steps=10", NO_PAIRS)
    assert numbers(tmp_path) == numbers(whole)[:10]


@pytest.mark.parametrize("step", [4, 10, 24, 25, 35])
def test_a_run_that_stopped_anywhere_goes_on_bit_for_bit(whole, tmp_path, step):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / checkpoint(whole, step).name).symlink_to(checkpoint(whole, step))
    run(tmp_path, "Global.resume=true")
    assert numbers(tmp_path) == numbers(whole)[step:]
    assert_same_arrays(checkpoint(tmp_path, STEPS), checkpoint(whole, STEPS))


def test_several_ranks_go_from_stage_to_stage_and_resume(tmp_path):
    launch(ROOT / "tests/training/run_stages.py", 2, tmp_path, tmp_path)
    assert_same_arrays(checkpoint(tmp_path / "cut", 43), checkpoint(tmp_path / "whole", 43))
    epochs = [row["epoch"] for row in rows(tmp_path / "whole")]
    assert epochs == [1] * 10 + [2] * 10 + [3] * 3 + [4] * 10 + [5] * 10


def test_class_centres_on_the_disk_go_along(tmp_path):
    bank = "Head={name: dist_arcface, scale: 16.0, bank: disk, sample_rate: 0.5}"
    run(tmp_path / "disk", bank)
    run(tmp_path / "device", bank, "Head.bank=device")
    assert_same_arrays(checkpoint(tmp_path / "disk", STEPS), checkpoint(tmp_path / "device", STEPS))


def test_a_step_limit_ends_the_run_within_a_stage(tmp_path):
    result = Entry(TINY, [STAGES, NO_PAIRS, "Global.max_steps=23", f"Global.output_dir={tmp_path}"]).train()
    assert (
        result["accuracy"] is None and rows(tmp_path)[-1]["step"] == 23 and rows(tmp_path)[-1]["epoch"] == 3
    )


def test_a_step_limit_before_the_checkpoint_ends_the_run(tmp_path):
    overrides = [STAGES, NO_PAIRS, f"Global.output_dir={tmp_path}"]
    Entry(TINY, [*overrides, "Global.max_steps=13"]).train()
    Entry(TINY, [*overrides, "Global.max_steps=12", "Global.resume=true"]).train()
    assert rows(tmp_path)[-1]["step"] == 13


class Pooled(nn.Layer):
    """Takes pictures of any size."""

    def __init__(self, embedding_size: int):
        super().__init__()
        self.conv = nn.Conv2D(1, embedding_size, 3)

    def forward(self, images):
        return self.conv(images).mean(axis=[2, 3])


LARGER = "Stages=[{epochs: 1}, {epochs: 1, DataLoader: {Train: {dataset: {image_shape: [1, 16, 14]}}}}]"


def test_pictures_of_another_size_where_the_network_takes_them(tmp_path):
    pooled = "Model={name: 'tests.training.test_stages:Pooled', embedding_size: 8}"
    Entry(TINY, [LARGER, pooled, LONG, NO_PAIRS, f"Global.output_dir={tmp_path}"]).train()
    assert rows(tmp_path)[-1]["step"] == 20
    entry = Entry(TINY, [LARGER, LONG, NO_PAIRS, f"Global.output_dir={tmp_path}"])
    with pytest.raises(
        UserError, match=r"Stages\.1: .*SmallResNet has other weights for samples \[1, 16, 14\]"
    ):
        entry.train()


def test_batches_go_on_from_a_step_and_an_epoch():
    data = Synthetic(5, 4, (1, 4, 4))
    later = Loader(data, 6, 0, 1, seed=1, first_step=7, first_epoch=2)
    plain = Loader(data, 6, 0, 1, seed=1)
    assert [batch.step for batch in later.from_step(8)] == [8, 9, 10]
    want = [indices for _, _, indices in plain.epoch(3)]
    assert [batch.indices.tolist() for batch in later.from_step(11)] == [indices.tolist() for indices in want]
    later.close(), plain.close()


def test_without_stages_a_run_is_one():
    cfg = load(TINY)
    stage = stages.first_stage(cfg)
    assert stage.cfg is cfg and stage.last_step(10) == stage.total_steps(10) == 12
    assert stages.stage_after(cfg, stage, 12) is None


def test_the_config_says_epochs_and_loads_again():
    cfg = load(TINY, [STAGES, LONG])
    assert cfg.Global.epochs == 5 and [part.epochs for part in cfg.stages] == [1, 1, 1, 2]
    assert [part.cfg.Head.margin for part in cfg.stages] == [0, 0.5, None, None]
    text = cfg.to_yaml()
    again = load({})
    again = load(
        {key: value for key, value in cfg.values().items() if not key.startswith("Stages")}, [STAGES]
    )
    assert again == cfg and "Stages:\n  - epochs: 2\n    Head: {margin: {from: 0, to: 0.5}}\n" in text
    assert "Stages" not in load(TINY).to_yaml()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("[{epochs: 0}]", r"Stages\.0\.epochs: must be an integer >= 1 \(got 0\)"),
        ("[{epochs: 1}, {Head: {margin: 1}}]", r"Stages\.1\.epochs: is required"),
        ("[{epochs: 1, Head: {margin: -1}}]", r"Stages\.0: Head\.margin: must be .* \(got -1\)"),
        (
            "[{epochs: 1, Head: {margn: 1}}]",
            r"Stages\.0\.Head: a stage cannot change margn, only margin, options",
        ),
        ("[{epochs: 1, Head: {name: softmax}}]", r"Stages\.0\.Head: a stage cannot change name"),
        ("[{epochs: 1, Optimizer: {name: AdamW}}]", r"Stages\.0\.Optimizer: a stage cannot change name"),
        ("[{epochs: 1, Model: {name: LeNet}}]", r"Stages\.0\.Model: unknown"),
        ("[{epochs: 2, Head: {margin: {from: 0, to: 9}}}]", r"Stages\.0: Head\.margin: must be .* \(got 9"),
        (
            "[{epochs: 3, DataLoader: {Train: {batch_size: {from: 4, to: 7}}}}]",
            r"Stages\.0: .*batch_size: must be an integer",
        ),
        (
            "[{epochs: 1, DataLoader: {Train: {batch_siz: 4}}}]",
            r"Stages\.0: .*batch_siz: unknown key, did you mean 'batch_size'",
        ),
    ],
)
def test_mistakes_are_told_with_the_config(written, line):
    with pytest.raises(ConfigError, match=line) as caught:
        load(TINY, [f"Stages={written}", LONG])
    assert all("\n" not in error for error in caught.value.errors)


def test_other_epochs_beside_the_stages_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"Global\.epochs: must be left out with Stages, whose epochs are 5 in all \(got 7\)",
    ):
        load(TINY, [STAGES, "Global={epochs: 7}"])


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("{epochs: 1, Optimizer: {groups: [{match: nothing, freeze: true}]}}", "match: nothing fits none"),
        ("{epochs: 1, DataLoader: {Train: {sampler: {name: pk, samples: 5}}}}", "must be a multiple of it"),
        (
            "{epochs: 1, DataLoader: {Train: {dataset: {num_classes: 22}}}}",
            "has 22 classes, another stage 23",
        ),
        (
            "{epochs: 1, DataLoader: {Train: {batch_size: 999}}}",
            "999 x 1 rank is more than the 115 samples of an epoch",
        ),
    ],
)
def test_stages_that_cannot_follow_are_refused_before_the_first_step(tmp_path, written, line):
    entry = Entry(TINY, [f"Stages=[{{epochs: 1}}, {written}]", LONG, f"Global.output_dir={tmp_path}"])
    for verb in (entry.dry_run, entry.train):
        with pytest.raises(UserError, match=rf"Stages\.1: .*{line}"):
            verb()
    assert not [*tmp_path.glob("checkpoints/*")]


def test_pairs_of_the_training_go_along_with_its_size():
    stages_of_sizes = "Stages=[{epochs: 1}, {epochs: 1, DataLoader: {Train: {dataset: {size: [48, 48]}}}}]"
    data = "DataLoader={Train: {dataset: {name: ImageFolder, folder: people, size: [32, 32]}}, Eval: {dataset: {name: ImagePairs}}}"
    first, second = (stage.cfg.DataLoader for stage in load(None, [stages_of_sizes, data]).stages)
    assert first.Train.dataset.keywords["size"] == first.Eval.dataset.keywords["size"] == (32, 32)
    assert second.Train.dataset.keywords["size"] == second.Eval.dataset.keywords["size"] == (48, 48)


def test_an_evaluation_that_does_not_fit_a_stage_is_refused_before_the_first_step(tmp_path):
    pooled = "Model={name: 'tests.training.test_stages:Pooled', embedding_size: 8}"
    with pytest.raises(UserError, match=r"Stages\.1: .*DataLoader\.Eval\.dataset"):
        Entry(TINY, [LARGER, pooled, LONG, f"Global.output_dir={tmp_path}"]).train()
    assert not [*tmp_path.glob("checkpoints/*")]


def test_a_step_that_is_kept_must_lie_in_the_first_stage(whole, tmp_path):
    keeps = [
        f"Global.init_from={checkpoint(whole, 20)}",
        "Global.keep_step=true",
        f"Global.output_dir={tmp_path}",
    ]
    with pytest.raises(
        UserError, match="nothing is left to train after step 20, since this run ends at step 10"
    ):
        Entry(TINY, [STAGES, LONG, NO_PAIRS, *keeps]).train()


def test_a_checkpoint_of_a_stage_that_is_gone_is_refused(whole, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000028").symlink_to(checkpoint(whole, 28))
    with pytest.raises(UserError, match="was made in stage 4, and Stages has 1"):
        run(tmp_path, "Global.resume=true", "Stages=[{epochs: 9}]")


def test_the_plan_lists_them():
    said = Entry(TINY, [STAGES, LONG]).dry_run()
    assert "plan: stage    epochs 1 to 2: Head.margin {from: 0, to: 0.5}\n" in said
    assert "plan: stage    epoch 3: DataLoader.Train.batch_size 24\n" in said


def test_the_plan_names_the_step_that_the_first_rates_end_at():
    stages = "Stages=[{epochs: 2}, {epochs: 1, LRScheduler: {name: constant, learning_rate: 0.01}}]"
    said = Entry(TINY, [stages, LONG]).dry_run()
    assert "plan: rate     0.05 at first, 0.05 in step 20\n" in said
