"""The whole way: file and overrides in, a Config or the exact error lines out."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from plsc.backbones.config import BACKBONES
from plsc.config import ConfigError, load
from plsc.data.config import DATASETS, LABELLED
from plsc.data.dataset import ImageSet
from plsc.errors import MissingFileError, UserError
from tests.helpers.head_names import HEADS
from tests.helpers.refusals import refusal


class DummyNet:
    def __init__(self, embedding_size: int, widths: tuple[int, ...] = (8,), norm: str = "batch"):
        self.widths = widths


class DummyImages:
    def __init__(self, root: str, size: int = 32, seed: int = 0):
        self.root, self.seed = root, seed

    @classmethod
    def check(cls, **kwargs):
        if not os.path.isdir(kwargs["root"]):
            raise MissingFileError(f"no such folder (got '{kwargs['root']}')", key="root")
        if kwargs.get("size") == 13:
            raise UserError("13 is an unlucky size")


class DummyPairs(ImageSet):
    def __init__(self, count: int = 10):
        self.count = count


@pytest.fixture(autouse=True)
def dummies(monkeypatch):
    monkeypatch.setitem(BACKBONES.builtin, "DummyNet", f"{__name__}:DummyNet")
    for name in ("DummyImages", "DummyPairs"):
        for registry in (LABELLED, DATASETS):
            monkeypatch.setitem(registry.builtin, name, f"{__name__}:{name}")


def errors(path=None, overrides=()):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value).splitlines()


# ---- defaults, files, overrides


def test_a_file_states_what_differs(write):
    cfg = load(write("Head:\n  margin: 3e-1\nLRScheduler: {name: step, milestones: [1, 2.5]}\n"))
    assert cfg.Head.margin == 0.3
    assert cfg.LRScheduler.milestones == [1.0, 2.5]
    assert (cfg.place("Head.margin"), cfg.place("Global.seed")) == ("a.yaml:2", "")
    assert cfg.place("LRScheduler.milestones") == "a.yaml:3"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "Head:\nGlobal:\nDataLoader:\n  Train:\n"])
def test_nothing_written_means_the_defaults(write, text):
    assert load(write(text)) == load()


def test_a_byte_order_mark_and_windows_line_ends(write):
    assert load(write(b"\xef\xbb\xbfHead:\r\n  margin: 0.3\r\n")).Head.margin == 0.3


def test_a_folder_means_its_default_yaml(write):
    write("Global: {seed: 7}", "default.yaml")
    assert load(".").Global.seed == 7
    assert load(Path.cwd()).place("Global.seed") == f"{Path.cwd() / 'default.yaml'}:1"


def test_data_lie_beside_the_config_but_a_folder_is_no_order_of_channels(write, tmp_path, monkeypatch):
    dataset = "{name: ImageFolder, folder: faces, channels: BGR}"
    own = tmp_path / write(f"DataLoader: {{Train: {{dataset: {dataset}}}}}")
    for name in ("faces", "BGR", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir("elsewhere")
    found = load(own).DataLoader.Train.dataset
    assert (found.folder, found.channels) == (str(tmp_path / "faces"), "BGR")


@pytest.mark.parametrize("beside", ["metrics.jsonl", "checkpoints/step-00000004/manifest.json"])
def test_a_run_is_where_its_config_lies(write, tmp_path, beside):
    own = write("Global: {output_dir: output}", "config.yaml")
    assert load(own).Global.output_dir == "output"  # of nobody's run
    run = tmp_path / "output/first"
    (run / beside).parent.mkdir(parents=True)
    (run / beside).write_text("")
    for text in ("Global: {output_dir: output}", "Global:\n", ""):
        (run / "config.yaml").write_text(text)
        for path in ("output/first/config.yaml", "output/first"):
            cfg = load(path)
            assert cfg.Global.output_dir == "output/first"
            assert cfg.place("Global.output_dir") == "where output/first/config.yaml is"
    assert load(str(run)).Global.output_dir == str(run)
    assert load(run, ["Global.output_dir=new"]).Global.output_dir == "new"
    assert load(load(run), ["Global.seed=3"]).Global.output_dir == str(run)
    shutil.copy(run / "config.yaml", run / "mine.yaml")
    assert load(run / "mine.yaml").Global.output_dir == "output"
    (run / "config.yaml").write_text("Global: 5")
    with pytest.raises(ConfigError, match=r"config.yaml:1: Global: must be"):
        load(run)


def test_overrides_win_and_the_last_one_most(write):
    cfg = load(
        write("Head: {margin: 0.1, scale: 32}"),
        ["Head.margin=0.2", " Head.margin = 3e-1", "Global.output_dir=a=b"],
    )
    assert (cfg.Head.margin, cfg.Head.scale, cfg.Global.output_dir) == (0.3, 32.0, "a=b")
    assert (cfg.place("Head.margin"), cfg.place("Head.scale")) == ("-o  Head.margin = 3e-1", "a.yaml:1")


def test_a_mapping_in_place_of_a_file_and_of_overrides():
    cfg = load({"Global.epochs": 2, "Head": {"margin": np.float32(0.25)}}, {"Global.output_dir": Path("a=b")})
    assert (cfg.Global.epochs, cfg.Head.margin, cfg.Global.output_dir) == (2, 0.25, "a=b")
    assert cfg.place("Head.margin") == "the config's mapping"
    assert errors({"Head": {"margni": 1}}, {"Global.epochs": "2"}) == [
        "the config's mapping: Head.margni: unknown key, did you mean 'margin'?",
        "overrides: Global.epochs: must be a valid integer (got '2')",
    ]


def test_override_values_are_yaml():
    cfg = load(None, ["LRScheduler.name=step", "LRScheduler.milestones=[1, 2]", "Global.output_dir='5e-4'"])
    assert (cfg.LRScheduler.milestones, cfg.Global.output_dir) == ([1.0, 2.0], "5e-4")
    assert load(None, "Global.seed=3").Global.seed == 3


@pytest.mark.parametrize(
    "override, message",
    [
        ("Optimizer.learning_rat=1", "unknown key, did you mean 'LRScheduler.learning_rate'?"),
        ("Head.learning_rate=1", "unknown key, did you mean 'LRScheduler.learning_rate'?"),
        ("Model=LeNet", "must be a mapping of keys (got 'LeNet')"),
        ("Head.scale='64'", "must be a valid number (got '64')"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(override, message):
    assert errors(None, [override]) == [f"-o {override}: {override.partition('=')[0]}: {message}"]


def test_an_override_of_a_section_replaces_it(write):
    path = write("DataLoader:\n  Train:\n    dataset: {name: DummyImages, root: here}\n")
    cfg = load(path, ["DataLoader.Train.dataset={name: DummyPairs, count: 3}"])
    assert cfg.DataLoader.Train.dataset.model_extra == {"count": 3}
    assert cfg.place("DataLoader.Train.dataset.count").startswith("-o ")
    assert load(path, ["DataLoader.Train="]).DataLoader.Train.dataset.name == "Glyphs"


def test_no_verification(write):
    path = write("DataLoader:\n  Eval: {dataset: null}\n")
    assert load(path).DataLoader.Eval.dataset is None
    assert load(path, ["DataLoader.Eval.dataset.name=DummyPairs"]).DataLoader.Eval.dataset.build().count == 10


# ---- keys that hang together


@pytest.mark.parametrize(
    "override, steps",
    [("{}", 200), ("{epochs: 3}", 60), ("{max_steps: 500}", 500), ("{epochs: 3, max_steps: 50}", 50)],
)
def test_a_run_ends_at_what_comes_first(override, steps):
    assert load(None, [f"Global={override}"]).Global.total_steps(steps_per_epoch=20) == steps


def test_a_name_from_above_drops_what_has_no_meaning_with_it(write):
    path = write("Head: {name: arcface, margin: 0.4, scale: 32}\nLRScheduler: {name: step, milestones: [2]}")
    cfg = load(path, ["Head.name=softmax", "LRScheduler.name=poly"])
    assert cfg == load(None, ["Head.name=softmax", "LRScheduler.name=poly"])
    cfg = load(load(path), {"Head.name": "cosface"})
    assert (cfg.Head.margin, cfg.Head.scale) == (0.4, 32.0)


# ---- classes and their keywords


def test_keywords_of_classes(write):
    cfg = load(
        write(
            "Model: {name: DummyNet, widths: [1, 2]}\n"
            "DataLoader:\n  Train:\n    dataset: {name: DummyImages, root: here}\n"
        )
    )
    assert cfg.Model.model_extra == {"widths": (1, 2)}
    assert cfg.Model.build(embedding_size=cfg.Model.embedding_size).widths == (1, 2)
    images = cfg.DataLoader.Train.dataset.build(seed=7)
    assert (images.root, images.seed) == ("here", 7)


def test_an_evaluation_set_may_have_a_seed_of_its_own():
    name = "DataLoader.Eval.dataset={name: DummyImages, root: here"
    for written, seed in (("}", 7), (", seed: 3}", 3)):
        assert load(None, [name + written]).DataLoader.Eval.dataset.build(seed=7).seed == seed


def test_wrong_keywords(write):
    path = write(
        "Model:\n  name: DummyNet\n  widths: 8\n  depht: 3\nDataLoader:\n  Train:\n    dataset:\n      "
        "name: DummyImages\n  Eval:\n    dataset: {name: DummyPiars}\n"
    )
    with pytest.raises(
        UserError, match="^unknown dataset 'DummyPiars', did you mean 'DummyPairs'"
    ) as unknown:
        DATASETS.get("DummyPiars")
    assert errors(None, ["Export.formats=onnx"]) == [
        "-o Export.formats=onnx: Export.formats: must be a list, such as [onnx] (got 'onnx')"
    ]
    assert errors(path, ["Model.embedding_size=x"]) == [
        "a.yaml:3: Model.widths: must be a list (got 8)",
        (
            "a.yaml:4: Model.depht: unknown key (one of name, embedding_size, sync_batchnorm, recompute, "
            "widths, norm)"
        ),
        "a.yaml:7: DataLoader.Train.dataset.root: is required",
        f"a.yaml:10: DataLoader.Eval.dataset.name: {unknown.value}",
        "-o Model.embedding_size=x: Model.embedding_size: must be a valid integer (got 'x')",
    ]


# ---- what a Config can do


def test_to_yaml_reloads_to_an_equal_config(write):
    overrides = [
        "Head={name: softmax, bias: true}",
        "Global.output_dir='a: b # c'",
        "LRScheduler.warmup_epochs=9",
    ]
    overrides += ["Model={name: DummyNet, widths: [1, 2], norm: '1e5'}", "DataLoader.Eval.dataset=null"]
    for cfg in (
        load(),
        load(None, overrides),
        load(None, ["Global.max_steps=3", "Optimizer.weight_decay=1e-5"]),
        load(None, ["Optimizer={name: AdamW, head: {name: Momentum}, head_lr_scale: 0.1, freeze: [^a]}"]),
        load(None, ["Optimizer={name: 'paddle.optimizer:Adam', lazy_mode: false, head: {name: LARS}}"]),
        load(None, ["Optimizer={name: LARS, epsilon: 0.1, freeze_norms: true}"]),
    ):
        again = load(write(cfg.to_yaml()))
        assert again == cfg and again.to_yaml() == cfg.to_yaml()


def test_check_data(write, tmp_path):
    text = (
        "DataLoader:\n  Train:\n    dataset:\n      name: DummyImages\n      root: {}\n      size: {}\n"
        "  Eval: {{dataset: null}}\n"
    )
    load(write(text.format(tmp_path, 32))).check_data()
    override = "DataLoader.Eval.dataset={name: DummyImages, root: x}"
    with pytest.raises(ConfigError) as error:
        load(write(text.format(".", 13)), [override]).check_data()
    assert str(error.value).splitlines() == [
        "a.yaml:3: DataLoader.Train.dataset: 13 is an unlucky size",
        f"-o {override}: DataLoader.Eval.dataset.root: no such folder (got 'x')",
    ]


# ---- what is refused. test_sections.py and test_layers.py have more


@pytest.mark.parametrize(
    "text, line",
    [
        ("Global: {}\nHaed: {}", "a.yaml:2: Haed: unknown key, did you mean 'Head'?"),
        ("Head:\n  sacle: 64", "a.yaml:2: Head.sacle: unknown key, did you mean 'scale'?"),
        (
            "Head: {name: dist_arcfase}",
            (
                f"a.yaml:1: Head.name: must be one of {', '.join(map(repr, HEADS))}, or your own as "
                "package.module:Class (got 'dist_arcfase'), did you mean 'dist_arcface'?"
            ),
        ),
        (
            "Head: {sample_rate: 1.5}",
            "a.yaml:1: Head.sample_rate: must be less than or equal to 1 (got 1.5)",
        ),
    ],
)
def test_wrong_configs(write, text, line):
    assert errors(write(text)) == [line]


def test_everything_at_once_in_the_order_of_the_file(write):
    text = "Head: {marign: 1}\nGlobal:\n  seed: x\n  seed: 4\nModel: {name: DummyNet, widths: 1}\nHed: {}"
    overrides = ["Zzz", "Optimizer.name=Adm", "Optimizer.momentum=x", "Optimizer.momentum=0.5"]
    assert [line.split(": ")[0] for line in errors(write(text), overrides)] == [
        "a.yaml:1",
        "a.yaml:3",
        "a.yaml:4",
        "a.yaml:5",
        "a.yaml:6",
        "-o Zzz",
        "-o Optimizer.name=Adm",
    ]


def test_a_global_batch_takes_any_number_of_ranks():
    keys = {"batch_size": 32, "global_batch": 192}
    cfg = load(None, [f"DataLoader.Train.{key}={value}" for key, value in keys.items()])
    train = cfg.DataLoader.Train
    for ranks in (1, 2, 3, 7, 96):
        cfg.check_ranks(ranks)
        parts = train.micro_batches_on(ranks)
        assert train.global_batch_on(ranks) == sum(map(sum, parts)) == 192 and len(parts) == ranks
        assert len({len(of_rank) for of_rank in parts}) == 1 and max(map(max, parts)) <= 32
    assert train.micro_batches_on(2) == [[32, 32, 32]] * 2
    assert train.micro_batches_on(7) == [[28]] * 3 + [[27]] * 4
    with pytest.raises(UserError) as error, cfg.naming_places():
        cfg.check_ranks(97)
    assert str(error.value) == (
        "-o DataLoader.Train.global_batch=192: DataLoader.Train.global_batch: must be at least 194 "
        "on 97 ranks, since BatchNorm needs 2 samples on each (got 192); start 96 or fewer"
    )


# ---- a list of data sets

SETS = """\
DataLoader:
  Train:
    dataset:
      - {name: DummyImages, root: a}
      - name: DummyImages
        root: b
        size: 12
