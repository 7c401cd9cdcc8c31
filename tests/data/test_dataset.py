import numpy as np
import pytest

from plsc.data.dataset import (
    EVALUATION,
    Dataset,
    IdentificationSet,
    PairSet,
    TemplatePairs,
    matched_by_number,
    misnumbered_class,
    shared_identities,
)
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import eval_set
from plsc.utils.preprocessing import Preprocessing
from tests.helpers.refusals import refusal


class Ramp(Dataset):
    num_classes, labels, image_shape = 2, np.array([0, 1, 1]), (3, 4, 5)

    def sample(self, index, epoch):
        return np.full(self.image_shape, index, np.uint8)


class RampPairs(PairSet):
    title = "ramps"
    num_images, image_shape = 4, (1, 2, 2)

    def image(self, index):
        return np.full(self.image_shape, index, np.uint8)


def test_a_data_set_of_your_own_needs_little():
    assert len(Ramp()) == 3
    assert Ramp().name(2) == "sample 2" and Ramp().title == "Ramp"
    assert Ramp().preprocessing == Preprocessing((3, 4, 5))
    with pytest.raises(TypeError, match="sample"):
        Dataset()


def test_images_to_evaluate_on_are_augmented_as_no_epoch_of_training_does():
    data = Synthetic(num_classes=2, images_per_class=3)
    images = data.images(1, 4)
    assert images.shape == (3, *data.image_shape)
    for index, image in enumerate(images, start=1):
        assert np.array_equal(image, data.sample(index, EVALUATION))
        assert not any(np.array_equal(image, data.sample(index, epoch)) for epoch in range(3))


def test_a_pair_set_of_your_own_needs_little():
    pairs = RampPairs()
    assert pairs.title == "ramps"
    assert pairs.images(0, 4).shape == (4, 1, 2, 2)
    assert pairs.images(1, 3)[:, 0, 0, 0].tolist() == [1, 2]
    assert pairs.image_name(3) == "image 3"
    assert pairs.preprocessing.channels == "grey"


def test_shared_identities_are_found_where_both_sets_know_theirs():
    def of(base, **known):
        shared = {"num_images": 4, "title": "known", "image_shape": (1, 2, 2), "labels": np.array([0, 1])}
        shared |= {"pairs": np.array([[0, 1]]), "num_classes": 2, "probe": np.array([0])}
        shared |= {"same": np.array([True]), "gallery": np.array([1])}
        return eval_set(
            type("Known", (base,), {**shared, **dict.fromkeys(("sample", "image")), **known})()
        ).identities

    people, numbers = np.array(["Ann", "Bob"]), np.array([0, 1])
    assert shared_identities(people, of(PairSet, identities=np.array(["Bob", "Cy"]))).tolist() == ["Bob"]
    assert shared_identities(people, of(Dataset, identities=np.array(["Cy"]))).tolist() == []
    assert (
        shared_identities(people, of(PairSet)) is None
        and shared_identities(None, of(PairSet, identities=people)) is None
    )
    assert shared_identities(numbers, of(PairSet, identities=np.array([1, 7]))).tolist() == [1]
    assert shared_identities(people, of(PairSet, identities=numbers)) is None
    gallery = of(IdentificationSet, identities=numbers)
    assert shared_identities(numbers, gallery) is None, "they are numbers of its own"
    gallery = of(IdentificationSet, identities=numbers, names=np.array(["Ann"]))
    assert shared_identities(people, gallery).tolist() == ["Ann"]


def test_a_checkpoint_has_names_that_are_text_one_for_each_class():
    data = Synthetic(2, 1, (1, 2, 2))
    assert data.class_names is None
    for identities, names in (
        (np.array(["Ann", "Bob"]), ["Ann", "Bob"]),
        (np.array(["Ann"]), None),
        (np.array([7, 9]), None),
    ):
        data.identities = identities
        assert data.class_names == names


