"""Global.init_from: which rows stay, what new ones are, against slow references; the words of it, and what is
refused."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from plsc.checkpoint.store import Checkpoint
from plsc.config import load
from plsc.config.run import GlobalCfg
from plsc.data.dataset import EVALUATION
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.training import finetune
from plsc.training.embed import to_input
from plsc.training.finetune import IMAGES, match_classes, start_from
from tests.helpers.bounds import EPS, assert_within, rounded
from tests.helpers.tiny_runs import TINY, Linear, arrays, checkpoint, make_trainer, rows, steps, train

OLD = [f"p{number}" for number in range(11)]
# p3 and p10 are dropped, the order is another one, and three are new at the front, in the middle and at the
# end.
NEW = ["x", "p9", "p0", "p1", "y", "p8", "p7", "p6", "p2", "p4", "p5", "z"]
MANY = [*NEW, *(f"new {number}" for number in range(30))]
# Names and overrides, for tests/distributed: fewer groups of new classes than ranks, more of them, and all
# rows on every rank.
CASES = {
    "few": (NEW, []),
    "many": (MANY, ["Head.bank=host"]),
    "random": (MANY, ["Global.new_centres=random"]),
    "replicated": (MANY, ["Head.name=arcface"]),
    "new head": (MANY, ["Global.keep_centres=none", "Global.new_centres=mean"]),
}
NO_PAIRS = "DataLoader.Eval.dataset=null"
MORE = [NO_PAIRS, "Head.sample_rate=0.5"]  # of a run that is stopped and goes on with more people


def people(names, **more):
    fields = "".join(f", {key}: {value}" for key, value in more.items())
    return f"DataLoader.Train.dataset={{name: tests.helpers.tiny_runs:People, people: {json.dumps(names)}{fields}}}"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run of two steps with eleven people: its checkpoint."""
    folder = tmp_path_factory.mktemp("before")
    train(folder, people(OLD), "Global.max_steps=2", NO_PAIRS)
    return checkpoint(folder, 2)


def started(folder, path, *overrides, names=NEW, **more):
    """A trainer that has started from the checkpoint `path`, the head that it had before, and what was
    said."""
    first = [] if more.pop("unnamed", False) else [people(names, **more)]
    trainer = make_trainer(folder, *first, NO_PAIRS, f"Global.init_from={path}", "Global.seed=5", *overrides)
    initial = {name: array.copy() for name, array in trainer.head.bank.state().items()}
    said = start_from(trainer.cfg, trainer.backbone, trainer.head, trainer.dataset)
    return trainer, initial, said


def reference(trainer, label, length):
    """One class's first centre, image by image."""
    data, total = trainer.dataset, np.zeros(trainer.cfg.Model.embedding_size)
    trainer.backbone.eval()
    indices = np.flatnonzero(data.labels == label)
    for place in np.linspace(0, len(indices) - 1, min(len(indices), IMAGES)).astype(int):
        pixels = data.sample(int(indices[place]), EVALUATION)[np.newaxis]
        emb = trainer.backbone(to_input(pixels, data.preprocessing)).numpy().astype(np.float64).ravel()
        total += emb / np.sqrt((emb**2).sum())
    return total / np.sqrt((total**2).sum()) * length


def assert_means(rows, trainer, labels, length):
    """Compare first centres of classes with the reference, which embeds by float32, too."""
    labels = list(labels)
    mean = lambda: np.stack([reference(trainer, label, length) for label in labels])
    assert_within(rows[labels], *rounded(trainer.backbone, mean), paths=2)


# ---- rows


@pytest.mark.parametrize("bank", ["device", "host"])
@pytest.mark.parametrize("rows", [4, 65_536])
def test_known_names_keep_their_rows_and_new_ones_start_from_their_images(
    before, tmp_path, monkeypatch, bank, rows
):
    monkeypatch.setattr(finetune, "_ROWS_AT_ONCE", rows)
    trainer, _, _ = started(tmp_path, before, f"Head.bank={bank}", images_per_class=20)
    saved, state = arrays(before), trainer.head.bank.state()
    assert saved["head: momentum"].any() and not state["momentum"].any()
    kept = {name: saved["head: centres"][OLD.index(name)] for name in NEW if name in OLD}
    length = np.mean([np.sqrt((row.astype(np.float64) ** 2).sum()) for row in kept.values()])
    trainer.backbone.train()
    for label, name in enumerate(NEW):
        if name in kept:
            assert state["centres"][label].tobytes() == kept[name].tobytes(), name
    new = [label for label, name in enumerate(NEW) if name not in kept]
    assert_means(state["centres"], trainer, new, length)
    for name, tensor in trainer.backbone.state_dict().items():
        assert tensor.numpy().tobytes() == saved[f"backbone: {name}"].tobytes(), name


