"""Names of classes: changed, dropped, given; the rows of those that stay are what they were."""

import numpy as np
import pytest

from plsc import cli
from plsc.checkpoint import reshard
from plsc.checkpoint.identities import edit_identities
from plsc.checkpoint.store import Checkpoint
from plsc.errors import UserError
from tests.helpers.bounds import EPS, assert_within
from tests.helpers.checkpoints import assert_same, content, save_ranks

NAMES = list("abcdefghijk")


@pytest.fixture
def saved(tmp_path):
    everything = content(2)
    return str(save_ranks(tmp_path, 120, everything, 2, classes=NAMES)[0]), everything


@pytest.mark.parametrize("block", [20, 1 << 20])
def test_rename_and_drop(saved, tmp_path, monkeypatch, block):
    monkeypatch.setattr(reshard, "BLOCK", block)
    folder, everything = saved
    said = edit_identities(folder, str(tmp_path / "out"), ["b=Bea", "k=a"], ["a", "e", "f"])
    assert said == f"{tmp_path}/out: 8 of 11 classes\nrenamed 2: b -> Bea, k -> a\ndropped 3: a, e, f"
    made = Checkpoint.open(tmp_path / "out")
    assert made.classes() == ["Bea", "c", "d", "g", "h", "i", "j", "a"]
    stay = [1, 2, 3, 6, 7, 8, 9, 10]
    assert_same(made.head(0, 8), {name: array[stay] for name, array in everything["head"].items()})
    assert_same(made.arrays("backbone"), everything["backbone"])
    assert [(part.start, part.stop) for part in made.manifest.heads] == [(0, 4), (4, 8)]
    assert made.step == 120 and made.manifest.state == everything["state"]


@pytest.mark.parametrize("block", [20, 1 << 20])
def test_merged_classes_are_the_means_of_their_rows(saved, tmp_path, monkeypatch, block):
    monkeypatch.setattr(reshard, "BLOCK", block)
    folder, everything = saved
    merge = [["c", "k", "a"], ["h", "g"]]
    said = edit_identities(folder, str(tmp_path / "out"), ["c=Cy"], ["e"], merge=merge)
    assert said.splitlines() == [
        f"{tmp_path}/out: 7 of 11 classes",
        "renamed 1: c -> Cy",
        "merged 2: k and a into c, g into h",
        "dropped 1: e",
    ]
    made = Checkpoint.open(tmp_path / "out")
    assert made.classes() == ["b", "Cy", "d", "f", "h", "i", "j"]
    for name, old in everything["head"].items():
        rows = old[[1, 2, 3, 5, 7, 8, 9]]
        rows[1] = sum(old[n].astype(np.float64) for n in (2, 10, 0)) / 3
        rows[4] = (old[7].astype(np.float64) + old[6]) / 2
        found = made.head(0, 7)[name]
        assert found.dtype == old.dtype, name
        assert_within(found, rows, EPS / 2 * np.abs(rows), paths=2)  # both are a float64 mean, rounded
        stay = [0, 2, 3, 5, 6]
        assert found[stay].tobytes() == rows[stay].tobytes()


def test_a_merge_list_joins_its_pairs_to_identities(saved, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("identity,same as,cosine\nc,k,0.9\nh,g,0.8\n\na,k,0.7\nd,c,0.7\na,c,0.6\n")
    said = edit_identities(saved[0], str(tmp_path / "out"), merge=[["e", "f"]], merge_list=str(pairs))
    assert said.splitlines()[1] == "merged 3: f into e, c and d and k into a, h into g"
    assert Checkpoint.open(tmp_path / "out").classes() == ["a", "b", "e", "g", "i", "j"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "{file}: the first line must be identity,same as,cosine, as plsc ckpt duplicates writes it"),
        (
            "a,b,0.9\n",
            "{file}: the first line must be identity,same as,cosine, as plsc ckpt duplicates writes it",
        ),
        (
            "identity,same as,cosine\na,b,1\nc\x1b\n",
            "{file}: row 3: must be two different names (got 'c\\x1b')",
        ),
        ("identity,same as,cosine\na,a,1\n", "{file}: row 2: must be two different names (got 'a,a,1')"),
        ("identity,same as,cosine\na,zz,1\n", "--merge-list {file}: {folder} has no class 'zz'"),
        ('identity,same as,cosine\n"a,b\n', "{file}: cannot be read as CSV: unexpected end of data"),
        (None, "{file}: no such file; plsc ckpt duplicates writes one"),
    ],
)
def test_merge_lists_that_are_refused(saved, tmp_path, text, said):
    file = tmp_path / "pairs.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as raised:
        edit_identities(saved[0], str(tmp_path / "out"), merge_list=str(file))
    assert str(raised.value) == said.format(file=file, folder=saved[0])
    assert not (tmp_path / "out").exists()


