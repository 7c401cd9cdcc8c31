"""What the sections refuse, word for word: every rule of a field and between fields."""

import pytest

from plsc.config import Config, ConfigError, load
from plsc.utils.section import sections_in
from tests.helpers.head_names import KINDS
from tests.helpers.refusals import refusal
from tests.helpers.sections import all_sections

MARGINS = ", ".join(f"{kind}, dist_{kind}" for kind in KINDS if kind != "softmax")


@pytest.mark.parametrize(
    "text, line",
    [
        # unknown names
        ("epochs: 3", "epochs: unknown key, did you mean 'Global.epochs'?"),
        (
            "Optimizer: {lr: 1}",
            (
                "Optimizer.lr: unknown key; use LRScheduler.learning_rate, which refers to all ranks' "
                "samples in a step"
            ),
        ),
        ("Global: {fp16: true}", "Global.fp16: unknown key; use Global.amp: float16"),
        ("Head: {m: 0.5}", "Head.m: unknown key; use Head.margin"),
        ("Head: {s: 64}", "Head.s: unknown key; use Head.scale"),
        ("num_classes: 3", "num_classes: unknown key; classes are counted in the data"),
        (
            "Head: {embedding_size: 3}",
            "Head.embedding_size: unknown key, did you mean 'Model.embedding_size'?",
        ),
        ("Export: {zzz: 1}", "Export.zzz: unknown key (one of formats)"),
        ("Zzz: {a: 1}", f"Zzz: unknown key (one of {', '.join(Config.model_fields)})"),
        # types are strict
        ("Global: {seed: true}", "Global.seed: must be a valid integer (got true)"),
        ("Global: {resume: yes}", "Global.resume: must be a valid boolean (got 'yes')"),
        (
            "Global: {device: 'gpu:x'}",
            (
                "Global.device: must be a device that Paddle lists, such as cpu, gpu, npu, or one card, "
                "gpu:1; auto chooses one (got 'gpu:x')"
            ),
        ),
        (
            "Global: {device: 'cuda:1'}",
            "Global.device: is no device of Paddle, did you mean 'gpu:1'? (got 'cuda:1')",
        ),
        # numbers are finite and bounded
        ("Head: {scale: 0}", "Head.scale: must be greater than 0 (got 0)"),
        ("Model: {dropout: 1}", "Model.dropout: must be less than 1 (got 1)"),
        ("Model: {widths: [16, 0, 64]}", "Model.widths.1: must be greater than or equal to 1 (got 0)"),
        # shapes
        (
            "DataLoader: {Train: {dataset: {name: ImageFolder, folder: ., size: [32, 32, 32]}}}",
            (
                "DataLoader.Train.dataset.size: must be a valid integer or Tuple should have at most 2 items "
                "after validation, not 3 (got [32, 32, 32])"
            ),
        ),
        ("Head: arcface", "Head: must be a mapping of keys (got 'arcface')"),
        (
            "DataLoader: {Train: {dataset: null}}",
            "DataLoader.Train.dataset: must be a mapping of keys (got null)",
        ),
        (
            "Export: {formats: [onnx, tflite]}",
            "Export.formats.1: must be 'paddle', 'onnx', 'insightface' or 'paddlex' (got 'tflite')",
        ),
        # combinations
        (
            "Head: {name: dist_softmax, scale: 64}",
            f"Head.scale: has no meaning with dist_softmax, only with {MARGINS} (got 64)",
        ),
        (
            "Head: {bias: true}",
            "Head.bias: has no meaning with dist_arcface, only with softmax, dist_softmax (got true)",
        ),
        ("Head: {name: magface, lo: 3}", "Head.lo: unknown key, did you mean 'low'?"),
        ("Head: {name: adaface, momentum: 5}", "Head.momentum: must be less than 1 (got 5)"),
        (
            "LRScheduler: {gamma: 0.1}",
            "LRScheduler.gamma: has no meaning with cosine, only with step (got 0.1)",
        ),
        ("LRScheduler: {name: step}", "LRScheduler.milestones: is required"),
        (
            "LRScheduler: {name: step, milestones: [2, 2]}",
            "LRScheduler.milestones: must be in rising order (got [2, 2])",
        ),
    ],
)
def test_refused(text, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(text)
    assert refusal(load, "a.yaml", kind=ConfigError) == f"a.yaml:1: {line}"


def test_capital_letters_mark_sections():
    for section in all_sections():
        assert all(
            key[0].isupper() <= bool(sections_in(field.annotation))
            for key, field in section.model_fields.items()
        )


# ---- further sets: sections under titles that the user chooses

MORE = """
DataLoader:
  Eval:
    dataset: {}
    more:
      clean: {name: GlyphPairs, augment: 0.0}
      large: {size: 48}
"""


def test_further_sets_have_titles_and_the_keys_of_a_set(write):
    path = write(MORE)
    config = load(path, ["DataLoader.Eval.more.clean.num_pairs=50", "DataLoader.Eval.more.tiny.num_pairs=2"])
    more = config.DataLoader.Eval.more
    assert list(more) == ["clean", "large", "tiny"] and more["large"].name == "GlyphPairs"
    assert more["clean"].model_extra == {"augment": 0.0, "num_pairs": 50}
    assert config.place("DataLoader.Eval.more.clean.augment") == f"{path}:6"
    assert config.place("DataLoader.Eval.more.tiny.num_pairs").startswith("-o ")
    assert load(write(config.to_yaml())) == config
    assert load().DataLoader.Eval.more == {} and load(write(load().to_yaml())) == load()


@pytest.mark.parametrize(
    "override, line",
    [
        ("more.x=null", "more.x: must be a mapping of keys (got null)"),
        ("more.x.num_pairs=a", "more.x.num_pairs: must be a valid integer (got 'a')"),
        ("more.x.nume=Glyphs", "more.x.nume: unknown key, did you mean 'name'?"),
        ("more.x.name=Glyp", "more.x.name: unknown dataset 'Glyp', did you mean 'Glyphs'? (one of "),
    ],
)
def test_wrong_further_sets_are_named_by_their_full_key(override, line):
    assert refusal(load, None, [f"DataLoader.Eval.{override}"], kind=ConfigError).startswith(
        f"-o DataLoader.Eval.{override}: DataLoader.Eval.{line}"
    )


@pytest.mark.parametrize(
    "name, ours", [("r50", "IResNet50"), ("iresnet100", "IResNet100"), ("R18", "IResNet18")]
)
def test_arcface_torchs_names_of_backbones_lead_to_ours(name, ours):
    with pytest.raises(ConfigError, match=f"unknown backbone '{name}', did you mean '{ours}'"):
        load({"Model.name": name})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("bf16", "; use Global.amp: bfloat16"),
        ("eval_steps", "; use Global.eval_every_steps"),
        ("fp16", "; use Global.amp: float16"),
        ("gradient_accumulation_steps", "; use DataLoader.Train.global_batch"),
        ("logging_steps", "; use Global.log_every"),
        ("lr_scheduler_type", "; use LRScheduler.name"),
        ("num_train_epochs", "; use Global.epochs"),
        ("output_dir", ", did you mean 'Global.output_dir'?"),
        (
            "per_device_eval_batch_size",
            "; use DataLoader.Train.batch_size, which applies to evaluation, too",
        ),
        ("per_device_train_batch_size", "; use DataLoader.Train.batch_size"),
        ("save_steps", "; use Checkpoint.every_steps"),
        ("seed", ", did you mean 'Global.seed'?"),
        ("warmup_ratio", "; use LRScheduler.warmup_epochs: warmup_ratio times the epochs"),
        (
            "warmup_steps",
            "; use LRScheduler.warmup_epochs: warmup_steps divided by the steps in an epoch",
        ),
        ("weight_decay", ", did you mean 'Optimizer.weight_decay'?"),
    ],
)
def test_hugging_faces_training_arguments_lead_to_ours(key, hint):
    assert refusal(load, {key: 1}, kind=ConfigError).endswith(f"{key}: unknown key{hint}")


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("Optimizer.name=sgd", ", did you mean 'Momentum'?"),
        ("Head.name=ArcFace", ", did you mean 'dist_arcface'?"),
        ("Global.amp=fp16", ", did you mean 'float16'?"),
    ],
)
def test_values_of_other_programs_lead_to_ours(override, hint):
    assert refusal(load, None, [override], kind=ConfigError).endswith(hint)


def test_the_margins_of_the_combined_head_are_named():
    said = refusal(load, None, ["Head={name: dist_combined, margin: 0.3}"], kind=ConfigError)
    assert (
        "margin: has no meaning with dist_combined, which has margin1, margin2, margin3, only with " in said
    )


def test_a_python_config_is_sent_to_the_table(tmp_path):
    (tmp_path / "r50.py").write_text("config.network = 'r50'")
    assert "r50.py: is Python, and a config is YAML; docs/training.md" in refusal(load, tmp_path / "r50.py")