"""


def test_a_list_of_data_sets(write):
    cfg = load(write(SETS))
    first, second = cfg.DataLoader.Train.sets
    assert (first.name, first.model_extra) == ("DummyImages", {"root": "a"})
    assert second.model_extra == {"root": "b", "size": 12}
    assert cfg.place("DataLoader.Train.dataset.1.size") == "a.yaml:7"
    assert load(write(cfg.to_yaml(), "b.yaml")) == cfg
    assert "    - name: DummyImages" in cfg.to_yaml()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("dataset.1.root=c", "DataLoader.Train.dataset: is a list: replace the whole list"),
        (
            "dataset=[]",
            "DataLoader.Train.dataset: List should have at least 1 item after validation, not 0 (got [])",
        ),
        ("dataset=[3]", "DataLoader.Train.dataset.0: must be a mapping of keys (got 3)"),
        (
            "dataset=[{name: PairList}]",
            "DataLoader.Train.dataset.0.name: unknown dataset to train on 'PairList'",
        ),
    ],
)
def test_mistakes_in_a_list_of_data_sets(write, override, line):
    for folder in "ab":
        os.mkdir(folder)
    (error,) = errors(write(SETS), [f"DataLoader.Train.{override}"])
    assert error.startswith(f"-o DataLoader.Train.{override}: {line}")


def test_a_mistake_in_an_item_names_its_line(write):
    os.mkdir("a")
    (error,) = errors(write(SETS.replace("root: b", "root: 7")))
    assert error == "a.yaml:6: DataLoader.Train.dataset.1.root: must be a valid string (got 7)"
    said = refusal(load(write(SETS)).check_data, kind=MissingFileError)
    assert said == "a.yaml:6: DataLoader.Train.dataset.1.root: no such folder (got 'b')"


def test_mistakes_in_keys_names_and_files_are_reported_at_once(write):
    """An unknown name does not hide the unknown keys beside it, and no mistake hides a missing file."""
    text = """\