def test_merges_that_are_refused(saved, tmp_path):
    folder, _ = saved
    (tmp_path / "keep.txt").write_text("a\nb\n")
    sub = {**content(0), "config_yaml": "Head: {sub_centres: 3}"}
    (three, *_) = save_ranks(tmp_path / "s", 1, sub, 1, classes=NAMES)
    bits = {**content(0), "head": {"centres": np.zeros((11, 4), np.uint16)}}
    (half, *_) = save_ranks(tmp_path / "h", 1, bits, 1, classes=NAMES)
    for source, options, said in (
        (folder, {"merge": [["a"]]}, "--merge: give two names or more of one identity (got 'a')"),
        (folder, {"merge": [["a", "zz"]]}, f"--merge: {folder} has no class 'zz'"),
        (
            folder,
            {"merge": [["a", "b"], ["c", "b"]]},
            "--merge: 'b' is named 2 times in --merge and --drop; once is enough",
        ),
        (
            folder,
            {"merge": [["a", "b"]], "drop": ["a"]},
            "--merge: 'a' is named 2 times in --merge and --drop; once is enough",
        ),
        (
            folder,
            {"merge": [["c", "a"]], "keep_list": str(tmp_path / "keep.txt")},
            "--merge: 'c' is not in the keep list; it is the one that stays",
        ),
        (
            half,
            {"merge": [["c", "a"]]},
            f"--merge: {half} has its rows as bfloat16, of which no means are taken; drop all names but one instead",
        ),
        (
            three,
            {"merge": [["c", "a"]]},
            f"--merge: {three} has sub-centres, which stand in no order; drop all names but one instead",
        ),
    ):
        with pytest.raises(UserError) as raised:
            edit_identities(str(source), str(tmp_path / "out"), **options)
        assert str(raised.value) == said
    assert not (tmp_path / "out").exists()


def test_a_keep_list(saved, tmp_path):
    (tmp_path / "keep.txt").write_text("k\nc\n")
    said = edit_identities(saved[0], str(tmp_path / "out"), keep_list=str(tmp_path / "keep.txt"))
    assert said.splitlines()[0].endswith("2 of 11 classes") and said.endswith(
        "dropped 9: a, b, d, e, f, g, h, i, j"
    )
    assert Checkpoint.open(tmp_path / "out").classes() == ["c", "k"]


def test_names_for_a_checkpoint_without(tmp_path):
    (without, *_) = save_ranks(tmp_path, 1, content(0), 1)
    (tmp_path / "names.txt").write_text("".join(f"Änne {name}\n" for name in NAMES))
    edit_identities(str(without), str(tmp_path / "out"), names=str(tmp_path / "names.txt"))
    made = Checkpoint.open(tmp_path / "out")
    assert made.classes() == [f"Änne {name}" for name in NAMES]
    assert np.array_equal(made.head(0, 11)["centres"], content(0)["head"]["centres"])


def test_refusals(saved, tmp_path):
    folder, _ = saved
    (tmp_path / "names.txt").write_text("a\nzz\n")
    (tmp_path / "repeated.txt").write_text("a\n" * 11)
    (without, *_) = save_ranks(tmp_path / "w", 1, content(0), 1)
    names, repeated = str(tmp_path / "names.txt"), str(tmp_path / "repeated.txt")
    for source, options, said in (
        (folder, {"rename": ["x=y"]}, f"--rename: {folder} has no class 'x'"),
        (folder, {"rename": ["a"]}, "--rename: must be old=new, once for each class (got 'a')"),
        (
            folder,
            {"rename": ["a=b"]},
            "after the edit: 2 classes are called 'b'; each class needs a name of its own",
        ),
        (folder, {"drop": ["z"]}, f"--drop: {folder} has no class 'z'"),
        (folder, {"drop": NAMES}, f"{folder}: none of its 11 classes would stay; drop fewer"),
        (folder, {"keep_list": names}, f"--keep-list {names}: {folder} has no class 'zz'"),
        (folder, {"keep_list": "none"}, "none: no such file; give a list of names, a line each"),
        (folder, {"names": names}, f"--names: {folder} has names already; change them with --rename"),
        (without, {}, f"{without}: has no names of classes; give them with --names FILE, a line a class"),
        (without, {"names": names}, f"{names}: has 2 names, {without} has 11 classes"),
        (
            without,
            {"names": repeated},
            f"{repeated}: 11 classes are called 'a'; each class needs a name of its own",
        ),
    ):
        with pytest.raises(UserError) as raised:
            edit_identities(str(source), str(tmp_path / "out"), **options)
        assert str(raised.value) == said
    assert not (tmp_path / "out").exists()


def test_the_verb(saved, tmp_path, capsys):
    command = ["ckpt", "edit-identities", saved[0], "--output", str(tmp_path / "out"), "--drop", "a", "b"]
    assert cli.main([*command, "--rename", "c=C"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out: 9 of 11 classes\nrenamed 1: c -> C\ndropped 2: a, b\n"
    command[4] = str(tmp_path / "merged")
    assert cli.main([*command[:5], "--merge", "a", "b", "--merge", "d", "e", "f"]) == 0
    assert capsys.readouterr().out.endswith(": 8 of 11 classes\nmerged 2: b into a, e and f into d\n")