def test_kept_rows_start_with_another_optimizer_whose_moments_are_zero(before, tmp_path):
    """From Momentum to AdamW, and from there to LARS."""
    adamw = "Optimizer.head={name: AdamW, lr_scale: 0.02}"
    trainer, _, _ = started(tmp_path / "adamw", before, adamw, "Global.max_steps=2")
    state, saved = trainer.head.bank.state(), arrays(before)
    assert not state["moment1"].any() and not state["moment2"].any() and trainer.head.bank.updates == 0
    for label, name in enumerate(NEW):
        if name in OLD:
            assert state["centres"][label].tobytes() == saved["head: centres"][OLD.index(name)].tobytes(), (
                name
            )
    trainer.train(None)
    assert trainer.head.bank.updates == 2 and state["moment2"].any()
    written = checkpoint(tmp_path / "adamw", 2)
    trainer, _, _ = started(tmp_path / "lars", written, "Optimizer.head={name: LARS}")
    state = trainer.head.bank.state()
    assert state.keys() == {"centres", "velocity"} and not state["velocity"].any()
    assert state["centres"].tobytes() == arrays(written)["head: centres"].tobytes()


def test_the_means_are_those_of_evaluation_mode_and_training_goes_on(before, tmp_path):
    trainer, _, _ = started(tmp_path, before)
    assert trainer.backbone.training
    trainer.train(None)
    assert trainer.step == 12


def test_new_ones_at_random_are_those_of_a_new_head(before, tmp_path):
    trainer, initial, said = started(tmp_path, before, "Global.new_centres=random")
    state = trainer.head.bank.state()
    for label, name in enumerate(NEW):
        expected = (
            initial["centres"][label] if name not in OLD else arrays(before)["head: centres"][OLD.index(name)]
        )
        assert state["centres"][label].tobytes() == expected.tobytes(), name
    assert "3 new at random, 2 dropped" in said.lines[-1] and said.identities["random"] == ["x", "y", "z"]


def test_many_groups_and_chunks_give_the_same(before, tmp_path, monkeypatch, capsys):
    whole = started(tmp_path / "a", before, names=MANY)[0].head.bank.state()["centres"]
    monkeypatch.setattr(finetune, "_CLASSES_AT_ONCE", finetune._GROUP)
    cut = started(tmp_path / "b", before, names=MANY)[0].head.bank.state()["centres"]
    assert "centres: means of 32 of 33 new classes are done\n" in capsys.readouterr().out
    assert whole.tobytes() == cut.tobytes() and len(np.unique(whole, axis=0)) == len(MANY)


def test_classes_without_a_readable_image_stay_random(before, tmp_path):
    trainer, initial, said = started(tmp_path, before, damaged='["y", "p9"]')
    state = trainer.head.bank.state()["centres"]
    assert state[4].tobytes() == initial["centres"][4].tobytes() and state[0].any()
    assert state[1].tobytes() == arrays(before)["head: centres"][9].tobytes(), "a kept one needs no image"
    assert said.lines[-1] == "centres: 1 of the new have no readable image and start at random: y"
    assert said.identities["random"] == ["y"]


def test_of_sub_centres_the_first_is_the_mean(tmp_path):
    train(tmp_path / "a", people(OLD), "Global.max_steps=2", NO_PAIRS, "Head.sub_centres=3")
    path = checkpoint(tmp_path / "a", 2)
    trainer, initial, _ = started(tmp_path / "b", path, "Head.sub_centres=3")
    saved, state = arrays(path)["head: centres"], trainer.head.bank.state()["centres"]
    stay = [OLD.index(name) for name in NEW if name in OLD]
    length = np.linalg.norm(saved[stay].reshape(-1, 8).astype(np.float64), axis=1).mean()
    for label, name in enumerate(NEW):
        if name in OLD:
            assert state[label].tobytes() == saved[OLD.index(name)].tobytes()
        else:
            assert_means(state[:, :8], trainer, [label], length)
            assert state[label, 8:].tobytes() == initial["centres"][label, 8:].tobytes()


