"""Tests of `plsc import --config`: training configs of arcface_torch and of PLSC 2.4."""

import pytest

from plsc import cli
from plsc.apps.migrate.import_config import arcface_torch, plsc24
from plsc.apps.migrate.import_config.import_config import import_config
from plsc.apps.migrate.import_config.translation import format_config
from plsc.config import load
from plsc.errors import MissingFileError, UserError
from plsc.training.stand_in import stand_in
from plsc.utils.yaml_lines import parse
from tests.helpers.datasets import dataset_of

PYTHON = """
from easydict import EasyDict as edict
config = edict()
config.network = "mbf_large"
config.margin_list = (1.0, 0.0, 0.35)
config.embedding_size = 256
config.sample_rate = 0.25
config.interclass_filtering_threshold = 0.4
config.batch_size = 32  # of a GPU
config.lr = 0.02 * 2
config.weight_decay = 1e-4
config.num_epoch = 30
config.warmup_epoch = config.num_epoch // 10
config.rec = "faces"
config.num_classes = 1000
config.num_image = 25_000
config.output = None
config.verbose = 500
config.val_targets = ["lfw", "agedb_30"]
"""
YAML = """
Global: {output_dir: runs, epochs: 7, eval_interval: 500, eval_unit: step, print_batch_step: 20, seed: 3, moon: full}
FP16: {level: O0, GradScaler: {init_loss_scaling: 1024.0}}
DistributedStrategy: {data_parallel: True}
Model:
  name: FaceViT_tiny_patch9_112
  num_features: 256
  class_num: 100
  mask_ratio: 0.0
  pfc_config: {sample_ratio: 0.5, model_parallel: True}
Loss:
  Train:
    - MarginLoss: {m1: 1.0, m2: 0.4, m3: 0.0, s: 32.0, model_parallel: True, weight: 1.0}
LRScheduler: {name: Poly, learning_rate: 0.05, decay_unit: step, warmup_steps: 40, warmup_end_lr: 0.05}
Optimizer:
  name: Momentum
  momentum: 0.8
  weight_decay: 1e-4
  grad_clip: {name: ClipGradByGlobalNorm, clip_norm: 2.0, no_clip_list: ['dist']}
DataLoader:
  Train:
    dataset:
      name: FaceIdentificationDataset
      image_root: faces
      cls_label_path: faces/label.txt
      transform_ops:
        - DecodeImage: {to_rgb: False, channel_first: False}
        - RandFlipImage: {flip_code: 1}
        - Solarize: {strength: 3}
        - NormalizeImage: {scale: 1.0/255.0, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], order: ''}
        - ToCHWImage:
    sampler: {name: DistributedBatchSampler, batch_size: 48, drop_last: False, shuffle: True}
    loader: {num_workers: 1, use_shared_memory: True}
  Eval:
    dataset: {name: FaceVerificationDataset, image_root: pairs, cls_label_path: pairs/label.txt}
    sampler: {name: BatchSampler, batch_size: 64, drop_last: False, shuffle: False}
Metric:
  Eval:
    - LFWAcc: {flip_test: True}
Export: {export_type: onnx}
"""


