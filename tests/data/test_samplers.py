import numpy as np

from plsc.data.loader import Loader
from plsc.data.samplers import Sampler, Shuffle
from plsc.data.synthetic import Synthetic
from plsc.data.transforms import ORDER, generator


class Fixed(Sampler):
    """Sample 3 four times, then 0 to 6, in every epoch."""

    def __len__(self):
        return 11

    def order(self, epoch):
        return np.concatenate([np.full(4, 3), np.arange(7)])


def test_shuffle_has_the_order_of_runs_before_there_were_samplers():
    for epoch in (0, 3):
        expected = generator(5, epoch, use=ORDER).permutation(20)
        assert np.array_equal(Shuffle(20, seed=5).order(epoch), expected)


def test_the_loader_cuts_what_the_sampler_gives():
    def epoch_of(rank, start_step=0):
        loader = Loader(Synthetic(5, 2), 4, rank, 2, seed=0, sampler=Fixed())
        assert loader.steps_per_epoch == 1  # the rest, 3 samples, is less than two on each rank
        return [indices.tolist() for _, _, indices in loader.epoch(1, start_step)]

    assert epoch_of(0) == [[3, 3, 3, 3, 0, 1]] and epoch_of(1) == [[2, 3, 4, 5, 6]]
    loader = Loader(Synthetic(5, 2), 4, 0, 1, seed=0, sampler=Fixed())
    assert [indices.tolist() for _, _, indices in loader.epoch(1, 1)] == [[0, 1, 2, 3], [4, 5, 6]]
