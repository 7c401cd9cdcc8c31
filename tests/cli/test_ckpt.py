"""plsc ckpt: what it prints, what it writes, its exit codes."""

import json

import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint.saved import Best
from plsc.checkpoint.store import Checkpoint
from tests.helpers.checkpoints import assert_holds, content, flip, reseal, save_ranks
from tests.helpers.launch import run_python

CONFIG = (
    "Global: {seed: 1}\nModel: {name: LeNet, embedding_size: 4}\nHead: {name: dist_arcface, margin: 0.5}\n"
)


@pytest.fixture
def saved(tmp_path):
    best = Best(step=90, set="lfw", metric="accuracy", value=0.9)
    everything = {
        **content(2),
        "config_yaml": CONFIG,
        "state": {"run": {"seed": 2}, "checkpoints": {"best": best.model_dump()}},
    }
    return save_ranks(tmp_path, 120, everything, 2, classes=list("abcdefghijk"))[0], everything


def run(capsys, *args):
    code = cli.main(["ckpt", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_inspect_is_a_table(saved, capsys):
    code, out, err = run(capsys, "inspect", saved[0])
    assert (code, err) == (0, "")
    lines = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in out.splitlines() if "  " in line}
    assert lines["step"] == "120, epoch 3"
    assert lines["classes"] == "11, embeddings of 4"
    assert lines["names"] == "11, from a, b, c, d, e"
    assert lines["world size"] == "2"
    assert lines["head"].startswith("bias float64 [11]; centres float32 [11, 4]; momentum float32 [11, 4]")
    assert (
        lines["preprocessing"] == "shape [1, 32, 32], dtype uint8, channels grey, mean 127.5, scale 0.0078431"
    )
    assert lines["best"] == "step 90, set lfw, metric accuracy, value 0.9"
    assert lines["Model"] == "name LeNet, embedding_size 4" and lines["Head"].endswith("margin 0.5")
    size = (saved[0] / "head-00001-of-00002.safetensors").stat().st_size
    (row,) = [line.split() for line in out.splitlines() if line.startswith("head-00001")]
    assert row[1:5] == [str(size), "[6,", "11)", "5"]


def test_inspect_as_json(saved, capsys):
    code, out, _ = run(capsys, "inspect", saved[0], "--json")
    facts = json.loads(out)
    assert code == 0 and facts["world_size"] == 2 and facts["head"]["centres"] == ["float32", 11, 4]
    assert [entry["classes"] for entry in facts["files"] if entry["classes"]] == [[0, 6], [6, 11]]
    assert facts["state"] == saved[1]["state"] and facts["config"]["Head"]["margin"] == 0.5


def test_a_config_that_is_none(saved, capsys):
    reseal(saved[0], lambda fields: fields.update(config="a: [1"))
    code, _, said = run(capsys, "inspect", saved[0])
    assert code == 2
    assert said.startswith(f"ERROR {saved[0]}/manifest.json: config: line 1: not valid YAML")


def test_verify(saved, capsys):
    folder, _ = saved
    size = sum(path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json")
    (folder / "mine.txt").write_text("x")
    code, out, _ = run(capsys, "verify", folder)
    assert code == 0 and out == (
        f"{folder}: whole, 5 files, {size:,} bytes, every checksum is right; "
        "not of the checkpoint and not checked: mine.txt\n"
    )
    flip(folder / "head-00001-of-00002.safetensors")
    code, out, err = run(capsys, "verify", folder)
    assert (code, out) == (2, "")
    assert err == f"ERROR {folder}/head-00001-of-00002.safetensors: fails its checksum\n"
    assert run(capsys, "inspect", folder)[0] == 0, "it reads no data"


@pytest.mark.parametrize("name", ["backbone.safetensors", "head-00000-of-00002.safetensors", "classes.json"])
def test_cut_off_and_lost_files_are_named(saved, capsys, name):
    path = saved[0] / name
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = run(capsys, "verify", saved[0])
    assert code == 2 and err.startswith(f"ERROR {path}: has ") and len(err.splitlines()) == 1
    path.unlink()
    assert run(capsys, "merge", saved[0], "--output", saved[0].parent / "m")[2] == (
        f"ERROR {path}: is not there\n"
    )


def test_merge_split_reshard(saved, capsys):
    folder, everything = saved
    one, three, two = (folder.parent / name for name in ("one", "three", "two"))
    code, out, _ = run(capsys, "merge", folder, "--output", one)
    assert (code, out) == (0, f"{one}: 11 classes in 1 head file, from 2 head files\n")
    code, out, _ = run(capsys, "split", one, "--ranks", 3, "--output", three)
    assert (code, out) == (0, f"{three}: 11 classes in 3 head files, from 1 head file\n")
    assert run(capsys, "reshard", three, "--ranks", 2, "--output", two)[0] == 0
    assert_holds(three, everything)
    assert Checkpoint.open(one).manifest.world_size == 1
    assert {path.name: path.read_bytes() for path in two.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_mistakes(saved, capsys):
    folder, out = saved[0], saved[0].parent / "out"
    for args, said in (
        (
            ("split", folder, "--ranks", 3),
            f"{folder}: has 2 head files already; reshard --ranks 3 cuts them anew",
        ),
        (("reshard", folder, "--ranks", 0), "--ranks: must be an integer in [1, 99999] (got 0)"),
        (("merge", f"{folder}x"), f"{folder}x: there is no such checkpoint folder"),
    ):
        assert run(capsys, *args, "--output", out)[::2] == (2, f"ERROR {said}\n")
    assert not out.exists()
    with pytest.raises(SystemExit):
        run(capsys, "melt", folder)


def test_planted_duplicates_are_listed_and_merged(tmp_path, capsys):
    """Two sets' centres in one head; 60 of 300 identities are in both."""
    rng = np.random.default_rng(0)
    people = rng.normal(size=(300, 48))
    centres = np.concatenate([people[:180], people[120:]]) + 0.3 * rng.normal(size=(360, 48))
    names = [f"A/{n}" for n in range(180)] + [f"B/{n}" for n in range(120, 300)]
    everything = {**content(0), "head": {"centres": centres.astype(np.float32)}, "num_classes": 360}
    run_folder = tmp_path / "output"
    save_ranks(run_folder / "checkpoints", 7, everything, 2, classes=names)
    csv, merged = tmp_path / "pairs.csv", tmp_path / "merged"
    code, out, err = run(capsys, "duplicates", run_folder, "--output", csv)
    assert (code, err) == (0, "")
    found = {tuple(line.split(",")[:2]) for line in csv.read_text().splitlines()[1:]}
    wanted = {(f"A/{n}", f"B/{n}") for n in range(120, 180)}
    assert found == wanted
    assert "... and 10 more" in out.splitlines()
    assert out.splitlines()[0].startswith(
        f"{run_folder}/checkpoints/step-00000007: 360 classes, pairs with a cosine above 0."
    )
    assert len(run(capsys, "duplicates", run_folder, "--top", 2)[1].splitlines()) == 5
    step = run_folder / "checkpoints" / "step-00000007"
    code, out, _ = run(capsys, "edit-identities", step, "--merge-list", csv, "--output", merged)
    assert code == 0 and out.startswith(f"{merged}: 300 of 360 classes\nmerged 60: ")
    code, out, _ = run(capsys, "duplicates", merged)
    assert code == 0 and out.endswith(": none\n") and len(out.splitlines()) == 1


def test_the_current_folder_is_left_out_at_the_beginning_of_a_path_only(saved, monkeypatch, capsys):
    folder = saved[0].parent
    monkeypatch.chdir(folder)
    (folder / f"x{folder}").mkdir(parents=True)
    below = saved[0].rename(folder / f"x{saved[0]}")
    assert run(capsys, "verify", below)[1].startswith(f"x{saved[0]}: whole, ")


def test_names_are_escaped(saved, tmp_path, capsys):
    save_ranks(tmp_path, 5, saved[1], 2, classes=[f"\x9b{n}" for n in range(11)])
    folder = tmp_path / "step-00000005"
    assert "\\x9b0" in run(capsys, "inspect", folder)[1]
    assert "\\u009b0" in run(capsys, "inspect", folder, "--json")[1]
    out = run(capsys, "edit-identities", folder, "--drop", "\x9b3", "--output", tmp_path / "edited")[1]
    assert "\x9b" not in out and "dropped 1: \\x9b3" in out


def test_export_centres_and_duplicates_without_paddle(saved):
    """Also: the modules that they take do not import Paddle."""
    script = (
        "import sys\nfrom plsc.cli import ckpt\n"
        "ckpt.main(['export-centres', sys.argv[1], '--output', 'c.npy', '--normalise'])\n"
        "ckpt.main(['duplicates', sys.argv[1], '--threshold', '1'])\n"
        "assert 'paddle' not in sys.modules"
    )
    done = run_python("-c", script, str(saved[0]), cwd=saved[0].parent)
    assert done.stdout == (
        "c.npy: 11 centres of 4 numbers, of length 1\n"
        "step-00000120: 11 classes, pairs with a cosine above 1.0000, as given: none\n"
    )
