"""Mistakes with Entry that would train, resume or judge something else than was meant: each is refused, or
said in a line."""

import os
import re
import shutil
from unittest.mock import Mock

import cv2
import numpy as np
import paddle
import pytest

from plsc.config import load
from plsc.data.build import build_dataset, build_loader
from plsc.entry import Entry
from plsc.errors import UserError
from plsc.utils.logging import setup_logging
from tests.helpers.image_files import write_grey
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY, Linear, checkpoint

SHORT = ("Global.max_steps=2", "DataLoader.Eval.dataset=null", "Checkpoint.every_steps=null")


def entry(output, *overrides, model=None):
    return Entry(TINY, [f"Global.output_dir={output}", *SHORT, *overrides], model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    entry(folder).train()
    setup_logging()
    return folder


def test_overrides_win_over_a_config_too():
    config = load(TINY, {"Global.max_steps": 2, "Head.scale": 9.0})
    found = Entry(config, ["Global.epochs=7", "Head.scale=5"]).config
    assert (found.Global.max_steps, found.Global.epochs, found.Head.scale) == (2, 7, 5.0)
    assert (
        found.place("Head.scale").startswith("-o ")
        and config.Head.scale == 9.0
        and Entry(config).config == config
    )


def test_a_batch_of_more_samples_than_there_are_is_refused(tmp_path):
    wide = entry(tmp_path / "out", "DataLoader.Train.batch_size=116")
    line = (
        "-o DataLoader.Train.batch_size=116: DataLoader.Train.batch_size: 116 samples per step are more "
        "than the 115 per epoch; lower it"
    )
    assert refusal(wide.train) == refusal(wide.dry_run) == line
    entry(tmp_path, "DataLoader.Train.batch_size=115").dry_run()


@pytest.mark.parametrize(
    "override, line",
    [
        (
            "batch_size=58",
            "batch_size: 58 x 2 ranks: 116 samples per step are more than the 115 per epoch",
        ),
        ("global_batch=120", "global_batch: 120 samples per step are more than the 115 per epoch; lower "),
    ],
)
def test_ranks_and_batches_that_the_data_cannot_fill_are_refused(override, line):
    section = load(TINY, [f"DataLoader.Train.{override}"]).DataLoader
    said = refusal(build_loader, section, build_dataset(section, 0), 0, 0, 2)
    assert said.startswith(f"DataLoader.Train.{line}")


def test_ranks_may_be_more_than_classes():
    section = load(TINY, ["DataLoader.Train.batch_size=2"]).DataLoader
    assert build_loader(section, build_dataset(section, 0), 0, 0, 24).steps_per_epoch == 2


def lines_of(call):
    with pytest.raises(UserError) as raised:
        call()
    return str(raised.value).splitlines()


def test_mistakes_that_only_the_data_show_are_reported_at_once(tmp_path):
    """Sizes, two sets, the network and a Part: each has its line, with the place of its key."""
    wrong = entry(
        tmp_path,
        "DataLoader.Train.batch_size=116",
        "DataLoader.Eval.dataset={name: Synthetic, num_classes: 3, image_shape: [3, 8, 8]}",
        "DataLoader.Eval.more={one: {name: Synthetic, num_classes: 999}}",
        "Optimizer.freeze=[nowhere]",
    )
    for lines in (lines_of(wrong.train), lines_of(wrong.dry_run)):
        assert [line[:3] for line in lines] == ["-o "] * 4
        assert "batch_size: 116 samples per step are more than the 115 per epoch; lower it" in lines[0]
        assert "Eval.dataset: its samples have shape" in lines[1]
        assert "999 classes, but the head was trained on" in lines[2]
        assert "Optimizer.freeze" in lines[3]


def test_mistakes_in_a_list_of_sets_are_reported_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    sets = ", ".join(f"{{name: ImageFolder, folder: {tmp_path}/empty}}" for _ in range(2))
    lines = lines_of(entry(tmp_path, f"DataLoader.Train.dataset=[{sets}]").dry_run)
    assert len(lines) == 2 and lines[0].partition("empty")[2] == lines[1].partition("empty")[2]


def test_a_checkpoint_that_training_would_not_read_is_refused(tmp_path):
    line = refusal(entry(tmp_path / "out", "Global.checkpoint=old/step-00000008").train)
    assert line == (
        "-o Global.checkpoint=old/step-00000008: Global.checkpoint: a new training would not read "
        "old/step-00000008; set Global.resume=true "
        "to resume from it, or Global.init_from to start a new run with its weights"
    )
    assert not (tmp_path / "out").exists()
    entry(tmp_path, "Global.checkpoint=best").train()  # one of this run, for later


def test_a_resumed_run_at_its_end_says_so(trained, capsys):
    entry(trained, "Global.resume=true", "Global.max_steps=2").train()
    said = capsys.readouterr().out
    assert "WARNING the run is complete: it ends at step 2; raise Global.epochs or Global.max_steps\n" in said


def test_another_network_is_refused_with_the_config_of_the_run(trained):
    line = refusal(lambda: entry(trained, "Model.widths=[4, 7]").predict(np.zeros((1, 1, 12, 10), np.uint8)))
    assert line.endswith(
        f": Model must be that of the run that made it; copy its Model section from {trained / 'config.yaml'}"
    )


def test_a_start_with_another_network_is_told_to_copy_its_model_alone(trained, tmp_path):
    """The whole config would replace the data of the new run, too."""
    other = ["Model.widths=[4, 7]", f"Global.init_from={trained}"]
    line = refusal(entry(tmp_path / "new", *other).train)
    assert line.endswith(f"; copy its Model section from {trained / 'config.yaml'}")
    (made,) = (trained / "checkpoints").iterdir()
    imported = shutil.copytree(made, tmp_path / "imported")  # as plsc import writes it
    shutil.copy(trained / "config.yaml", imported)
    line = refusal(entry(tmp_path / "new", *other[:1], f"Global.init_from={imported}").train)
    assert line.endswith(f"; copy its Model section from {imported / 'config.yaml'}")


def test_one_class_is_nothing_to_learn(tmp_path):
    one = entry(tmp_path, "DataLoader.Train.dataset.num_classes=1", "DataLoader.Train.batch_size=5")
    line = refusal(one.train)
    assert line == refusal(one.dry_run)
    assert line.endswith("tiny.yaml:9: DataLoader.Train.dataset: has 1 class, training needs at least 2")


class Twice(Linear):
    def forward(self, images):
        return super().forward(images), images


class After(Linear):
    def __init__(self, change):
        super().__init__(8)
        self.change = change

    def forward(self, images):
        return self.change(super().forward(images))


class Bare(paddle.nn.Layer):
    def forward(self, images):
        return images.flatten(1)[:, :8]


@pytest.mark.parametrize(
    "backbone, line",
    [
        (
            Linear(5),
            (
                "the backbone must give embeddings [12, 8] for 12 images, it gave [12, 5]; "
                "Model.embedding_size says how long they are"
            ),
        ),
        (Twice(8), "the backbone must give embeddings [12, 8] for 12 images, it gave tuple"),
        (
            After(lambda out: out.astype("float16")),
            "the backbone must give float32 embeddings, it gave float16; end it with .astype('float32')",
        ),
        (
            After(lambda out: out.detach()),
            (
                "the backbone's embeddings have no gradient, so it would not be trained; remove detach() "
                "and no_grad()"
            ),
        ),
        (Bare, "paddle.nn.Layer object (got <class 'tests.test_entry_mistakes.Bare'>)"),
        (
            Bare(),
            "Model: Bare has no parameters to train; give it some, or do not freeze them all",
        ),
    ],
)
def test_embeddings_of_another_shape(tmp_path, backbone, line):
    assert refusal(lambda: entry(tmp_path, model=backbone).train()).endswith(line)


def test_predict_into_what_is_no_folder_and_from_a_folder(trained, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    pixels = np.zeros((1, 1, 12, 10), np.uint8)
    line = refusal(lambda: entry(trained).predict(pixels, tmp_path / "file"))
    assert line.startswith(f"{tmp_path / 'file'}: cannot be written: File exists; free some space, or name ")
    line = refusal(lambda: entry(trained).predict(tmp_path))
    assert line.startswith(f"{tmp_path}: has no images (.jpg, ")
    line = "predict: give paths, PIL images, or pixels in one array (got 5)"
    assert refusal(lambda: entry(trained).predict(5)) == line
    full = OSError("8 requested and 0 written")  # NumPy's own, on a full disk
    monkeypatch.setattr(np, "save", Mock(side_effect=full))
    line = refusal(lambda: entry(trained).predict(pixels, tmp_path / "full"))
    assert (
        line == f"{tmp_path / 'full'}: cannot be written: 8 requested and 0 written; free some space, "
        "or name another folder"
    )


def people(folder, names):
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(3):
            cv2.imwrite(str(folder / name / f"{number}.png"), np.full((12, 10), 80 * number, np.uint8))
    return f"{{name: ImageFolder, folder: {folder}, size: [12, 10], channels: grey}}"


def test_labelled_images_with_a_folder_less_are_refused_in_training_and_after_it(tmp_path):
    """All labels would belong to other people: an accuracy of 0 for a perfect network."""
    sets = [people(tmp_path / "train", ["Ann", "Bob", "Cy"]), people(tmp_path / "val", ["Bob", "Cy"])]
    keys = [
        f"Global.output_dir={tmp_path / 'out'}",
        "Global.max_steps=2",
        "DataLoader.Train.batch_size=9",
        f"DataLoader.Train.dataset={sets[0]}",
    ]
    Entry(TINY, [*keys, "DataLoader.Eval.dataset=null"]).train()
    fewer = Entry(TINY, [*keys, f"DataLoader.Eval.dataset={sets[1]}", "Global.overwrite=true"])
    for verb in (fewer.evaluate, fewer.train):
        words = (
            "DataLoader.Eval.dataset: its classes differ from the trained ones (missing: 'Ann'), so right "
        )
        assert words in refusal(verb)
    assert Entry(TINY, [*keys, f"DataLoader.Eval.dataset={sets[0]}"]).evaluate()["images"] == 9


def test_labelled_images_that_correspond_by_number_are_reported(tmp_path, capsys):
    data = [
        people(tmp_path / name, names) for name, names in (("train", ["Ann", "Bob"]), ("val", ["x", "y"]))
    ]
    keys = [f"Global.output_dir={tmp_path / 'out'}", "Global.max_steps=1", "DataLoader.Train.batch_size=4"]
    sets = [f"DataLoader.Train.dataset={data[0]}", f"DataLoader.Eval.dataset={data[1]}"]
    run = Entry(TINY, [*keys, *sets])
    line = (
        "DataLoader.Eval.dataset: its classes are taken for the trained ones by their numbers, because none "
    )
    for verb in (run.train, run.evaluate):
        verb()
        found = f"{line}has a trained class's name (the first is 'x', and 'Ann')"
        assert capsys.readouterr().out.count(found) == 1


def test_a_resumed_run_must_have_the_same_people_in_the_same_order(tmp_path):
    """As many as before, but every centre would be of someone else from then on."""
    data = people(tmp_path / "train", ["Ann", "Bob", "Cy"])
    keys = [
        f"Global.output_dir={tmp_path / 'out'}",
        "DataLoader.Eval.dataset=null",
        "DataLoader.Train.batch_size=6",
        f"DataLoader.Train.dataset={data}",
    ]
    Entry(TINY, [*keys, "Global.max_steps=2"]).train()
    longer = Entry(TINY, [*keys, "Global.max_steps=3", "Global.resume=true"])
    (tmp_path / "train" / "Ann").rename(tmp_path / "train" / "Dan")
    assert refusal(longer.train).endswith(
        "DataLoader.Train.dataset: its classes differ from the trained ones (missing: 'Ann'; new: 'Dan') in "
        "checkpoint step-00000002: resume with the same classes, or start a new run with Global.init_from in "
        "another Global.output_dir"
    )
    (tmp_path / "train" / "Cy").rename(tmp_path / "Cy")
    assert "(missing: 'Ann', 'Cy'; new: 'Dan') in checkpoint" in refusal(longer.train)
    (tmp_path / "Cy").rename(tmp_path / "train" / "Cy")
    (tmp_path / "train" / "Dan").rename(tmp_path / "train" / "Ann")
    longer.train()
    assert checkpoint(tmp_path / "out", 3).is_dir()


def test_a_resumed_run_reports_other_images_of_the_same_people(tmp_path, capsys):
    """Also if another image replaces one, so that the count is the same."""
    data = people(tmp_path / "train", ["Ann", "Bob", "Cy"])
    keys = [f"Global.output_dir={tmp_path / 'out'}", "DataLoader.Eval.dataset=null"]
    keys += ["DataLoader.Train.batch_size=4", f"DataLoader.Train.dataset={data}", "Global.resume=true"]

    def warnings(steps):
        Entry(TINY, [*keys, f"Global.max_steps={steps}"]).train()
        return re.findall(r"WARNING (checkpoint .*)", capsys.readouterr().out)

    assert warnings(2) == [] and warnings(3) == []
    (tmp_path / "train/Ann/0.png").rename(tmp_path / "train/Ann/9.png")
    (line,) = warnings(4)
    assert re.fullmatch(
        r"checkpoint step-00000003 was made with images 9 \(checksum .{8}\), this run has 9 "
        r"\(checksum .{8}\): the run continues with other random numbers and another data order",
        line,
    )
    assert warnings(5) == []
    (tmp_path / "train/Ann/9.png").unlink()
    assert "images 9 (checksum" in warnings(6)[-1]


def test_centres_that_the_memory_cannot_take_are_refused_before_they_are_made(tmp_path):
    few = "identities: 23, images_per_class: 5, image_shape: [1, 12, 10]"
    data = f"{{name: Synthetic, num_classes: 100000000000, {few}}}"
    line = (
        "the centres of 100,000,000,000 classes on a rank would take 3,200.0 GB of memory, this machine has "
    )
    assert line in refusal(entry(tmp_path, f"DataLoader.Train.dataset={data}").train)


def test_an_output_folder_among_the_classes_is_refused_before_it_is_written(tmp_path):
    """Else the folder `checkpoints` would be a class, and the run could not be resumed."""
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
        write_grey(tmp_path / name, np.zeros((1, 1, 12, 10), np.uint8))
    options = f"{{name: ImageFolder, folder: {tmp_path}, size: [12, 10], channels: grey}}"
    for output in (tmp_path, tmp_path / "out" / "first"):
        run = entry(output, f"DataLoader.Train.dataset={options}")
        line = "is within DataLoader.Train.dataset.folder, whose folders are classes"
        assert f"Global.output_dir: {output} {line}" in refusal(run.train)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ann", "bob"]


def test_a_run_that_starts_in_a_folder_that_is_not_utf8_is_refused(tmp_path, monkeypatch):
    folder = os.path.join(os.fsencode(tmp_path), b"J\xf6rg")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    line = f"{tmp_path}/J\\xf6rg: its name is not UTF-8; rename it, or start in another folder"
    assert refusal(entry("out").train) == line
    assert os.listdir(folder) == []
