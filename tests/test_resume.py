"""A run that was stopped within an epoch and resumed equals the one that was never stopped: every loss, every
byte."""

import json
import re

import pytest

from tests.helpers.image_files import png
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import assert_same_arrays, checkpoint, make_trainer, rows, train

CASES = {
    "partial fc": ["Head.sample_rate=0.3"],
    "partial fc in host memory": ["Head.sample_rate=0.3", "Head.bank=host"],
    "partial fc on disk": ["Head.sample_rate=0.3", "Head.bank=disk"],
    "partial fc on disk, rounded": ["Head.sample_rate=0.3", "Head.bank=disk", "Head.bank_dtype=bfloat16"],
    "all classes in host memory, rounded": ["Head.bank=host", "Head.bank_dtype=bfloat16"],
    "adamw, partial fc on disk, rounded": [
        *("Optimizer.name=AdamW", "LRScheduler.learning_rate=0.001"),
        *("Head.sample_rate=0.3", "Head.bank=disk", "Head.bank_dtype=bfloat16"),
    ],
    "adamw for the centres alone": ["Optimizer={head: {name: AdamW}, head_lr_scale: 0.02}"],
    "frozen layers, adamw, clipped gradients": [
        "Optimizer={name: AdamW, clip_norm: 5, freeze: ['^stages.[02]']}",
        "LRScheduler.learning_rate=0.005",
    ],
    "lars": ["Optimizer.name=LARS", "Head={sample_rate: 0.3, bank: host}"],
    "adaface": ["Head.name=dist_adaface", "Head.sample_rate=0.3"],
    "curricularface": ["Head.name=dist_curricularface"],
    "replicated, plain, biased": ["Head={name: softmax, bias: true}"],
    "sub-centres, clipped gradients": ["Head.sub_centres=2", "Optimizer.clip_norm=0.5"],
    "cosine rate": ["LRScheduler={name: cosine, learning_rate: 0.05, warmup_epochs: 0.3}"],
    "evaluations": ["Global.eval_every_steps=6"],
    "averaged weights": ["Global.ema=0.9", "Global.eval_every_steps=6"],
    "mixed precision with a scale": ["Global.amp=float16", "Head.sample_rate=0.3"],
    "mixed precision": ["Global.amp=bfloat16", "Head.sub_centres=2"],
    "corrupt images": [
        'DataLoader.Train.dataset={name: "tests.helpers.tiny_runs:DamagedSynthetic", damaged: 1}'
    ],
}


def states(folder, step):
    manifest = json.loads((checkpoint(folder, step) / "manifest.json").read_text())
    return {key: manifest[key] for key in ("state", "preprocessing", "epoch", "heads", "files")}


def compare(tmp_path, *overrides, stop=7):
    """Train 12 steps (an epoch has 10) at one go, and in two parts."""
    overrides = [f"Checkpoint.every_steps={stop}", *overrides]
    train(tmp_path / "whole", *overrides)
    train(tmp_path / "parts", *overrides, resume=checkpoint(tmp_path / "whole", stop))
    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert [row["loss"].hex() for row in parts] == [row["loss"].hex() for row in whole[stop:]]
    assert parts == whole[stop:]
    evaluations = [row for row in rows(tmp_path / "whole", evaluations=True) if row["step"] > stop]
    assert rows(tmp_path / "parts", evaluations=True) == evaluations
    assert_same_arrays(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "parts"))
    for step in (10, 12):
        assert states(tmp_path / "parts", step) == states(tmp_path / "whole", step)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, case, monkeypatch):
    if case == "mixed precision with a scale":
        monkeypatch.setenv("PLSC_KERNELS", "0")  # else a CPU refuses it
    compare(tmp_path, *CASES[case])


def test_every_augmentation_and_data_workers(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "list.txt").write_text("".join(f"{number}.png\t{number % 23}\n" for number in range(60)))
    keys = "flip: true, crop: 0.15, colour: 0.3, low_resolution: 0.2, cutout: 0.2"
    data = f"{{name: ImageList, list: {tmp_path}/list.txt, size: [12, 10], {keys}}}"
    overrides = ["DataLoader.Eval.dataset=null", f"DataLoader.Train.dataset={data}"]
    compare(tmp_path, *overrides, "DataLoader.Train.batch_size=6", "DataLoader.Train.num_workers=2")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    train(folder, "DataLoader.Eval.dataset=null", "Global.max_steps=4")
    return checkpoint(folder, 4)


@pytest.mark.parametrize(
    "override, rule, name",
    [
        ("Optimizer={name: AdamW, weight_decay: 0.1}", "optimizer", "AdamW"),
        ("Optimizer.head={name: LARS}", "head_optimizer", "LARS"),
    ],
)
def test_another_optimizer_is_refused(stopped, tmp_path, capsys, override, rule, name):
    """There is no warning about another seed, as if the run continued."""
    said = refusal(make_trainer(tmp_path, override, "Global.seed=4").resume, stopped)
    assert "continues with other" not in capsys.readouterr().out
    assert said == (
        f"checkpoint step-00000004 was made with {rule} Momentum, this run has {name}: resume with the same, "
        "or start a new run with Global.init_from in another Global.output_dir"
    )


def test_the_same_head_on_every_rank_is_no_other(stopped, tmp_path):
    trainer = make_trainer(tmp_path, "Head.name=arcface")
    trainer.resume(stopped)
    assert trainer.step == 4


def test_another_preprocessing_is_refused(stopped, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.dataset.mean = 100.0
    assert re.search(
        "was made with preprocessing .*mean=127.5.*, this run has .*mean=100.0",
        refusal(trainer.resume, stopped),
    )


def test_another_seed_is_reported(stopped, tmp_path, capsys):
    make_trainer(tmp_path, "Global.seed=4").resume(stopped)
    assert (
        "step-00000004 was made with seed 3, this run has 4: the run continues with other"
        in capsys.readouterr().out
    )
