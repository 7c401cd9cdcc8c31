import numpy as np
import pytest

from plsc.data.bin_packs import BinPairs, write_pack
from plsc.data.dataset import PairSet
from plsc.data.pairs import PairList
from plsc.data.templates import IjbPairs
from plsc.evaluation.pair_checks import alternating
from plsc.evaluation.sets import eval_set
from tests.helpers.image_files import png
from tests.helpers.refusals import refusal


def test_kinds_are_spread_evenly_and_keep_their_own_order():
    same = np.array([True] * 3 + [False] * 3)
    assert alternating(same).tolist() == [0, 3, 1, 4, 2, 5]
    assert alternating(~same).tolist() == [3, 0, 4, 1, 5, 2]
    rng = np.random.default_rng(0)
    for positives, negatives in ((500, 500), (100, 900), (700, 33), (5, 0), (0, 5)):
        same = rng.permutation(np.arange(positives + negatives) < positives)
        order = alternating(same)
        assert sorted(order.tolist()) == list(range(len(same)))
        assert (np.diff(order[same[order]]) > 0).all() and (np.diff(order[~same[order]]) > 0).all()
        counts = [int(fold.sum()) for fold in np.array_split(same[order], 5)]
        assert max(counts) - min(counts) <= 2  # the folds themselves differ by one


def pair_list(folder, pairs, same):
    lines = (f"{a}.png,{b}.png,{flag:d}\n" for (a, b), flag in zip(pairs, same))
    (folder / "pairs.csv").write_text("".join(lines))
    return PairList(str(folder / "pairs.csv"))


def pack(folder, pairs, same):
    (folder / "a.bin").unlink(missing_ok=True)
    write_pack(str(folder / "a.bin"), [png(number) for pair in pairs for number in pair], same)
    return BinPairs(str(folder / "a.bin"))


def templates(folder, pairs, same):
    (folder / "media.txt").write_text("".join(f"{number}.png {number} 0\n" for number in range(5)))
    lines = (f"{a} {b} {flag:d}\n" for (a, b), flag in zip(pairs, same))
    (folder / "pairs.txt").write_text("".join(lines))
    return IjbPairs(str(folder / "media.txt"), str(folder / "pairs.txt"))


def own(folder, pairs, same):
    return SetOfPairs(np.array(pairs), np.array(same))


class SetOfPairs(PairSet):
    title, num_images, image_shape, image = "own", 5, (1, 2, 2), None

    def __init__(self, pairs, same):
        self.pairs, self.same = pairs, same


@pytest.mark.parametrize(
    "make, unit, first", [(pair_list, "line", 1), (pack, "pair", 0), (templates, "line", 1), (own, "pair", 0)]
)
def test_pairs_that_prove_nothing_are_doubted_and_contradictions_refused(tmp_path, make, unit, first):
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    pairs, same = [(0, 1), (2, 2), (1, 0), (3, 4), (0, 1)], [True, True, True, False, True]
    data = eval_set(make(tmp_path, pairs, same))
    data.check()
    one, two, three, five = (f"{unit} {first + number}" for number in (0, 1, 2, 4))
    assert data.doubts == [
        f"1 pair compared with itself, which proves nothing: {two}",
        f"2 pairs given twice, which proves nothing: {three}, {five}",
    ]
    data = eval_set(make(tmp_path, pairs, [True, True, False, False, True]))
    named = f"{one} and {three}; {three} and {five}"
    line = f"{named}: the same two images are labelled both as one identity and as two"
    assert refusal(data.check).startswith(line)
    data = eval_set(make(tmp_path, [(0, 1), (0, 2)], [True, False]))
    data.check()
    assert data.doubts == []
