"""Batches with several images of each class: what an epoch contains, on any number of ranks, from any
step."""

import numpy as np
import pytest

from plsc.config import load
from plsc.data.balanced import balanced_length, balanced_order
from plsc.data.build import build_dataset, build_loader
from plsc.data.loader import Loader
from plsc.entry import Entry
from tests.data.counting import Counting
from tests.helpers.refusals import refusal
from tests.helpers.tiny_runs import TINY

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 3, 4, 5], [8, 3, 1, 6, 4]))  # no image of 2


@pytest.mark.parametrize("m", [2, 3, 4])
def test_groups_are_of_one_class_and_every_image_comes(m):
    order = balanced_order(LABELS, m, np.random.default_rng(1))
    assert len(order) == balanced_length(LABELS, m)
    groups = order.reshape(-1, m)
    assert all(len({*LABELS[group]}) == 1 for group in groups)
    times = np.bincount(order, minlength=len(LABELS))
    assert times.min() == 1
    for label, count in enumerate(np.bincount(LABELS)):
        of_class = times[label == LABELS]
        assert of_class.sum() == -(-count // m) * m and np.ptp(of_class) <= 1 if count else not of_class.size
    for group in groups:  # no image twice in a group unless its class has too few
        assert len({*group}) == min(m, (LABELS == LABELS[group[0]]).sum())
    assert not np.array_equal(order, balanced_order(LABELS, m, np.random.default_rng(2)))


def test_ranks_share_the_batches_of_one_and_a_later_step_continues_them():
    data = Counting(len(LABELS))
    data.labels = LABELS.astype(np.int64)
    loaders = lambda ranks: [Loader(data, 8, rank, ranks, seed=3, per_class=2) for rank in range(ranks)]
    batches = lambda loader, step: [batch.indices for batch in loader.from_step(step)]
    (alone,) = (batches(loader, 0) for loader in loaders(1))
    two = [batches(loader, 0) for loader in loaders(2)]
    assert [[*np.concatenate(both)] for both in zip(*two)] == [[*batch] for batch in alone]
    assert [[*batch] for batch in batches(loaders(1)[0], 1)] == [[*batch] for batch in alone[1:]]
    for batch in two[0][:-1]:
        assert (np.bincount(LABELS[batch]) % 2 == 0).all()


def test_it_trains_and_what_does_not_divide_a_batch_is_refused(tmp_path):
    train = "DataLoader.Train."
    keys = [f"Global.output_dir={tmp_path}", f"{train}per_class=3", "Global.max_steps=2"]
    Entry(TINY, keys).train()
    section = load(TINY, [f"{train}per_class=5"]).DataLoader
    assert refusal(build_loader, section, build_dataset(section, 0), 0, 0, 1) == (
        "DataLoader.Train.per_class: 5 images of each class do not divide batch_size (12); change one of them"
    )
