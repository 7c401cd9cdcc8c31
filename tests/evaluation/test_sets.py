"""What the kinds of sets know, and that a user's own class gets its base class's kind."""

import numpy as np
import pytest

from plsc.data.dataset import PairSet
from plsc.data.synthetic import Synthetic
from plsc.evaluation.sets import eval_set
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import NoisePairs
from tests.training.test_evaluator import NoiseGallery, NoiseTemplates

KINDS = {
    "classification": (Synthetic(3, 2, (1, 4, 4)), 6),
    "verification": (NoisePairs(), 80),
    "identification": (NoiseGallery(), 60),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_set_scores_itself(kind):
    data, count = KINDS[kind]
    known = eval_set(data)
    assert known.data is data and (known.count, known.title) == (count, data.title)
    assert known.preprocessing == data.preprocessing
    assert np.array_equal(known.images(2, 4), data.images(2, 4)) and known.name_of(3).endswith("3")
    known.check()
    if kind == "classification":
        result = known.score_predictions(np.zeros(count, np.int64))
    else:
        result = known.score(np.random.default_rng(0).normal(size=(count, 4)))
    assert isinstance(result, known.result) and result.kind == kind
    assert (known.labels is not None) == (kind == "classification")
    assert (known.pairs is not None) == (kind == "verification")


def test_a_side_of_a_template_is_shown_by_its_first_image():
    assert eval_set(NoisePairs()).side(7) == (7, "image 7")
    assert eval_set(NoiseTemplates()).side(7) == (21, "template 7 (3 images): image 21")


class Unfinished(PairSet):
    def __init__(self):
        self.pairs, self.image_shape = np.zeros((3, 2), np.int64), (1, 4, 4)

    def image(self, index):
        return np.zeros((1, 4, 4), np.uint8)


def test_all_that_a_set_of_ones_own_lacks_is_in_one_line():
    said = refusal(eval_set, Unfinished())
    lacks, has = said.split("; a PairSet must set ")
    assert lacks.startswith("Unfinished: does not set ")
    assert {*lacks.removeprefix("Unfinished: does not set ").split(", ")} == {"title", "num_images", "same"}
    every = {"image_shape", "title", "num_images", "pairs", "same"}
    assert {*has.removesuffix(", as plsc/data/dataset.py describes").split(", ")} == every
