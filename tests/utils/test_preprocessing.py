"""Preprocessing: what a data set declares is checked, and arrays and tensors come out the same to the bit."""

import numpy as np
import paddle
import pytest

from plsc.data.dataset import Dataset
from plsc.errors import UserError
from plsc.utils.preprocessing import Preprocessing


class Anything(Dataset):
    num_classes, labels = 2, np.array([0, 1])

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)

    def sample(self, index: int, epoch: int) -> np.ndarray:
        return np.zeros(self.image_shape, np.uint8)


def test_images_need_only_their_shape():
    found = Anything(image_shape=(3, 4, 5)).preprocessing
    assert found == Preprocessing((3, 4, 5), 127.5, 1 / 127.5, "RGB")
    assert [Preprocessing((count, 4, 5)).channels for count in (1, 4)] == ["grey", "4"]


def test_arrays_and_tensors_come_out_the_same():
    preprocessing = Preprocessing((1, 5, 10))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 1, 5, 10), np.uint8)
    array, tensor = preprocessing(pixels), preprocessing(paddle.to_tensor(pixels)).numpy()
    assert array.dtype == np.float32 and array.tobytes() == tensor.tobytes()


def test_json_keeps_everything():
    for one in (Preprocessing((1, 2, 3), 1.0, 0.5), Preprocessing((3, 2, 9), channels="BGR", aligned=False)):
        assert Preprocessing(**one.to_json()) == one
    assert "aligned" not in Preprocessing((1, 2, 3)).to_json()


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ({}, "image_shape: is not set"),
        (
            {"image_shape": (128,)},
            "image_shape: must be three numbers (C, H, W), got (128,); for data without channels or",
        ),
        ({"image_shape": (3, 4, 0)}, "image_shape: Input should be greater than or equal to 1"),
        ({"image_shape": 7}, "image_shape: must be three numbers (C, H, W), got 7;"),
        ({"image_shape": (1, 4, 4), "mean": np.zeros(4)}, "mean: Input should be a valid number"),
        ({"image_shape": (1, 4, 4), "scale": float("nan")}, "scale: Input should be a finite number"),
    ],
)
def test_wrong_attributes_are_named(attributes, line):
    with pytest.raises(UserError) as raised:
        _ = Anything(**attributes).preprocessing
    assert str(raised.value).startswith(f"Anything.{line}")


def test_what_is_not_known_of_one_is_no_difference():
    plain = Preprocessing((3, 8, 8))
    aligned, other = (Preprocessing((3, 8, 8), aligned=value) for value in (True, False))
    assert plain.differences(aligned) == aligned.differences(plain) == []
    assert aligned.differences(other) == [("aligned", True, False)]
    assert plain.differences(Preprocessing((3, 8, 9)))[0][0] == "shape"