Model: {name: SmalResNet, emb: 3}
Head: {margin: 50}
DataLoader:
  Train:
    batch_size: 0
    dataset: {name: ImageFolder, folder: nope, strenght: 1}
  Eval:
    dataset: {name: BinPairs, path: lfw.bin}
    more: {a: {name: PairList}}
"""
    lines = errors(write(text), ["Global.epoch=3"])
    here = f"(looked in {os.getcwd()})"
    for line, begin in zip(
        lines,
        (
            "a.yaml:1: Model.name: unknown backbone 'SmalResNet', did you mean 'SmallResNet'? (one of ",
            "a.yaml:1: Model.emb: unknown key (one of name, embedding_size, ",
            "a.yaml:2: Head.margin: must be at most 1.57 (pi / 2): angles are in radians",
            "a.yaml:5: DataLoader.Train.batch_size: must be greater than or equal to 1 (got 0)",
            "a.yaml:6: DataLoader.Train.dataset.strenght: unknown key (one of ",
            f"a.yaml:6: DataLoader.Train.dataset.folder: 'nope' is not a folder {here}",
            f"a.yaml:8: DataLoader.Eval.dataset.path: file 'lfw.bin' does not exist {here}",
            "a.yaml:9: DataLoader.Eval.more.a.list: is required",
            "-o Global.epoch=3: Global.epoch: unknown key, did you mean 'epochs'?",
        ),
        strict=True,
    ):
        assert line.startswith(begin)
    os.mkdir("checkpoints"), os.mkdir("checkpoints/step-00000001")  # a run: it can be used without its data
    os.rename("a.yaml", "config.yaml")
    assert not any("nope" in line or "lfw.bin" in line for line in errors("config.yaml"))


NO_VALUE = "is no value of a config: expected str, bytes or os.PathLike object, not"
BY_NAME = '; give a class by its name, {"name": "module:Class", ...} (docs/extend.md)'


@pytest.mark.parametrize(
    "path, overrides, line",
    [
        (5, (), "a config is a file, a folder, a mapping or a Config (got 5)"),
        (None, 5, "overrides are a mapping, or texts 'Section.key=value' (got 5)"),
        (
            {"Global.seed": {1}},
            (),
            f"the config's mapping: Global.seed: {NO_VALUE} set{BY_NAME}",
        ),
        (
            None,
            {"Head": {"margin": print}},
            f"overrides: Head: {NO_VALUE} builtin_function_or_method{BY_NAME}",
        ),
    ],
)
def test_what_no_config_can_hold_is_one_line(path, overrides, line):
    assert errors(path, overrides)[0] == line


def test_a_class_as_an_argument_is_one_line(write):
    """paddle.vision's ResNet takes its block as a class. A config cannot name one."""
    line = (
        "takes a Python object; pass that in a class of your own (docs/extend.md), not in a config (got 'a')"
    )
    override = "Model={name: 'paddle.vision.models:ResNet', block: a}"
    assert errors(None, [override]) == [f"-o {override}: Model.block: {line}"]


