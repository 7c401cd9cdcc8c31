"""Preprocessing: the attributes of a set are checked, and arrays and tensors come out the same to the bit."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from plsc.data.dataset import Dataset
from plsc.data.preprocessing import Preprocessing
from plsc.errors import UserError


class Anything(Dataset):
    num_classes, labels = 2, np.array([0, 1])

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return np.zeros(self.preprocessing.shape, self.preprocessing.dtype)


def test_images_need_only_their_shape():
    found = Anything(image_shape=(3, 4, 5)).preprocessing
    assert found == Preprocessing((3, 4, 5), "uint8", "RGB", 127.5, 1 / 127.5) and found.is_image


def test_other_samples_are_the_input_as_they_are():
    found = Anything(sample_shape=[7]).preprocessing
    assert found == Preprocessing((7,), "float32", None, 0.0, 1.0) and not found.is_image
    samples = np.array([[0.1, -0.0, np.inf, np.float32(1e-45), 3e38, -1, 2]], np.float32)
    assert found(samples).tobytes() == samples.tobytes()
    assert found(paddle.to_tensor(samples)).numpy().tobytes() == samples.tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int32"])
def test_arrays_and_tensors_come_out_the_same(dtype):
    preprocessing = Preprocessing((50,), dtype, None, 127.5, 1 / 127.5)
    samples = np.random.default_rng(0).integers(0, 256, (4, 50)).astype(dtype)
    array, tensor = preprocessing(samples), preprocessing(paddle.to_tensor(samples)).numpy()
    assert array.dtype == np.float32 and array.tobytes() == tensor.tobytes()


def test_json_keeps_everything():
    for one in (Preprocessing.of_images((1, 2, 3), 1.0, 0.5), Preprocessing((2, 9), "int16", None, 3.0, 0.1)):
        assert Preprocessing.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ({}, "sample_shape: is not set"),
        ({"image_shape": (3, 4)}, r"image_shape: must be \[C, H, W\] of at least 1 each, got \(3, 4\)"),
        ({"sample_shape": ()}, "sample_shape: must be whole numbers"),
        ({"sample_shape": (1, 0)}, r"sample_shape: .* got \(1, 0\)"),
        ({"sample_shape": (1.5,)}, "sample_shape: must be whole numbers"),
        ({"sample_shape": (4,), "sample_dtype": object}, "sample_dtype: must be a dtype of numbers"),
        ({"sample_shape": (4,), "sample_dtype": "U3"}, "sample_dtype: must be a dtype of numbers"),
        ({"sample_shape": (4,), "sample_dtype": ">f4"}, "sample_dtype: must be a dtype of numbers"),
        ({"sample_shape": (4,), "sample_dtype": "no"}, "sample_dtype: must be .*, got 'no'"),
        ({"image_shape": (1, 4, 4), "sample_dtype": "float32"}, "image_shape: is of uint8 images"),
        ({"sample_shape": (4,), "mean": np.zeros(4)}, "mean: must be one number"),
        ({"sample_shape": (4,), "scale": float("nan")}, "scale: must be one number, got nan"),
    ],
)
def test_wrong_attributes_are_refused_by_name(attributes, line):
    with pytest.raises(UserError, match=f"^Anything.{line}") as error:
        Anything(**attributes).preprocessing  # noqa: B018
    assert "\n" not in str(error.value)


def test_alignment_is_part_of_it_where_it_is_known():
    plain = Preprocessing.of_images((3, 8, 8))
    assert "aligned" not in plain.to_json()  # the identity of networks of which it is not known stays
    aligned, other = (Preprocessing.of_images((3, 8, 8), aligned=value) for value in (True, False))
    assert aligned.to_json()["aligned"] is True and Preprocessing.from_json(aligned.to_json()) == aligned
    assert aligned.differences(other) == [("aligned", True, False)]
    assert aligned.differences(plain) == plain.differences(aligned) == []
    assert Anything(image_shape=(3, 8, 8), aligned=True).preprocessing == aligned
