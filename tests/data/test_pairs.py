import numpy as np
import pytest

from plsc.data.glyphs import GlyphPairs
from plsc.data.pairs import ImagePairs, PairList
from plsc.errors import MissingFileError
from plsc.evaluation.sets import eval_set
from tests.helpers.image_files import png, write_folder, write_list, write_rec
from tests.helpers.refusals import refusal


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "faces", {"Ann": 2, "Bob": 3, "Cy": 1})


def images(pairs):
    return [[pairs.image_name(int(index)).rpartition("/")[2] for index in pair] for pair in pairs.pairs]


LINES = "Ann/Ann_0001.png,Ann/Ann_0002.png,1\nAnn/Ann_0001.png,Bob/Bob_0001.png,0\n"


@pytest.mark.parametrize(
    "text",
    [
        "a,b,same\n" + LINES,
        "\ufeff" + LINES.replace(",", "\t").replace("\n", "\r\n"),
        LINES.replace(",", ", "),
    ],
)
def test_pairs_named_in_a_file(folder, text):
    pairs = PairList(write_list(folder, text), size=(12, 10))
    assert images(pairs) == [["Ann_0001.png", "Ann_0002.png"], ["Ann_0001.png", "Bob_0001.png"]]
    assert pairs.same.tolist() == [True, False] and pairs.num_images == 3, "each image is stored once"
    assert pairs.identities.tolist() == ["Ann", "Bob"] and pairs.title == "list"
    assert pairs.identity_of.tolist() == ["Ann", "Ann", "Bob"]
    assert pairs.images(0, 3).shape == (3, 3, 12, 10) and pairs.encoded(1).tobytes() == png(1)


@pytest.mark.parametrize("third", ["2", "yes", ""])
def test_a_first_line_that_names_images_is_no_line_of_headings(folder, third):
    """Its pair was skipped, but only for the first line."""
    text = f"Bob/Bob_0001.png\tBob/Bob_0002.png\t{third}\n" + LINES
    assert "list.txt: line 1: must be 'path_a<TAB>path_b<TAB>1' or 0" in refusal(
        PairList, write_list(folder, text)
    )


def test_pairs_below_a_root(folder, tmp_path):
    (tmp_path / "elsewhere.csv").write_text("Ann/Ann_0001.png,Cy/Cy_0001.png,0\n")
    pairs = PairList(str(tmp_path / "elsewhere.csv"), root=str(folder))
    assert images(pairs) == [["Ann_0001.png", "Cy_0001.png"]]


def test_folders_that_contradict_the_flags_are_no_identities(folder):
    unknown = PairList(write_list(folder, LINES.replace(",0", ",1")))
    assert unknown.identities is None and unknown.identity_of is None


def test_lfws_file_without_folds(folder):
    text = "2\nAnn\t1\t2\nBob\t1\t3\nAnn\t1\tBob\t2\nCy\t1\tAnn\t2\n"
    pairs = PairList(write_list(folder, text))
    assert images(pairs) == [
        ["Ann_0001.png", "Ann_0002.png"],
        ["Bob_0001.png", "Bob_0003.png"],
        ["Ann_0001.png", "Bob_0002.png"],
        ["Cy_0001.png", "Ann_0002.png"],
    ]
    assert pairs.same.tolist() == [True, True, False, False] and pairs.num_images == 6
    assert pairs.identities.tolist() == ["Ann", "Bob", "Cy"]


def test_lfws_file_with_folds_keeps_its_order(folder):
    text = "2 1\nAnn 1 2\nAnn 1 Bob 2\nBob 1 3\nCy 1 Ann 2\n"
    assert PairList(write_list(folder, text)).same.tolist() == [True, False, True, False]
    assert refusal(PairList, write_list(folder, text.replace("2 1", "3 1", 1))).endswith(
        "list.txt: line 1 promises 3 x 2 x 1 = 6 pairs, the file has 4"
    )


def refused(path, **options):
    return refusal(PairList, path, **options).removeprefix(f"{path}: ")


