import numpy as np
import pytest

from plsc.data.batch import make_batch
from plsc.data.corrupt_images import CorruptImages
from plsc.data.transforms import SUBSTITUTES, generator
from plsc.errors import CorruptImageError, MissingFileError, UserError
from tests.data.counting import Counting
from tests.helpers.refusals import refusal


def batch(data, indices, seed=0, epoch=4):
    images = np.empty((len(indices), *data.image_shape), np.uint8)
    return images, make_batch(data, seed, epoch, np.array(indices), images)


def test_samples_are_written_in_order():
    images, replaced = batch(Counting(100), [7, 3, 99])
    assert images[:, 0, 0].tolist() == [[7, 4], [3, 4], [99, 4]] and replaced == []


def test_a_corrupt_sample_is_replaced_by_the_first_sound_one_of_its_own_stream():
    draws = generator(5, index=3, use=SUBSTITUTES).integers(100, size=10).tolist()
    images, replaced = batch(Counting(100, (3,)), [7, 3], seed=5)
    assert replaced == [(1, 3, draws[0])] and images[1, 0, 0].tolist() == [draws[0], 4]
    _, replaced = batch(Counting(100, (3, *draws[:2])), [3, 7, 9], seed=5)
    assert replaced == [(0, 3, draws[2])]
    seeds = {batch(Counting(100, (3,)), [3], seed=seed)[1][0][2] for seed in range(20)}
    assert len(seeds) > 10


def test_a_set_without_any_sound_image_is_an_error():
    assert refusal(batch, Counting(10, tuple(range(10))), [3], kind=CorruptImageError) == (
        "record 3 (train.rec @ 12288): not an image that OpenCV can decode; 100 other images "
        "drawn instead cannot be decoded either"
    )


def test_a_missing_file_is_an_error_not_a_corrupt_image():
    assert (
        refusal(batch, Counting(100, (1,), missing=(3,)), [1, 3], kind=MissingFileError)
        == "3.jpg: no such image"
    )


def test_another_error_is_named_with_its_cause():
    class Faulty(Counting):
        def sample(self, index, epoch):
            return [1, 2][index]

    line = r"^Faulty.sample\(9\) \(record 9 .*\): IndexError in sample, .*:\d+: list index out of range$"
    with pytest.raises(UserError, match=line) as raised:
        batch(Faulty(10), [9])
    assert isinstance(raised.value.__cause__, IndexError)
    assert refusal(batch, Faulty(10), [0]) == (
        "Faulty.sample(0) (record 0 (train.rec @ 0)): must be an array uint8 [1, 1, 2], got int"
    )


def test_a_sample_of_another_dtype_or_shape_is_refused_in_one_line():
    """From batches for training, before the first step (the probe makes such batches), and from those for
    evaluation."""

    class Mine(Counting):
        def sample(self, index, epoch):
            made = super().sample(index, epoch)
            return made.astype(np.float32) if index == 4 else made[..., :1] if index == 5 else made

    for index, got in {4: r"float32 \[1, 1, 2\]; mean and scale .*", 5: r"uint8 \[1, 1, 1\]"}.items():
        line = (
            rf"^Mine.sample\({index}\) \(record {index} .*\): must be an array uint8 \[1, 1, 2\], got {got}$"
        )
        for make in (
            lambda index=index: batch(Mine(10), [0, index]),
            lambda index=index: Mine(10).images(index - 1, index + 1),
            lambda index=index: CorruptImages(Mine(index + 1)).probe(0),
        ):
            with pytest.raises(UserError, match=line if index == 4 else "^Mine.sample"):
                make()
