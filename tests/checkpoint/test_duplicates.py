"""Pairs of centres that are too near: found as by brute force, and told from the others without a
threshold."""

import numpy as np
import pytest

from plsc.checkpoint import duplicates
from plsc.checkpoint.duplicates import (
    Directions,
    choose_threshold,
    find_duplicates,
    nearest_of_both,
    pairs_above,
    second_nearest,
)
from plsc.checkpoint.identities import edit_identities
from plsc.checkpoint.store import Checkpoint
from plsc.errors import UserError
from plsc.utils.bfloat16 import float32_of, nearest
from tests.helpers.bounds import assert_within, cosines
from tests.helpers.checkpoints import content, save_one, save_ranks


def saved_with(root, centres, world=1, config="", **more):
    everything = {
        **content(0),
        "head": {"centres": centres},
        "num_classes": len(centres),
        "config_yaml": config,
    }
    return Checkpoint.open(save_ranks(root, 1, {**everything, **more}, world)[0])


def expected(centres, threshold):
    """All pairs above the threshold, by float64 and loops; centres [C, sub-centres, D]."""
    unit = centres.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), 1e-300)
    found = []
    for one in range(len(unit)):
        for other in range(one + 1, len(unit)):
            cosine = np.max(unit[one] @ unit[other].T)
            if cosine > threshold:
                found.append((one, other, cosine))
    return sorted(found, key=lambda pair: -pair[2])


@pytest.mark.parametrize("held, rows", [(8, 4), (32, 16), (1024, 1024)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "sub-centres"])
def test_all_pairs_are_compared_in_blocks(tmp_path, monkeypatch, held, rows, kind):
    monkeypatch.setattr(duplicates, "_HELD", held)
    monkeypatch.setattr(duplicates, "_ROWS", rows)
    centres = np.random.default_rng(1).normal(size=(37, 6)).astype(np.float32) * 3
    centres[5] = 0  # has no direction
    config = "Head: {sub_centres: 2}" if kind == "sub-centres" else ""
    stored = nearest(centres) if kind == "bfloat16" else centres
    saved = saved_with(tmp_path, stored, world=3, config=config)
    each = 2 if kind == "sub-centres" else 1
    compared = []
    found = pairs_above(Directions(saved), 0.5, done=compared.append)
    wanted = expected(float32_of(stored).reshape(37, each, -1), 0.5)
    assert len(wanted) > 20
    assert list(zip(found.first.tolist(), found.second.tolist())) == [
        (one, other) for one, other, _ in wanted
    ]
    assert_within(found.cosine, np.array([cosine for *_, cosine in wanted]), cosines(6))
    assert sum(compared) == duplicates.work(37)


def test_of_more_pairs_the_nearest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_HELD", 8)
    monkeypatch.setattr(duplicates, "_ROWS", 4)
    centres = np.random.default_rng(2).normal(size=(60, 4)).astype(np.float32)
    found = pairs_above(Directions(saved_with(tmp_path, centres)), -1, most=10)
    wanted = expected(centres[:, np.newaxis], -1)[:10]
    assert list(zip(found.first.tolist(), found.second.tolist())) == [
        (one, other) for one, other, _ in wanted
    ]


def test_a_pair_needs_that_neither_has_a_much_nearer_class(tmp_path):
    # Two of one person and a look-alike; one person three times; two with nobody else near.
    degrees = [0, 8, 30, 90, 98, 106, 180, 215]
    centres = np.stack([(np.cos(a), np.sin(a)) for a in np.radians(degrees)]).astype(np.float32)
    pairs = pairs_above(Directions(saved_with(tmp_path, centres)), np.cos(np.radians(40)))
    assert {(1, 2), (3, 5)} < set(zip(pairs.first.tolist(), pairs.second.tolist()))
    kept = nearest_of_both(pairs)
    assert sorted(zip(kept.first.tolist(), kept.second.tolist())) == [(0, 1), (3, 4), (4, 5), (6, 7)]


def test_equal_centres_are_pairs_however_often_they_occur(tmp_path):
    centres = np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32)[[0, 0, 0, 1, 2]]
    kept = nearest_of_both(pairs_above(Directions(saved_with(tmp_path, centres)), 0.9))
    assert list(zip(kept.first.tolist(), kept.second.tolist())) == [(0, 1), (0, 2), (1, 2)]


