"""Lists of corrections: what they change in a data set, and which lists are refused."""

import json

import numpy as np
import pytest

from plsc.config import load
from plsc.data.corrections import Corrected, Correction, read_corrections, write_corrections
from plsc.data.dataset import Dataset, class_names
from plsc.data.joined import Joined
from plsc.data.without import Without
from plsc.errors import MissingFileError, UserError
from tests.helpers.datasets import dataset_of


class People(Dataset):
    """Three images of each person; a pixel is the image's number."""

    image_shape = (1, 2, 2)

    def __init__(self, people: list[str], seed: int = 0):
        self.identities = np.array(people)
        self.num_classes = len(people)
        self.labels = np.repeat(np.arange(len(people)), 3)

    def sample(self, index, epoch):
        return np.full(self.image_shape, index + epoch % 2, np.uint8)

    def name(self, index):
        return f"{self.identities[self.labels[index]]}/{index}.jpg"


NAMES = ["Ann", "Bob", "Cy", "Ann\tB"]  # a TAB must not become a column


class Everybody(People):
    """The people of NAMES: a config has no TAB."""

    def __init__(self, seed: int = 0):
        super().__init__(NAMES, seed)


RELABEL = Correction("relabel", 4, 0, 5.5)
DROP = Correction("drop", 6, -1, 3.2)


def into(data, person, other):
    """All samples of a person become another's."""
    return [
        Correction("relabel", sample, other, 4.0) for sample in np.flatnonzero(data.labels == person).tolist()
    ]


ONE_PERSON = into(People(NAMES), 3, 0)


@pytest.fixture
def write(tmp_path):
    """Corrections of People(NAMES) -> the path of their list."""

    def write(*corrections, data=None, proposed=()):
        path = tmp_path / "corrections.tsv"
        write_corrections(path, data or People(NAMES), corrections, proposed)
        return str(path)

    return write


def test_samples_change_their_class_or_go_and_a_class_without_samples_goes(write):
    data = Corrected.of(People(NAMES), write(RELABEL, DROP, *ONE_PERSON))
    assert class_names(data) == ["Ann", "Bob", "Cy"] and data.num_classes == 3
    assert data.labels.tolist() == [0, 0, 0, 1, 0, 1, 2, 2, 0, 0, 0] and data.labels.dtype == np.int64
    # Each sample is the one that it was, augmented alike.
    assert [data.name(index) for index in (5, 6)] == ["Bob/5.jpg", "Cy/7.jpg"]
    assert [int(data.sample(index, 1)[0, 0, 0]) for index in (0, 6, 10)] == [1, 8, 12]
    assert data.preprocessing == People(NAMES).preprocessing and len(data) == 11


def test_proposed_lines_are_not_applied_until_their_sign_is_deleted(write, tmp_path):
    path = write(DROP, proposed=[RELABEL])
    assert read_corrections(path, People(NAMES)) == [DROP]
    edited = tmp_path / "edited.tsv"
    edited.write_text((tmp_path / "corrections.tsv").read_text().replace("# relabel", "relabel"))
    assert read_corrections(edited, People(NAMES)) == [DROP, RELABEL]
    edited.write_bytes(
        b"\xef\xbb\xbf" + edited.read_bytes().replace(b"\n", b"\r\n")
    )  # as some editors save it
    assert read_corrections(edited, People(NAMES)) == [DROP, RELABEL]


def test_lists_follow_each_other(write, tmp_path):
    first = write(DROP, *ONE_PERSON)
    once = Corrected.of(People(NAMES), first)
    second = str(tmp_path / "second.tsv")
    write_corrections(second, once, [Correction("relabel", 6, 1, 3.0)])
    config = load(
        None,
        [
            "DataLoader.Train.dataset={name: tests.data.test_corrections:Everybody}",
            f"DataLoader.Train.corrections=[{first}, {second}]",
            "DataLoader.Eval.dataset=null",
        ],
    )
    data = dataset_of(config)
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 0, 0, 0]
    # Who is left out later does not make the lists those of other data.
    without = dataset_of(load(config, ["DataLoader.Train.without=[Bob]"]))
    assert class_names(without) == ["Ann", "Cy"] and without.labels.tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_sets_that_are_trained_on_together(write):
    parts = {"one": People(["Ann", "Bob"]), "two": People(["Bob", "Cy", "Di"])}
    joined = Joined(parts, own=[False, True])
    data = Corrected.of(joined, write(Correction("drop", 0, -1, 4.0), *into(joined, 4, 3), data=joined))
    assert isinstance(data, Joined) and data.ranges == [(0, 2), (2, 4)]
    assert class_names(data) == ["Ann", "Bob", "People 2/Bob", "Cy"]
    assert data.starts.tolist() == [0, 5, 14] and data.sets_of(np.array([4, 5])).tolist() == [0, 1]
    assert data.substitutes(2) == (0, 5) and data.substitutes(5) == (5, 14)
    with pytest.raises(
        UserError, match="'.*Bob' is a class of a set with head: own; choose one of the same set"
    ):
        Corrected.of(joined, write(Correction("relabel", 0, 2, 4.0), data=joined))
    with pytest.raises(UserError, match="leaves a set with less than 2 classes"):
        Corrected.of(joined, write(*into(joined, 1, 0), data=joined))