def made(base, **attributes):
    """A set of 4 images whose arrays are right, except the given ones."""
    arrays = {
        Dataset: {"labels": np.array([0, 1, 1, 0])},
        PairSet: {"pairs": np.array([[0, 3], [1, 2]]), "same": np.array([True, False])},
        IdentificationSet: {
            "gallery": np.array([0, 1]),
            "probe": np.array([3]),
            "identities": np.array([0, 1, 1, 0]),
        },
    }
    arrays[TemplatePairs] = {**arrays[PairSet], "template": np.arange(4), "media": np.arange(4)}
    calls = dict.fromkeys(("sample", "image"))
    shared = {"num_images": 4, "title": "mine", "image_shape": (1, 2, 2), "num_classes": 2}
    return type("Mine", (base,), {**shared, **calls, **arrays[base], **attributes})()


@pytest.mark.parametrize("base", [Dataset, PairSet, TemplatePairs, IdentificationSet])
def test_arrays_as_the_base_class_says_are_taken(base):
    eval_set(made(base)).check()


@pytest.mark.parametrize(
    "base, attributes, line",
    [
        (Dataset, {"labels": [0, 1]}, "labels: must be an array int64 [N], got list"),
        (Dataset, {"labels": np.array([0, 1], np.int32)}, "labels: must be int64 [N], got int32 [2]"),
        (Dataset, {"labels": np.array([-1, 1])}, "labels: must be in [0, 2), has -1 to 1"),
        (PairSet, {"pairs": np.array([[0, 4], [1, 2]])}, "pairs: must be in [0, 4), has 0 to 4"),
        (PairSet, {"pairs": np.array([[0, 1, 2]])}, "pairs: must be int64 [P, 2], got int64 [1, 3]"),
        (PairSet, {"same": np.array([True])}, "same: must be bool [P] of 2 rows, got bool [1]"),
        (PairSet, {"identity_of": np.arange(3)}, "identity_of: must name all 4, names 3"),
        (TemplatePairs, {"template": np.array([0, 0, 1, 1])}, "pairs: must be in [0, 2), has 0 to 3"),
        (IdentificationSet, {"probe": np.array([4])}, "probe: must be in [0, 4), has 4 to 4"),
    ],
)
def test_other_arrays_are_refused(base, attributes, line):
    assert refusal(eval_set(made(base, **attributes)).check) == f"Mine.{line}"


def test_a_class_with_another_number_than_in_training_is_found():
    def named(*names):
        return made(Dataset, identities=np.array(names), num_classes=len(names))

    assert misnumbered_class(["Ann", "Bob", "Cy"], named("Ann", "Bob")) is None
    assert misnumbered_class(["/train/0001", "/train/0002"], named("/val/0001", "/val/0002")) is None
    assert misnumbered_class(None, named("Bob")) is None and misnumbered_class(["Ann"], made(Dataset)) is None
    assert misnumbered_class(["Ann", "Bob"], named("Bob", "Ann")) == (
        "its class 0 is 'Bob', the trained one is 'Ann'"
    )
    text = "its classes differ from the trained ones"
    assert misnumbered_class(["Ann", "Bob"], named("Bob")) == f"{text} (missing: 'Ann')"
    assert misnumbered_class(["Ann", "Bob"], named("Ann"), strangers=True) == f"{text} (missing: 'Bob')"
    many = misnumbered_class(["Ann"], named("Ann", *"abcdefg"))
    assert many == f"{text} (new: 'a', 'b', 'c', 'd', 'e', ... 7 in all)"
    assert misnumbered_class(["Ann", "Ann"], named("Ann"), strangers=True) is None  # the counts tell
    assert (
        misnumbered_class(["Ann", "Bob"], named("Ann_test", "Bob_test")) is None
    )  # folders that are called otherwise
    assert "'Cy'" in misnumbered_class(["Ann", "Bob"], named("Cy", "Dan"), strangers=True)
    unknown = made(Dataset)
    assert matched_by_number(["Ann"], unknown) == "only the trained classes have names"
    assert matched_by_number(None, named("Bob")) == "the trained classes have no names"
    assert matched_by_number(None, unknown) is None and matched_by_number(["Ann"], named("Ann", "x")) is None