def written(folder, text, name="theirs.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def translated(folder, text, name="theirs.py"):
    """Return the config that plsc loads from a translation."""
    (folder / "ours.yaml").write_text(import_config(written(folder, text, name))[0])
    return load(folder / "ours.yaml")


def lost(made):
    return [row.key for row in made.rows if not row.to]


def test_a_config_of_arcface_torch_becomes_one_that_loads(tmp_path):
    cfg = translated(tmp_path, PYTHON, "my_run.py")
    assert cfg.Model.name == "MobileFaceNet" and cfg.Model.keywords == {"scale": 4, "blocks": [2, 8, 12, 4]}
    head, train = cfg.Head, cfg.DataLoader.Train
    assert (head.name, head.margin, head.sample_rate, head.filter_above) == ("dist_cosface", 0.35, 0.25, 0.4)
    assert (head.scale, cfg.Optimizer.clip_norm, cfg.Optimizer.weight_decay) == (64, 5, 1e-4)
    schedule = cfg.LRScheduler
    assert (schedule.name, schedule.power, schedule.learning_rate, schedule.warmup_epochs) == (
        "poly",
        1,
        0.04,
        3,
    )
    assert train.dataset.name == "RecImages"
    assert train.dataset.keywords == {"path": "faces/train.rec", "flip": True}
    assert (train.batch_size, train.num_classes, train.num_samples) == (32, 1000, 25000)
    assert cfg.Global.output_dir == "work_dirs/my_run" and cfg.Global.seed == 2048
    assert (cfg.Global.epochs, cfg.Global.eval_every, cfg.Global.eval_every_steps) == (30, 0, 500)
    assert cfg.DataLoader.Eval.dataset.keywords == {"path": "faces/lfw.bin"}
    assert cfg.DataLoader.Eval.more["agedb_30"].keywords == {"path": "faces/agedb_30.bin"}
    assert cfg.DataLoader.Eval.flip
    data = dataset_of(stand_in(cfg))
    assert (data.num_classes, len(data)) == (1000, 25000)


@pytest.mark.parametrize(
    "margins, expected",
    [
        (
            "(1.0, 0.4, 0.0)",
            {"Head.name": "dist_arcface", "Head.margin": 0.4, "Head.gradient": "straight_through"},
        ),
        ("(1.0, 0.5, 0.2)", {"Head.name": "dist_cosface", "Head.margin": 0.2}),
        ("(1.5, 0.5, 0.0)", {}),
        ("(1.0, 'x', 0.0)", {}),
        ("5", {}),
    ],
)
def test_the_margin_is_the_one_that_arcface_torch_computes(margins, expected):
    made = arcface_torch.translate(f"config.margin_list = {margins}", "a.py")
    keys = ("Head.name", "Head.margin", "Head.gradient")
    assert {key: made.changes[key] for key in keys if key in made.changes} == expected
    assert bool(expected) == (not lost(made))


def test_nothing_of_a_python_file_is_run_and_what_is_no_plain_value_is_named(tmp_path):
    canary = tmp_path / "canary"
    text = f"""
import os
config = edict()
open({str(canary)!r}, "w")
config.lr = float(open({str(canary)!r}, "w").write("1"))
config.batch_size = [print(1) for _ in range(9)]
config.num_epoch = 9 ** 9 ** 9
config.weight_decay = 1 / 0
config.seed = config.nowhere
config.num_workers = "a" * 10 ** 9
if True:
    config.fp16 = True
config.output = "here"
"""
    text_of_yaml, made = import_config(written(tmp_path, text))
    assert not canary.exists()
    unread = {"line 4", "lr", "batch_size", "num_epoch", "weight_decay", "seed", "num_workers", "line 11"}
    assert set(lost(made)) == unread
    assert made.changes["Global.output_dir"] == "here" and made.changes["LRScheduler.learning_rate"] == 0.1
    for key in unread:
        assert f"#   {key}: " in text_of_yaml


@pytest.mark.parametrize(
    "first, next_one",
    [
        ("0x" + "9" * 4000, "config.a{0} * config.a{0}"),
        ("99", "config.a{0} * config.a{0}"),
        ("[1, 2]", "[config.a{0}, config.a{0}]"),
        (repr("x" * 2000), "config.a{0}"),
    ],
)
def test_a_value_that_each_line_doubles_is_no_value(first, next_one):
    """A few kilobytes of such lines were computed for ever, or filled the memory."""
    lines = [f"config.a{i + 1} = {next_one.format(i)}" for i in range(40)]
    values, unread = arcface_torch.read("\n".join([f"config.a0 = {first}", *lines]), "a.py")
    assert len(values) < 5 and all(len(str(value)) < 25 for value in values.values())
    assert list(unread)[-1] == "a40" and unread["a40"] == lines[-1]


def test_each_statement_of_a_line_is_named_by_its_own_text():
    _, unread = arcface_torch.read("\u00e4 = f(1); config.lr = g(1,\n 2)", "a.py")
    assert unread == {"line 1": "\u00e4 = f(1)", "lr": "config.lr = g(1,"}


def test_every_key_of_a_python_file_is_in_the_rows_and_unknown_ones_at_the_end():
    made = arcface_torch.translate(
        f"{PYTHON}\nconfig.moon = 'full'\nconfig.dali = True\nconfig.lr = 1.0", "a.py"
    )
    assert [row.key for row in made.rows if row.key in ("lr", "moon", "network")] == ["network", "moon", "lr"]
    assert lost(made) == ["moon", "dali"] and made.changes["LRScheduler.learning_rate"] == 1.0


@pytest.mark.parametrize("value", ["[]", "None", "(1, 'a')", "-1", "'x'", "1.5", "True", "1e999"])
def test_a_value_of_a_wrong_type_is_named_or_left_to_the_check_of_the_config(value):
    for key in arcface_torch.DEFAULTS:
        made = arcface_torch.translate(f"config.{key} = {value}", "a.py")
        assert [row.key for row in made.rows] == [key]
        format_config(made, "")


def test_a_password_is_not_copied(tmp_path):
    text = "config.using_wandb = True\nconfig.wandb_key = 's3cret'\nconfig.wandb_project = 'x'"
    yaml, made = import_config(written(tmp_path, text))
    assert "s3cret" not in yaml and lost(made) == ["wandb_key", "wandb_project"]
    assert made.changes["Global.loggers"] == ["visualdl", "wandb"]


def test_a_config_of_plsc_24_becomes_one_that_loads(tmp_path):
    cfg = translated(tmp_path, YAML, "theirs.yaml")
    assert cfg.Model.name == "FaceViT_tiny" and cfg.Model.keywords == {"drop_path": 0.0, "mask_ratio": 0.0}
    head, train, schedule = cfg.Head, cfg.DataLoader.Train, cfg.LRScheduler
    assert (head.name, head.margin, head.scale, head.sample_rate) == ("dist_arcface", 0.4, 32, 0.5)
    assert head.gradient == "exact"
    assert (schedule.name, schedule.power, schedule.warmup_steps) == ("poly", 2, 40)
    assert (cfg.Optimizer.momentum, cfg.Optimizer.weight_decay, cfg.Optimizer.clip_norm) == (0.8, 1e-4, 2)
    assert train.dataset.name == "ImageList"
    data = {"list": "faces/label.txt", "root": "faces", "channels": "BGR", "flip": True}
    assert train.dataset.keywords == data
    assert (train.batch_size, train.num_classes, train.num_workers) == (48, 100, 1)
    evaluation = cfg.DataLoader.Eval
    assert evaluation.dataset.keywords == {"list": "pairs/label.txt", "root": "pairs"}
    assert (evaluation.batch_size, evaluation.flip, cfg.Export.formats) == (64, True, ["onnx"])
    assert (cfg.Global.epochs, cfg.Global.eval_every_steps, cfg.Global.log_every) == (7, 500, 20)


def test_what_plsc_24_has_and_plsc_has_not_is_named(tmp_path):
    yaml, made = import_config(written(tmp_path, YAML, "theirs.yaml"), ranks=4)
    solarize = "DataLoader.Train.dataset.transform_ops.Solarize.strength"
    assert lost(made) == ["Global.moon", "FP16.GradScaler.init_loss_scaling", solarize]
    assert f"#   {solarize}: 3  (" in yaml and "global_batch: 192" in yaml


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (
            "{name: TimmCosine, learning_rate: 0.1, eta_min: 0.001, warmup_epoch: 5, decay_unit: epoch}",
            {"name": "cosine", "min_factor": 0.01, "warmup_epochs": 5, "learning_rate": 0.1},
        ),
        (
            "{name: ViTLRScheduler, learning_rate: 0.1, decay_type: cosine, warmup_steps: 9}",
            {"name": "cosine", "warmup_steps": 9, "learning_rate": 0.1},
        ),
    ],
)
def test_the_schedules_of_plsc_24(schedule, expected):
    made = plsc24.translate(f"LRScheduler: {schedule}", "a.yaml")
    found = {key: value for key, value in made.changes.items() if key.startswith("LRScheduler.")}
    assert found == {
        f"LRScheduler.{key}": pytest.approx(value) if isinstance(value, float) else value
        for key, value in expected.items()
    }
    assert not lost(made)