def test_people_leave_several_sets_after_the_corrections(write):
    """The list numbers the samples of all; a person leaves every range, or one by its class's name."""
    names = {"one": ["Ann", "Bob", "Eve"], "two": ["Bob", "Cy", "Di", "Fay"]}
    joined = Joined({key: People(people) for key, people in names.items()}, own=[False, True])
    lines = [Correction("drop", 0, -1, 4.0), Correction("relabel", 3, 0, 4.0), *into(joined, 5, 4)]
    sets = [{"name": f"{__name__}:People", "people": people} for people in names.values()]
    sets[1]["head"] = "own"
    given = [f"DataLoader.Train.dataset={json.dumps(sets)}", "DataLoader.Eval.dataset=null"]
    config = load(None, [*given, f"DataLoader.Train.corrections=[{write(*lines, data=joined)}]"])

    def build(*without):
        chosen = load(config, [f"DataLoader.Train.without={json.dumps(without)}"])
        return dataset_of(chosen)

    whole = build()
    assert class_names(whole) == ["Ann", "Bob", "Eve", "People 2/Bob", "Cy", "Fay"]
    for name, gone, ranges in (("Bob", [1, 3], [(0, 2), (2, 4)]), ("People 2/Bob", [3], [(0, 3), (3, 5)])):
        data = build(name)
        rows = np.flatnonzero(~np.isin(whole.labels, gone))
        assert [*map(data.name, range(len(data)))] == [*map(whole.name, rows)]
        assert [class_names(data)[k] for k in data.labels] == [
            class_names(whole)[k] for k in whole.labels[rows]
        ]
        assert np.array_equal(data.sets_of(np.arange(len(data))), whole.sets_of(rows))
        assert np.array_equal(data.sample(len(data) - 1, 1), whole.sample(rows[-1], 1))
        assert data.ranges == ranges
    for out, why in (
        (["Ann", "Bob", "Eve"], "DataLoader.Train.without: leaves a set with less than 2 classes"),
        (["Bob", "Di"], "DataLoader.Train.without: the data have no class 'Di'"),  # it is Cy now
    ):
        with pytest.raises(UserError, match=why):
            build(*out)


def test_a_set_that_is_left_without_samples_is_refused():
    joined = Joined({"one": People(["Ann"]), "two": People(["Bob", "Cy"])}, own=[False, False])
    with pytest.raises(UserError, match="leaves no sample of 'People'; take that set out"):
        Without.of(joined, ["Ann"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("drop\t6\tCy/6.jpg", "drop\t7\tCy/6.jpg"), ":4: sample 7 is 'Cy/7.jpg' in the data, 'Cy/6.jpg' in the list"),
        (("Ann\t5.5", "Anna\t5.5"), ":3: class 0 is 'Ann' in the data, 'Anna' in the list"),
        (("drop\t6", "drop\t99"), ":4: must be a number below 12, got '99'"),
        (("drop\t6", "drop\t-1"), ":4: must be a number below 12, got '-1'"),
        (("drop", "remove"), ":4: must be relabel or drop and five more columns"),
        (("3.200", "high"), ":4: the score must be a number, got 'high'"),
        (("drop\t6\tCy/6.jpg", "drop\t4\tBob/4.jpg"), ":4: corrects the same as line 3; delete one of the two"),
        (("in 4 classes", "in 5 classes"), "is of other data than DataLoader.Train.dataset"),
        (("# plsc corrections 1", "hello"), "is no list of corrections; plsc doctor --trained writes one"),
    ],
)  # fmt: skip
def test_a_list_that_does_not_fit_is_refused_in_a_line(write, change, message):
    path = write(RELABEL, DROP)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert change[0] in text
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(*change))
    with pytest.raises(UserError) as caught:
        Corrected.of(People(NAMES), path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_other_data_and_a_missing_list_are_refused(write, tmp_path):
    path = write(DROP)
    with pytest.raises(UserError, match="is of other data"):
        Corrected.of(People(["Ann", "Bob", "Di", "Ann\tB"]), path)
    config = load(None, [f"DataLoader.Train.corrections=[{tmp_path}/none.tsv]"])
    with pytest.raises(
        MissingFileError, match=r"^-o.*DataLoader.Train.corrections: .*none.tsv: no such list"
    ):
        dataset_of(config)
