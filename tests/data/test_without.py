"""DataLoader.Train.without: which samples stay, and what is refused."""

import json

import numpy as np
import pytest

from plsc.config import load
from plsc.data.without import Without
from plsc.errors import UserError
from tests.helpers.datasets import dataset_of
from tests.helpers.tiny_runs import TINY, DamagedSynthetic, People
from tests.training.test_finetune import OLD, people


def test_the_others_keep_their_images_and_are_numbered_anew():
    data = People(OLD, images_per_class=3)
    some = Without(data, ["p3", "p10", "nobody"])
    assert some.left_out == ["p3", "p10"] and some.num_classes == 9 and len(some) == 27
    assert some.identities.tolist() == [name for name in OLD if name not in ("p3", "p10")]
    assert set(some.labels.tolist()) == set(range(9))
    of = {name: [i for i in range(len(data)) if data.identities[data.labels[i]] == name] for name in OLD}
    for index, label in enumerate(some.labels.tolist()):
        original = of[some.identities[label]].pop(0)
        assert np.array_equal(some.sample(index, 7), data.sample(original, 7))
        assert some.name(index) == data.name(original)
    assert sum(map(len, of.values())) == 6


def test_names_without_identities_stay():
    class Named(People):
        class_names = np.array(OLD)

    data = Named(OLD)
    data.identities = None
    some = Without(data, ["p3"])
    assert some.identities is None and some.class_names.tolist() == [name for name in OLD if name != "p3"]


def test_substitutes_are_the_same_samples():
    class InHalves(People):
        def substitutes(self, index):
            return (0, 15) if index < 15 else (15, 33)

    data = InHalves(OLD, images_per_class=3)
    some = Without(data, ["p3"])
    for index, half in ((0, range(15)), (len(some) - 1, range(15, 33))):
        stay = [data.name(number) for number in half if data.identities[data.labels[number]] != "p3"]
        assert [some.name(number) for number in range(*some.substitutes(index))] == stay


def test_by_the_config():
    out = 'DataLoader.Train.without=["p3"]'
    assert dataset_of(load(TINY, [people(OLD), out])).num_classes == 10
    parts = [{"name": "tests.helpers.tiny_runs:People", "people": names} for names in (["a", "p3"], OLD)]
    two = load(TINY, [f"DataLoader.Train.dataset={json.dumps(parts)}", out])
    assert dataset_of(two).class_names.tolist() == ["a", *OLD[:3], *OLD[4:]]
    for wrong, why in ((["p3", "x"], "no class 'x'"), (OLD, "all 11 classes are left out")):
        with pytest.raises(UserError, match=f"DataLoader.Train.without: .*{why}"):
            dataset_of(load(TINY, [people(OLD), f"DataLoader.Train.without={json.dumps(wrong)}"]))
    with pytest.raises(UserError, match="have no names"):
        Without(DamagedSynthetic(0), ["p3"])
