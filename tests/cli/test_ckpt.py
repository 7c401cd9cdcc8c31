"""plsc ckpt: what it prints, what it writes, its exit codes."""

import re

import pytest

from plsc import cli
from plsc.checkpoint.evaluation import Evaluation, VerificationThreshold
from tests.helpers.checkpoints import content, flip, save_ranks

CONFIG = {
    "Global": {"seed": 1},
    "Model": {"name": "LeNet", "embedding_size": 2},
    "Head": {"name": "dist_arcface", "sub_centres": 2, "margin": 0.5},
}


@pytest.fixture
def saved(tmp_path):
    everything = {**content(2), "config": CONFIG, "state": {"run": {"seed": 2}}}
    path = save_ranks(tmp_path, 120, everything, 2, classes=list("abcdefghijk"))[0]
    Evaluation(set="lfw, 80 images", metric="accuracy", value=0.9, threshold=VerificationThreshold()).write(
        path
    )
    return path, everything


def run(capsys, *args):
    code = cli.main(["ckpt", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_inspect_is_a_table(saved, capsys):
    code, out, err = run(capsys, "inspect", saved[0])
    assert (code, err) == (0, "")
    lines = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in out.splitlines() if "  " in line}
    assert lines["step"] == "120, epoch 3"
    assert lines["classes"] == "11" and lines["numbers per class"] == "4 (embedding size x sub-centres)"
    assert lines["names"] == "11, from a, b, c, d, e"
    assert lines["world size"] == "2"
    assert lines["head"].startswith("bias F64 [11]; centres F32 [11, 4]; momentum F32 [11, 4]")
    assert lines["preprocessing"] == "shape [1, 32, 32], mean 127.5, scale 0.0078431, channels grey"
    assert lines["evaluation"] == "accuracy 0.9 on lfw, 80 images"
    assert lines["Model"] == "name LeNet, embedding_size 2" and lines["Head"].endswith("margin 0.5")
    size = (saved[0] / "head-00001-of-00002.safetensors").stat().st_size
    (row,) = [line.split() for line in out.splitlines() if line.startswith("head-00001")]
    assert row[1:4] == [str(size), "[6,", "11)"]


def test_verify(saved, capsys):
    folder, _ = saved
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors")
    size += (folder / "classes.json").stat().st_size
    code, out, _ = run(capsys, "verify", folder)
    assert code == 0 and out == (f"{folder}: complete, 5 files, {size:,} bytes, every checksum is right\n")
    flip(folder / "head-00001-of-00002.safetensors")
    code, out, err = run(capsys, "verify", folder)
    assert (code, out) == (2, "")
    assert err == f"ERROR {folder}/head-00001-of-00002.safetensors: fails its checksum\n"
    assert run(capsys, "inspect", folder)[0] == 0, "it reads no data"


def test_the_current_folder_is_skipped_at_the_beginning_of_a_path_only(saved, monkeypatch, capsys):
    folder = saved[0].parent
    monkeypatch.chdir(folder)
    (folder / f"x{folder}").mkdir(parents=True)
    below = saved[0].rename(folder / f"x{saved[0]}")
    assert run(capsys, "verify", below)[1].startswith(f"x{saved[0]}: complete, ")


def test_a_run_stands_for_its_newest_checkpoint(saved, tmp_path, capsys):
    save_ranks(tmp_path / "run/checkpoints", 99, saved[1], 2)
    save_ranks(tmp_path / "run/checkpoints", 130, saved[1], 2)
    for folder in (tmp_path / "run", tmp_path / "run/checkpoints"):
        assert re.search("^step +130, epoch", run(capsys, "inspect", folder)[1], re.MULTILINE)
        assert run(capsys, "verify", folder)[1].startswith(
            f"{tmp_path}/run/checkpoints/step-00000130: complete, "
        )


def test_names_are_escaped(saved, tmp_path, capsys):
    save_ranks(tmp_path, 5, saved[1], 2, classes=[f"\x9b{n}" for n in range(11)])
    folder = tmp_path / "step-00000005"
    assert "\\x9b0" in run(capsys, "inspect", folder)[1]