def test_a_bias_goes_along_and_new_ones_have_the_mean(tmp_path):
    plain = "Head={name: dist_softmax, bias: true}"
    train(tmp_path / "a", people(OLD), "Global.max_steps=2", NO_PAIRS, plain)
    path = checkpoint(tmp_path / "a", 2)
    state = started(tmp_path / "b", path, plain)[0].head.bank.state()
    saved = arrays(path)["head: bias"]
    kept = [saved[OLD.index(name)] for name in NEW if name in OLD]
    found = dict(zip(NEW, state["bias"]))
    assert [found[name] for name in NEW if name in OLD] == kept and np.std(kept) > 0
    for name in "xyz":
        mean = np.mean(kept, dtype=np.float64)  # they are added up in units, then the mean is rounded
        assert_within(found[name], mean, finetune._UNIT / 2 + EPS * abs(mean))
    assert not state["bias_momentum"].any() and arrays(path)["head: bias_momentum"].any()


def test_by_number_for_data_without_names(before, tmp_path):
    more = ["Global.keep_centres=number", "DataLoader.Train.dataset.num_classes=13"]
    trainer, _, said = started(tmp_path, before, *more, unnamed=True)
    state = trainer.head.bank.state()["centres"]
    assert state[:11].tobytes() == arrays(before)["head: centres"].tobytes()
    lengths = np.linalg.norm(state.astype(np.float64), axis=1)
    mean = np.repeat(lengths[:11].mean(), 2)
    assert_within(lengths[11:], mean, 2 * EPS * mean)  # a direction, a length and their product are rounded
    assert said.lines[1] == (
        f"centres: 11 kept by number, 2 new from the mean embeddings of at most {IMAGES} images each, 0 dropped; "
        "all in identities.json"
    )
    assert said.identities["new"] == ["class 11", "class 12"]
    more[1] = "DataLoader.Train.dataset.num_classes=9"
    assert started(tmp_path, before, *more, unnamed=True)[2].identities["dropped"] == ["p9", "p10"]


def test_a_new_head_can_start_from_means_too(before, tmp_path):
    more = ["Global.keep_centres=none", "Global.new_centres=mean"]
    trainer, initial, said = started(tmp_path, before, *more)
    length = np.linalg.norm(initial["centres"].astype(np.float64), axis=1).mean()
    state = trainer.head.bank.state()["centres"]
    assert_means(state, trainer, range(len(NEW)), length)
    assert said.lines[1] == "the head is new: Global.keep_centres is none" and said.identities["new"] == NEW
    assert said.lines[2].startswith("centres: 0 kept, 12 new from the mean embeddings")


@pytest.mark.parametrize("head, kept", [("adaface", True), ("dist_adaface", True), ("curricularface", False)])
def test_the_statistics_of_the_same_margin_go_on(tmp_path, head, kept):
    train(tmp_path / "a", people(OLD), "Global.max_steps=2", NO_PAIRS, "Head.name=dist_adaface")
    path = checkpoint(tmp_path / "a", 2)
    trainer, _, said = started(tmp_path / "b", path, f"Head.name={head}")
    saved = Checkpoint.open(path).plain("margin")
    assert (trainer.head.margin.state_dict() == saved) == kept
    told = f"margin: its statistics go on from mean {saved['mean']:.4g}, deviation {saved['deviation']:.4g}"
    assert (told in said.lines) == kept


# ---- words


def test_what_was_done_is_said_and_listed(before, tmp_path, capsys):
    _, _, said = started(tmp_path, before)
    said.record(tmp_path)
    first, second = capsys.readouterr().out.splitlines()[-2:]
    count = len(Checkpoint.open(before).arrays("backbone"))
    assert first.endswith(f" INFO starting with the {count} tensors of the backbone in {before}")
    assert second.endswith(
        f" INFO centres: 9 kept by name, 3 new from the mean embeddings of at most {IMAGES} images each, 2 dropped (p3, p10); "
        "all in identities.json"
    )
    assert json.loads((tmp_path / "identities.json").read_text()) == {
        "init_from": str(before),
        "kept": 9,
        "new": ["x", "y", "z"],
        "random": [],
        "dropped": ["p3", "p10"],
    }


def test_why_a_head_is_new(before, tmp_path):
    unnamed = tmp_path / "unnamed"
    train(unnamed, "Global.max_steps=1", NO_PAIRS)
    remedy = "; Global.keep_centres: number takes class n of it for class n of the data"
    other = checkpoint(unnamed, 1)
    for path, overrides, more, why in (
        (before, ["Global.keep_centres=none"], {}, "Global.keep_centres is none"),
        (before, [], {"unnamed": True}, f"the classes of the data have no names{remedy}"),
        (
            other,
            [],
            {},
            f"the classes of {other} have no names{remedy}",
        ),
        (
            before,
            [],
            {"names": ["a", "b", "c"]},
            f"no class of {before} ('p0', ...) is in the data ('a', ...)",
        ),
    ):
        trainer, initial, said = started(tmp_path / "b", path, *overrides, **more)
        assert said.lines[1:] == [f"the head is new: {why}"] and said.identities == {}
        assert trainer.head.bank.state()["centres"].tobytes() == initial["centres"].tobytes()