def test_home_is_expanded_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    with pytest.raises(MissingFileError, match="^/home/ann/a.yaml: "):
        load("~/a.yaml")
    keys = ["Global.output_dir=~/out", "DataLoader.Train.dataset=[{name: ImageFolder, folder: ~/faces}]"]
    cfg = load(None, keys)
    assert cfg.Global.output_dir == "/home/ann/out"
    assert cfg.DataLoader.Train.sets[0].model_extra == {"folder": "/home/ann/faces"}


def test_overrides_from_python_may_be_arrays_and_must_be_utf8_text():
    size = load(None, {"Model.widths": np.array([4, 8])}).Model.model_extra["widths"]
    assert list(size) == [4, 8]
    line = refusal(load, None, {"Global.output_dir": "a\udcff"})
    assert line.startswith("overrides: Global.output_dir: is not UTF-8 (got 'a")
    line = refusal(load, None, [("Global.max_steps", 3)])
    assert line == "an override must be a text 'Section.key=value' (got ('Global.max_steps', 3))"


def test_only_the_files_that_an_own_class_declares_are_looked_for(write, tmp_path, monkeypatch):
    """`split: train` is no path, also if there is a folder of that name."""
    module = "from plsc.data.synthetic import Synthetic\nclass Own(Synthetic):\n    files = ('folder',)\n"
    (tmp_path / "own_files.py").write_text(f"{module}    def __init__(self, folder, split): ...\n")
    (tmp_path / "train").mkdir()
    path = write("DataLoader: {Train: {dataset: {name: 'own_files:Own', folder: train, split: train}}}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load(tmp_path / path).DataLoader.Train.dataset.model_extra
    assert found == {"folder": str(tmp_path / "train"), "split": "train"}


def test_a_run_with_a_folder_that_is_not_utf8_names_the_key(write):
    path = write('Global:\n  folders: ["/a\\uDCF6"]\nx: 1')
    line = f"{path}:2: Global.folders.0: is not UTF-8 (got '/a\\xf6'); rename the file or folder"
    assert refusal(load, path) == line