def test_bad_lines_are_named(folder):
    bad = "must be 'path_a<TAB>path_b<TAB>1' or 0, or with commas (got "
    assert refused(write_list(folder, LINES + "\na,b\na,b,2\n,b,1\na,b,1,1\n")) == (
        f"line 3: {bad}''); line 4: {bad}'a,b'); line 5: {bad}'a,b,2'); line 6: {bad}',b,1'); "
        f"line 7: {bad}'a,b,1,1')"
    )
    assert refused(write_list(folder, LINES + "x\n" * 9)).endswith("; 9 bad lines in all")
    assert refused(write_list(folder, "1\nAnn\t1\tx\nAnn 1\n")) == (
        "line 2: must be 'name n1 n2' or 'name1 n1 name2 n2' (got 'Ann\\t1\\tx'); "
        "line 3: must be 'name n1 n2' or 'name1 n1 name2 n2' (got 'Ann 1')"
    )
    for text in ("", "a,b,same\n"):
        assert refused(write_list(folder, text)).startswith("has no pairs; it needs lines of ")
    assert refused(write_list(folder, b"\xff\xfe1")).startswith("is not UTF-8 text (")


def test_missing_images_are_named(folder):
    assert refused(write_list(folder, LINES + "Ann/Ann_0001.png,no.png,0\n")) == (
        f"1 of its images do not exist: no.png (relative paths start at {folder})"
    )
    assert refused(write_list(folder, "1\nAnn\t1\t2\nAnn\t1\tDan\t1\n")).startswith(
        "1 of its images do not exist: Dan/Dan_0001.jpg "
    )
    assert refusal(PairList.check, kind=MissingFileError, list="no.txt").startswith(
        "list: file 'no.txt' does not exist"
    )


# ---- drawn


def test_pairs_are_drawn_from_any_format(folder, tmp_path):
    rec = write_rec(tmp_path / "a.rec", [0, 0, 1, 1, 1, 2])
    from_folder = ImagePairs(str(folder), num_pairs=6, size=(12, 10))
    from_rec = ImagePairs(str(rec), num_pairs=6, size=(12, 10))
    assert np.array_equal(from_folder.pairs, from_rec.pairs) and np.array_equal(
        from_folder.same, from_rec.same
    )
    for index in range(from_folder.num_images):
        assert from_folder.encoded(index).tobytes() == from_rec.encoded(index).tobytes()
    assert from_folder.identities is not None and from_rec.identities is None
    assert from_folder.title == "pairs of faces" and from_rec.image_name(0) == "record 1 (a.rec @ 40)"
    names = [[name.partition("_")[0] for name in pair] for pair in images(from_folder)]
    assert [first == second for first, second in names] == from_folder.same.tolist() == [True, False] * 3
    a, b = map(from_rec.image_name, from_rec.pairs[2])
    assert from_rec.pair_name(2) == f"({a}, {b})"


def test_every_set_of_pairs_knows_whom_its_images_show(folder):
    lfw = "1\t1\nAnn\t1\t2\nAnn\t1\tBob\t3\n"
    sets = [
        PairList(write_list(folder, lfw)),
        ImagePairs(str(folder), num_pairs=4),
        GlyphPairs(num_pairs=20, held_out=0.02),
    ]
    for pairs in sets:
        first, second = pairs.identity_of[pairs.pairs.T]
        assert np.array_equal(first == second, pairs.same)
        assert len(pairs.identity_of) == pairs.num_images
    assert set(sets[0].identity_of) == {"Ann", "Bob"} and set(sets[1].identity_of) <= {"Ann", "Bob", "Cy"}


def test_copies_of_an_image_are_one_image(folder):
    (folder / "copy").mkdir()
    copy = folder / "copy" / "again.png"
    copy.write_bytes((folder / "Ann" / "Ann_0001.png").read_bytes())
    listed = write_list(
        folder, "Ann/Ann_0001.png\tcopy/again.png\t1\nAnn/Ann_0001.png\tAnn/Ann_0002.png\t1\n"
    )
    known = eval_set(PairList(listed))
    known.check()
    assert known.doubts[0] == "1 pair compared with itself, which proves nothing: line 1"
    copy.write_bytes(png(77))
    clean = eval_set(PairList(listed))
    clean.check()
    assert not [doubt for doubt in clean.doubts if "itself" in doubt]
