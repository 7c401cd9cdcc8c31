"""Faults of the lab book's list that no other file shows: damaged checkpoints and what a run does then."""

import logging
import shutil

import pytest

from plsc import cli
from plsc.checkpoint.store import find
from tests.helpers.checkpoints import flip
from tests.helpers.tiny_runs import TINY, assert_equal_runs, checkpoint, train

pytestmark = pytest.mark.slow

FILES = ("backbone", "optimizer", "head-00000-of-00001")
HERE = ["-c", str(TINY), "-o", "Global.output_dir=out"]


# ---- damaged checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """12 steps, with checkpoints at steps 4, 8, 10 and 12, and the first 8 steps."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder / "whole", "Checkpoint.keep=9")
    train(folder / "out", "Global.max_steps=8")
    return folder


@pytest.fixture
def out(whole, tmp_path, monkeypatch):
    """The first 8 steps, in the folder in which commands are run."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole / "out", tmp_path / "out")


def cut(part):
    def damage(path):
        with open(path / "head-00000-of-00001.safetensors", "r+b") as file:
            file.truncate(int(part * (path / file.name).stat().st_size))

    return damage


DAMAGE = {
    **{f"cut at {part}": cut(part) for part in (0, 0.001, 0.1, 0.5, 0.9, 0.999)},
    **{f"a bit of {name}": lambda path, name=name: flip(path / f"{name}.safetensors") for name in FILES},
    "a bit of the manifest": lambda path: flip(path / "manifest.json"),
    "no shard": lambda path: (path / "head-00000-of-00001.safetensors").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(out, caplog, damage):
    DAMAGE[damage](checkpoint(out, 8))
    logging.getLogger("plsc").addHandler(caplog.handler)
    found = find(out / "checkpoints", rename=True)
    logging.getLogger("plsc").removeHandler(caplog.handler)
    assert found == checkpoint(out, 4)
    (line,) = set(caplog.messages)
    assert line.startswith("checkpoint step-00000008 is unusable (") and "\n" not in line
    assert line.endswith("; it was skipped and renamed to step-00000008.bad")
    assert (out / "checkpoints/step-00000008.bad").is_dir()


def test_the_run_continues_from_the_one_before_it_to_the_same_end(whole, out):
    flip(checkpoint(out, 8) / "head-00000-of-00001.safetensors")
    assert cli.main(["train", *HERE]) == 0
    assert_equal_runs(out, whole / "whole")


# ---- another problem


@pytest.mark.parametrize(
    "override",
    [
        "Model.embedding_size=4",
        "Model.widths=[4, 8]",
        "Head={name: dist_softmax, bias: true}",
    ],
)
def test_a_refused_resume_writes_nothing(out, capsys, override):
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert cli.main(["train", *HERE, override]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR checkpoint step-00000008")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert after == {**before, out / ".lock": after[out / ".lock"]}
