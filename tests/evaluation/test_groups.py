"""Groups of identities or images: which pairs are theirs, and what the threshold of all does to them."""

import json

import numpy as np
import pytest

from plsc.data.dataset import PairSet, TemplatePairs
from plsc.errors import UserError
from plsc.evaluation import verify_pairs
from plsc.evaluation.groups import group_pairs, read_groups
from plsc.evaluation.sets import eval_set

PEOPLE = np.array([f"person {number}" for number in range(30)])


class People(PairSet):
    """60 images of 30 people, the first 20 alike within their group."""

    name = "people"
    num_images = 60
    image_shape = (1, 4, 4)
    identity_of = np.repeat(PEOPLE, 2)
    pairs = np.stack(np.triu_indices(60, 1), axis=1)
    same = identity_of[pairs[:, 0]] == identity_of[pairs[:, 1]]

    def image(self, index):
        return np.zeros((1, 4, 4), np.uint8)


def embeddings():
    rng = np.random.default_rng(0)
    person = rng.normal(size=(30, 16))
    person[:20] += 2  # these resemble each other
    return person.repeat(2, axis=0) + 0.3 * rng.normal(size=(60, 16))


def write(tmp_path, text):
    (tmp_path / "groups.csv").write_text(text)
    return str(tmp_path / "groups.csv")


def verified(data):
    return verify_pairs(embeddings(), data.pairs, data.same, identity_of=data.identity_of)


def test_a_pair_is_of_a_group_if_both_of_its_images_are(tmp_path):
    lines = [f"person {k},{'alike' if k < 20 else 'others'}" for k in range(28)]
    grouping = group_pairs(read_groups(write(tmp_path, "\n".join(lines))), People())
    assert grouping.names == ["alike", "others"]
    first, second = People.pairs.T // 2
    np.testing.assert_array_equal(grouping.of_pair == 0, (first < 20) & (second < 20))
    np.testing.assert_array_equal(
        grouping.of_pair == 1, (first >= 20) & (second >= 20) & (first < 28) & (second < 28)
    )
    assert len(grouping.notes) == 1 and "of 1,770" in grouping.notes[0]


def test_the_threshold_of_all_accepts_more_within_a_group_that_is_alike(tmp_path):
    lines = [f"person {k}\t{'alike' if k < 20 else 'others'}" for k in range(30)]
    result = verified(People()).with_groups(
        group_pairs(read_groups(write(tmp_path, "\n".join(lines))), People())
    )
    alike, others = result.groups
    assert (alike.same, alike.different) == (20, 40 * 39 // 2 - 20)
    assert alike.far_at_common[0] > 0.1 > others.far_at_common[0]
    assert alike.thresholds[0].cosine > result.thresholds[0].cosine > others.thresholds[0].cosine
    stored = result.calibration("people", 1, False)
    assert stored.threshold(0.1, group="alike") == alike.thresholds[0].cosine
    numbers = json.loads(json.dumps(result.numbers(), allow_nan=False))["groups"]
    assert numbers["others"]["far_at_common"] == others.far_at_common


def test_an_image_may_have_another_group_than_its_identity(tmp_path):
    groups = read_groups(write(tmp_path, "person 0,a\nperson 1,a\nimage 3,b\nimage 4,b\n\nnobody,b\n"))
    data = People()
    grouping = group_pairs(groups, data)
    theirs = [sorted(map(tuple, data.pairs[grouping.of_pair == place].tolist())) for place in (0, 1)]
    assert theirs == [[(0, 1), (0, 2), (1, 2)], [(3, 4)]]
    assert grouping.notes[1] == "Names in --groups that are not in the set: 1 of 5, such as nobody."


def test_groups_with_too_few_pairs_are_named(tmp_path):
    groups = read_groups(write(tmp_path, "person 0,a\nperson 1,a\nperson 2,b"))
    result = verified(People()).with_groups(group_pairs(groups, People()))
    assert [(group.name, group.different, group.thresholds) for group in result.groups] == [
        ("a", 4, []),
        ("b", 0, []),
    ]
    assert result.notes[-1] == "Groups with too few different pairs for a threshold: a (4), b (0)."
    assert result.calibration("people", 1, False).groups == {"a": [], "b": []}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("person 0\nperson 1,a", "line 1: must be 'name<TAB>group'"),
        ("person 0,a\nperson 0,b", "line 2: 'person 0' is in group 'a' already"),
        ("\x1b[31m,a,b", r"got '\\x1b\[31m,a,b'"),
        (
            "nobody,a",
            "none of its 1 names is in 'people', whose first image is 'image 0', its identity 'person 0'",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, why):
    with pytest.raises(UserError, match=f"^--groups: .*{why}") as refused:
        group_pairs(read_groups(write(tmp_path, text)), People())
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value)


def test_more_groups_than_are_stored_are_refused():
    class Crowd(People):
        identity_of = np.array([f"person {number}" for number in range(10_001)])
        num_images = 10_001

    groups = {name: name for name in Crowd.identity_of.tolist()}
    with pytest.raises(UserError, match="^--groups: 10,001 groups are too many; name at most 10,000"):
        group_pairs(groups, Crowd())


def test_templates_have_no_groups():
    class Templates(TemplatePairs, People):
        pass

    with pytest.raises(UserError, match="'people' has templates"):
        eval_set(Templates()).group({"person 0": "a"})