@pytest.mark.parametrize(
    "there, here, kept",
    [
        (["/old/faces/p1", "/old/faces/p2", "/old/faces/p3"], ["/new/faces/p2", "/new/faces/p3"], [1, 2]),
        (["/old/faces/p1", "/old/faces/p2"], ["Ann", "p2", "p9"], [-1, 1, -1]),  # no longer numbered alike
        (["Ann", "p2"], ["/new/faces/p1", "/new/faces/p2"], [-1, 1]),
    ],
)
def test_folders_that_lie_elsewhere_are_found_once_it_is_said_that_they_were_moved(there, here, kept):
    """All centres were lost, with a line of information alone."""
    saved = SimpleNamespace(path="before", num_classes=len(there), classes=lambda: there)

    def match(keep_centres):
        return match_classes(GlobalCfg(init_from="before", keep_centres=keep_centres), saved, here, len(here))

    with pytest.raises(UserError) as raised:
        match(None)
    count = len([row for row in kept if row >= 0])
    assert str(raised.value) == (
        f"Global.keep_centres: no class of before ('{there[0]}', ...) is in the data ('{here[0]}', ...), but {count} folders have "
        "the same names: set name where they were moved or copied, none where these are other people"
    )
    found = match("name")
    assert (found.row_C.tolist(), found.nothing) == (kept, "")
    assert match("none").nothing == "Global.keep_centres is none"
    there[1:] = [f"{there[0]}/other"]
    assert match(None).nothing.startswith("no class of before")


@pytest.mark.parametrize(
    "overrides, names, said",
    [
        (["Head={name: dist_softmax}"], NEW, "the head is dist_arcface, this run's dist_softmax"),
        (["Head.sub_centres=2"], NEW, "a class has 8 numbers, in this run 16 (Head.sub_centres)"),
        (
            ["Head={name: softmax, bias: true}"],
            NEW,
            "the head is dist_arcface, this run's softmax; a bias is in one of the two only (Head.bias)",
        ),
    ],
)
def test_centres_of_another_head_are_refused(before, tmp_path, overrides, names, said):
    with pytest.raises(UserError) as raised:
        started(tmp_path, before, *overrides, names=names)
    assert str(raised.value) == (
        f"Global.init_from: {before}: its centres mean something else there: {said}; make them alike, or set "
        "Global.keep_centres=none to start with its backbone alone"
    )
    started(tmp_path, before, *overrides, "Global.keep_centres=none", names=names)


def test_another_margin_takes_the_centres_over(before, tmp_path):
    assert started(tmp_path, before, "Head.name=cosface")[2].identities["kept"] == 9


def test_names_that_are_not_unique_are_refused(before, tmp_path):
    with pytest.raises(UserError) as raised:
        started(tmp_path, before, names=["p0", "a", "a"])
    assert (
        str(raised.value)
        == "Global.keep_centres: the data: 2 classes are called 'a'; each class needs a name of its own"
    )


def test_a_damaged_checkpoint_is_refused(before, tmp_path):
    with pytest.raises(UserError, match="no-such-folder"):
        started(tmp_path, "no-such-folder")


def test_what_to_keep_needs_a_checkpoint():
    for key in ("keep_centres=none", "new_centres=mean"):
        with pytest.raises(UserError) as raised:
            load(None, [f"Global.{key}"])
        assert f"Global.{key.partition('=')[0]}: has no meaning without Global.init_from" in str(raised.value)


# ---- the backbone


def test_images_prepared_in_another_way_are_warned_about(before, tmp_path, capsys):
    trainer = make_trainer(tmp_path, people(NEW), NO_PAIRS)
    preprocessing = trainer.dataset.preprocessing
    ours = preprocessing.to_json()
    finetune.init_backbone(trainer.backbone, Checkpoint.open(before), {}, replace(preprocessing, mean=1.0))
    assert capsys.readouterr().out.endswith(
        f"{before} was trained on samples {ours}, this run has {dict(ours, mean=1.0)}\n"
    )