def test_accumulated_pieces_of_a_batch_are_batches_here():
    text = "Global: {accum_steps: 4}\nDataLoader: {Train: {sampler: {name: DistributedBatchSampler, batch_size: 512}}}"
    made = plsc24.translate(text, "a.yaml")
    assert (
        made.changes["DataLoader.Train.batch_size"] == 128
        and made.changes["DataLoader.Train.accumulate"] == 4
    )


def test_text_of_the_file_cannot_become_a_key_of_the_translation(tmp_path):
    evil = "x\\nGlobal: {epochs: 1}\\n\\x1b[31m"
    text = f'config.moon = "{evil}"\nconfig.output = "{evil}"\nconfig.num_epoch = 5\nconfig.val_targets = []'
    text, _ = import_config(written(tmp_path, text, "theirs.py"))
    of_run = parse(text).value["Global"]
    assert of_run["epochs"] == 5 and of_run["output_dir"] == evil.encode().decode("unicode_escape")
    assert "\x1b" not in text and "\nGlobal: {epochs" not in text


@pytest.mark.parametrize(
    "name, text, line",
    [
        ("a.py", "config.x = (", "a.py:1: is no Python file"),
        ("a.py", "(" * 5000, "a.py.*: is no Python file"),
        ("a.yaml", "a: [", "a.yaml:1: not valid YAML"),
        ("a.yaml", "- 1", "a.yaml: must be a mapping of sections"),
        ("a.yaml", "Head: {margin: 0.3}", "a.yaml: is a config of plsc already"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]", "a.yaml:1: the tag .* is not allowed"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, text, line):
    with pytest.raises(UserError, match=line):
        import_config(written(tmp_path, text, name))


def test_the_command_writes_a_new_file_and_says_what_became_of_each_key(tmp_path, capsys):
    path, target = written(tmp_path, f"{PYTHON}\nconfig.moon = 1"), tmp_path / "ours.yaml"
    assert cli.main(["import", "--config", path, "-o", str(target), "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "1 without a counterpart" in said and "moon" in said and "WARNING" not in said
    assert load(target).DataLoader.Train.global_batch == 64
    assert cli.main(["import", "--config", path]) == 0
    assert capsys.readouterr().out.startswith("# theirs.py of arcface_torch, translated by plsc import\n")


def test_names_of_a_file_cannot_control_the_terminal(tmp_path, capsys):
    path = written(tmp_path, f'{YAML}"\\e[31m\\n": {{a: 1}}\n', "theirs.yaml")
    assert cli.main(["import", "--config", path, "-o", str(tmp_path / "ours.yaml")]) == 0
    said = capsys.readouterr().out
    assert "\\x1b[31m\\n.a " in said and "\x1b" not in said


@pytest.mark.parametrize(
    "arguments, line",
    [
        ([], "give a file of weights, or --config FILE"),
        (["--config", "nowhere.py"], "nowhere.py: "),
        (["--config", "FILE", "-o", "a", "b"], "give one -o FILE"),
        (["--config", "FILE", "-o", "FILE"], "is there already"),
        (["--config", "FILE", "-o", "no/out.yaml"], "no/out.yaml: cannot be written: No such file"),
        (["--config", "FILE", "--ranks", "0"], "--ranks: must be 1 or more"),
        (["weights.pt", "--model", "LeNet"], "give --output, a new folder"),
        (
            ["weights.pt", "--model", "LeNet", "--output", "new", "--ranks", "2"],
            "--ranks has no meaning with weights",
        ),
    ],
)
def test_mistakes_in_a_call_are_one_line(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, PYTHON)
    assert cli.main(["import", *(path if word == "FILE" else word for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ERROR ") and said.count("\n") == 1 and line in said


def test_an_absent_file_is_missing(tmp_path):
    with pytest.raises(MissingFileError):
        import_config(str(tmp_path / "nowhere.yaml"))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\x80\xff")
    with pytest.raises(UserError, match="a.yaml: is no UTF-8 text"):
        import_config(str(tmp_path / "a.yaml"))


def test_a_network_that_plsc_has_not_is_refused_when_the_translation_is_loaded(tmp_path, capsys):
    path = written(tmp_path, "config.network = 'r2060'\nconfig.val_targets = []")
    assert cli.main(["import", "--config", path]) == 0
    assert (
        "WARNING the translation is refused as it is: the translation: Model.name: unknown backbone 'r2060'"
        in capsys.readouterr().out
    )
