import numpy as np

from plsc.data.synthetic import Synthetic


def test_samples_of_a_class_resemble_each_other():
    data = Synthetic(num_classes=5, images_per_class=3, image_shape=(3, 16, 20), seed=1)
    assert len(data) == 15 and data.num_classes == 5 and data.labels.tolist() == sorted([*range(5)] * 3)
    images = np.stack([data.sample(index, 0) for index in range(15)]).astype(float)
    assert images.shape == (15, 3, 16, 20) and images.max() <= 255
    distance = np.abs(images[:, None] - images[None]).mean((2, 3, 4))
    same = data.labels[:, None] == data.labels
    assert distance[same].max() < 25 and distance[~same].min() > 40


def test_a_sample_depends_on_seed_epoch_and_index_only():
    data = Synthetic(4, 2, seed=3)
    sample = data.sample(5, 1)
    assert sample.dtype == np.uint8 and sample.shape == (1, 32, 32)
    assert np.array_equal(sample, Synthetic(4, 2, seed=3).sample(5, 1))
    for other in (data.sample(4, 1), data.sample(5, 0), Synthetic(4, 2, seed=4).sample(5, 1)):
        assert not np.array_equal(sample, other)


def test_identities_are_spread_over_the_classes():
    data = Synthetic(num_classes=10, images_per_class=2, identities=3)
    assert data.num_classes == 10 and data.labels.tolist() == [0, 0, 3, 3, 6, 6]