def test_a_backbone_that_differs_is_refused_tensor_by_tensor(tmp_path):
    train(tmp_path / "a", "Global.max_steps=1", backbone=Linear())
    saved = Checkpoint.open(checkpoint(tmp_path / "a", 1))
    other = paddle.nn.Layer()
    other.linear = paddle.nn.Linear(7, 8, bias_attr=False)
    other.norm = paddle.nn.LayerNorm(8, bias_attr=False)
    with pytest.raises(UserError) as raised:
        finetune.fitting_arrays(other, saved, "here")
    assert str(raised.value).splitlines() == [
        "here: linear.bias is not in Layer",
        "here: norm.weight is not in the checkpoint",
        "here: linear.weight is [120, 8] in the checkpoint, [7, 8] in Layer",
    ]
    with pytest.raises(UserError) as raised:
        finetune.fitting_arrays(paddle.nn.PReLU(), saved, "here")
    assert str(raised.value) == "here: none of its 2 tensors is one of PReLU's"


# ---- before a start


def dry(folder, path, names, *overrides):
    keys = [people(names), f"Global.init_from={path}", f"Global.output_dir={folder}/out", *overrides]
    return Entry(TINY, keys).dry_run().splitlines()[-1]


def test_a_dry_run_says_what_a_start_would_take_over(before, tmp_path):
    tensors = f"plan: start    {before}: the {len(Checkpoint.open(before).arrays('backbone'))} tensors of the backbone; "
    assert dry(tmp_path, before, NEW) == tensors + "centres: 9 kept by name, 3 new, 2 dropped"
    none = dry(tmp_path, before, NEW, "Global.keep_centres=none")
    assert none == f"{tensors}the head is new: Global.keep_centres is none"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "names, overrides",
    [
        (NEW, ["Model.widths=[4, 8]"]),
        (NEW, ["Head.sub_centres=2"]),
        (NEW, ["Head={name: dist_softmax, bias: true}"]),
        ([*NEW, "p9"], []),
    ],
)
def test_a_dry_run_refuses_what_a_start_refuses(before, tmp_path, names, overrides):
    with pytest.raises(UserError) as start:
        started(tmp_path, before, *overrides, names=names)
    with pytest.raises(UserError) as dry_run:
        dry(tmp_path, before, names, *overrides)
    assert str(dry_run.value) == str(start.value)


def test_a_dry_run_refuses_a_start_after_the_last_step(before, tmp_path):
    keys = ["Global.keep_step=true", "Global.max_steps=2"]
    with pytest.raises(UserError, match="nothing is left to train after step 2"):
        dry(tmp_path, before, NEW, *keys)


def test_a_dry_run_finds_a_checkpoint_that_is_not_there_or_damaged(before, tmp_path):
    with pytest.raises(UserError, match="there is no such checkpoint folder"):
        dry(tmp_path, tmp_path / "nothing", NEW)
    copy = shutil.copytree(before, tmp_path / "copy")
    file = copy / "backbone.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="fails its checksum"):
        dry(tmp_path, copy, NEW)


def test_a_run_that_would_resume_does_not_start_from_another(before, tmp_path):
    """The start would not look at it, and neither does the dry run."""
    (tmp_path / "out/checkpoints/step-00000001").mkdir(parents=True)
    said = dry(tmp_path, tmp_path / "nothing", NEW, "Global.resume=true")
    assert said.startswith("plan: room")


def test_a_run_that_was_stopped_goes_on_with_more_people(tmp_path):
    """Step and rate go on, the rate as low as rollbacks have left it."""
    stopped = make_trainer(tmp_path / "before", people(OLD), *MORE, "Global.max_steps=5")
    stopped.part("rollback").load_state_dict({"count": 1})
    stopped.train(None)
    start = [f"Global.init_from={checkpoint(tmp_path / 'before', 5)}", "Global.keep_step=true"]
    Entry(TINY, [f"Global.output_dir={tmp_path / 'after'}", people(NEW), *MORE, *start]).train()
    assert steps(rows(tmp_path / "after")) == list(range(6, 13))
    assert [row["lr"] for row in rows(tmp_path / "after")] == [0.025] * 7
    assert Checkpoint.open(checkpoint(tmp_path / "after")).classes() == NEW
    assert json.loads((tmp_path / "after/identities.json").read_text())["new"] == ["x", "y", "z"]
    with pytest.raises(UserError, match="nothing is left to train after step 12"):
        start[0] = f"Global.init_from={checkpoint(tmp_path / 'after')}"
        Entry(TINY, [f"Global.output_dir={tmp_path / 'late'}", people(NEW), *MORE, *start]).train()