def test_the_second_nearest(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_ROWS", 16)
    centres = np.random.default_rng(3).normal(size=(50, 5))
    unit = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    others = unit @ unit.T - 3 * np.eye(50)
    second = second_nearest(Directions(saved_with(tmp_path, centres.astype(np.float32), world=2)))
    assert_within(second, np.sort(others, axis=1)[:, -2], cosines(5))


def test_the_threshold_is_nearer_than_different_identities_and_not_below_that_of_images():
    cosines = np.cos(np.radians([40.0, 60, 62, 64, 90]))
    threshold, why = choose_threshold(cosines, None)
    assert np.isclose(threshold, np.cos(np.radians(0.65 * 62))) and why.endswith("median cosine is 0.4695")
    assert choose_threshold(cosines, 0.3)[0] == threshold
    assert choose_threshold(cosines, 0.8) == (0.8, "0.8000, the evaluation's threshold of two images")


def test_one_identity_in_three_sets_is_three_pairs(tmp_path):
    rng = np.random.default_rng(4)
    people = rng.normal(size=(300, 64))
    centres = np.concatenate([people, people[:5], people[:5]]) + 0.3 * rng.normal(size=(310, 64))
    folder = saved_with(tmp_path, centres.astype(np.float32)).path
    rows = [line.split()[:2] for line in find_duplicates(str(folder)).splitlines()[3:]]
    expected = [[n, 300 + n] for n in range(5)] + [[n, 305 + n] for n in range(5)]
    expected += [[300 + n, 305 + n] for n in range(5)]
    assert sorted([int(one), int(other)] for one, other in rows) == sorted(expected)


def test_names_are_escaped_on_the_terminal_and_kept_in_the_file(tmp_path):
    names = ["a\x1b[2J", 'b, "\n', "c"]
    folder = saved_with(tmp_path, np.array([[1, 0], [1, 0.1], [0, 1]], np.float32), classes=names).path
    said = find_duplicates(str(folder), 0.9, output=str(tmp_path / "p.csv"))
    assert "\x1b" not in said and 'a\\x1b[2J  b, "\\n   0.9950' in said
    edit_identities(str(folder), str(tmp_path / "merged"), merge_list=str(tmp_path / "p.csv"))
    assert Checkpoint.open(tmp_path / "merged").classes() == [names[0], "c"]


def test_without_names_the_classes_have_numbers(tmp_path):
    folder = saved_with(tmp_path, np.array([[1, 0], [0, 1], [1, 0.1]], np.float32)).path
    assert find_duplicates(str(folder), 0.9).splitlines()[-1].split() == ["0", "2", "0.9950"]


def test_of_two_classes_only_what_is_near_is_a_pair(tmp_path):
    for number, (cosine, found) in enumerate([(0.9, True), (0.4, False), (-1, False)]):
        centres = np.array([[1, 0], [cosine, (1 - cosine**2) ** 0.5]], np.float32)
        said = find_duplicates(str(saved_with(tmp_path / str(number), centres, state={}).path))
        assert said.endswith(": none") != found


def test_sub_centres_that_do_not_fit_the_rows_are_refused(tmp_path):
    for number, each in enumerate((3, 0)):
        with pytest.raises(UserError, match="Head.sub_centres: must divide the rows of 4 numbers"):
            Directions(
                saved_with(
                    tmp_path / str(number),
                    np.eye(4, dtype=np.float32),
                    config=f"Head: {{sub_centres: {each}}}",
                )
            )


def test_mistakes(tmp_path):
    folder = str(save_one(tmp_path, 1, content(0)))
    empty = saved_with(tmp_path / "empty", np.zeros((0, 4), np.float32)).path
    (tmp_path / "there.csv").write_text("")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for options, said in (
        ({"threshold": 1.5}, "--threshold: must be a cosine, from -1 to 1 (got 1.5)"),
        ({"threshold": float("nan")}, "--threshold: must be a cosine, from -1 to 1 (got nan)"),
        ({"top": 0}, "--top: must be at least 1 (got 0)"),
        ({"output": "pairs.txt"}, "--output: must end in .csv (got 'pairs.txt')"),
        (
            {"output": f"{tmp_path}/there.csv"},
            f"{tmp_path}/there.csv: is there already, and nothing is overwritten; name another file",
        ),
        ({"run": f"{tmp_path}/run"}, f"{tmp_path}/run/checkpoints: no checkpoint there; train first"),
        ({"run": str(empty)}, f"{empty}: has no classes to compare; name a checkpoint of a training"),
        ({"run": f"{tmp_path}/none"}, f"{tmp_path}/none: there is no such checkpoint folder"),
    ):
        with pytest.raises(UserError) as raised:
            find_duplicates(**{"run": folder, **options})
        assert str(raised.value) == said
