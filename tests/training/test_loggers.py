"""Copies of the metrics for other programs: all get the same points, each step once. A fake that knows the
calls replaces a package that is not installed."""

import struct
import sys
import types

import pytest

from plsc.entry import Entry
from plsc.training.loggers import check_packages
from plsc.training.metrics import Metrics, read_metrics
from tests.helpers.launch import ROOT, run_python
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY

POINTS = {
    "train/loss": [(s, 1.0) for s in range(1, 6)] + [(6, 2.0), (7, 3.0)],
    "eval/pairs/accuracy": [(5, 0.5)],
}


def row(step, loss):
    return {"step": step, "epoch": 1, "loss": loss, "note": "a text is no point"}


def run(folder, name):
    """A run that is killed at step 5 and resumed at 3: the rows of each step, once."""
    evaluated = {"eval": "pairs", "step": 5, "accuracy": 0.5, "threshold": None}
    metrics = Metrics(folder, 0, [name])
    for step in range(1, 6):
        metrics.write(row(step, 1.0))
    metrics.close()
    metrics = Metrics(folder, 3, [name])
    for written in (row(4, 9.0), row(5, 9.0), evaluated, row(6, 2.0), row(7, 3.0)):
        metrics.write(written)
    metrics.close()
    assert [found["step"] for found in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 5, 6, 7]


def test_visualdl(tmp_path, capsys):
    from visualdl import LogReader

    run(tmp_path, "visualdl")
    assert capsys.readouterr().out == ""
    reader = LogReader(file_path=str(tmp_path / "visualdl/vdlrecords.train.log"))
    for tag, points in POINTS.items():
        assert [(point.id, point.value) for point in reader.get_data("scalar", tag)] == points


def test_visualdl_and_matplotlib_do_without_a_home_that_can_be_written(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from plsc.distributed import environment\n"
        "from plsc.training.loggers import VisualDL\n"
        "environment.set_variables()\n"
        "import matplotlib.figure\n"
        "VisualDL(Path(sys.argv[1])).close()\n"
    )
    done = run_python("-c", program, str(tmp_path), cwd=ROOT, HOME="/dev/null", MPLCONFIGDIR=None)
    assert (done.stdout, done.stderr) == ("", "") and [*(tmp_path / "visualdl").iterdir()]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    run(tmp_path, "tensorboard")
    found = {}
    files = sorted((tmp_path / "tensorboard").iterdir(), key=lambda path: path.name)
    assert len(files) == 2
    for file in files:
        data = file.read_bytes()
        while data:  # length, its checksum, the event, its checksum
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert {tag: sorted(points) for tag, points in found.items()} == POINTS


class FakeWandb(types.ModuleType):
    """The calls to wandb. `runs` has the keywords and the points of each start."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def Settings(self, **settings):
        return settings

    def init(self, **keywords):
        points = []
        self.runs.append((keywords, points))
        return types.SimpleNamespace(
            log=lambda values, step: points.append((step, values)), finish=lambda: None
        )


def test_wandb_is_offline_with_one_id_and_heeds_the_environment(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("MODE", "PROJECT", "NAME", "DIR", "RUN_ID"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    run(tmp_path, "wandb")
    found = {tag: [] for tag in POINTS}
    for keywords, points in fake.runs:
        assert (keywords["mode"], keywords["dir"], keywords["resume"]) == ("offline", str(tmp_path), "allow")
        for step, values in points:
            for tag, value in values.items():
                found[tag].append((step, value))
    assert found == POINTS
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    Metrics(tmp_path, 3, ["wandb"]).close()
    keywords = fake.runs[-1][0]
    assert len({keywords["id"] for keywords, _ in fake.runs}) == 1
    assert (keywords["mode"], keywords["project"]) == ("online", "mine")


@pytest.mark.parametrize("name, package", [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_one_line_before_the_first_step(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert refusal(check_packages, ["visualdl", name]) == (
        f"Global.loggers: {name} needs a package that is not installed: "
        f"pip install {package}, or remove {name}"
    )
    entry = Entry(TINY, [f"Global.output_dir={tmp_path}", f"Global.loggers=[{name}]"])
    for verb in (entry.train, entry.dry_run):
        assert f"pip install {package}" in refusal(verb)
    assert not list(tmp_path.glob("metrics*"))


def test_what_is_asked_for_is_what_is_written(tmp_path):
    Entry(TINY, [f"Global.output_dir={tmp_path}", "Global.loggers=[]", "Global.max_steps=1"]).train()
    assert (tmp_path / "metrics.jsonl").is_file() and not (tmp_path / "visualdl").exists()
