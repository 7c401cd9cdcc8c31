"""Describe the samples of a data set, and turn them into the network's input.

    Preprocessing.of_images((3, 112, 112))       # uint8 pixels; (pixel - 127.5) * (1 / 127.5) lies in [-1, 1]
    Preprocessing((1, 40, 100), "float32")       # any other samples; they are the input as they are

The data set has it; training, evaluation, prediction, export and plsc doctor use it; a checkpoint keeps it.
Whatever the dtype, the network's input is float32: of float64 and of integers beyond 2**24 the last digits
are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from plsc.errors import UserError

MEAN, SCALE = 127.5, 1 / 127.5  # of pixels
DARKEST = 3.0  # an image without a brighter pixel was normalised before, by whatever mean and deviation, or is black
_NAMES = {1: "grey", 3: "RGB"}

Samples = TypeVar("Samples")
"""A NumPy array or a Paddle tensor."""


@dataclass(frozen=True)
class Preprocessing:
    """Turns samples into the network's input.

    shape, dtype: of one sample. channels: of an image "grey", "RGB" or "BGR", or how many they are; None: the
    samples
    are no images. aligned: whether the images are faces whose landmarks lie at ArcFace's places, as `plsc
    align` writes them;
    None: not known.
    """

    shape: tuple[int, ...]
    dtype: str = "uint8"
    channels: str | None = None
    mean: float = 0.0
    scale: float = 1.0
    aligned: bool | None = None

    @classmethod
    def of_images(
        cls,
        shape: tuple[int, int, int],
        mean: float = MEAN,
        scale: float = SCALE,
        channels: str | None = None,
        aligned: bool | None = None,
    ) -> Preprocessing:
        """Describe uint8 images [C, H, W]; the channels of one are grey, of three RGB, unless they are
        given."""
        return cls(
            tuple(shape), "uint8", channels or _NAMES.get(shape[0], str(shape[0])), mean, scale, aligned
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """Build it from what `to_json` gave."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, without `aligned` where that is not known."""
        fields = {**asdict(self), "shape": list(self.shape)}
        if self.aligned is None:
            del fields["aligned"]
        return fields

    def differences(self, other: Preprocessing) -> list[tuple[str, Any, Any]]:
        """List the fields that `other` has otherwise: name, own value, its value. What is not known of one is
        no difference."""
        ours, theirs = self.to_json(), other.to_json()
        both = (name for name in ours if name in theirs)
        return [(name, ours[name], theirs[name]) for name in both if ours[name] != theirs[name]]

    @property
    def is_image(self) -> bool:
        """Say whether the samples are images."""
        return self.channels is not None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        return self.shape[1], self.shape[2]

    @property
    def samples(self) -> str:
        """Describe a sample for messages: "float32 [1, 40, 100]"."""
        return f"{self.dtype} {list(self.shape)}"

    def __call__(self, samples: Samples) -> Samples:
        """Prepare samples [n, *shape], an array or a tensor: the network's input, float32."""
        samples = samples.astype("float32")
        if (self.mean, self.scale) == (0, 1):
            return samples
        return (samples - self.mean) * self.scale

    def empty(self, count: int) -> np.ndarray:
        """Allocate an array for `count` samples."""
        return np.empty((count, *self.shape), self.dtype)


def check_sample(
    made: object, shape: tuple[int, ...], dtype: np.dtype, what: Callable[[], str]
) -> np.ndarray:
    """Refuse a sample without the shape and dtype that its set declares; UserError calls it `what()`."""
    dtype = np.dtype(dtype)
    if isinstance(made, np.ndarray) and made.dtype == dtype and made.shape == tuple(shape):
        return made
    got = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
    remedy = ""
    if "float" in got and dtype == np.uint8:
        remedy = "; mean and scale of the set normalise the pixels later (samples that are no images: sample_shape and sample_dtype)"
    raise UserError(
        f"{what()}: must be an array {dtype} {list(shape)} like every sample of its set, got {got}{remedy}"
    )


def preprocessing_of(data: Any) -> Preprocessing:
    """Read the attributes of a data set (see plsc.data.dataset.SampleSet). UserError names one that is
    wrong."""
    where = type(data).__name__
    pixels = data.image_shape is not None
    if pixels and (data.sample_shape is not None or data.sample_dtype not in (None, "uint8", np.uint8)):
        raise UserError(
            f"{where}.image_shape: is of uint8 images; other samples have sample_shape and sample_dtype instead"
        )
    shape = _shape(data, "image_shape" if pixels else "sample_shape", where)
    mean, scale = (
        default if value is None else _number(value, f"{where}.{name}")
        for name, value, default in (
            ("mean", data.mean, MEAN if pixels else 0.0),
            ("scale", data.scale, SCALE if pixels else 1.0),
        )
    )
    if pixels:
        return Preprocessing.of_images(shape, mean, scale, data.channels, data.aligned)
    return Preprocessing(shape, _dtype(data.sample_dtype, where), None, mean, scale)


def _shape(data: Any, name: str, where: str) -> tuple[int, ...]:
    shape = getattr(data, name)
    if shape is None:
        raise UserError(
            f"{where}.sample_shape: is not set; it is the shape of a sample, of images image_shape"
        )
    fits = isinstance(shape, (tuple, list)) and shape and all(isinstance(n, (int, np.integer)) for n in shape)
    axes = 3 if name == "image_shape" else None
    if not fits or min(shape) < 1 or len(shape) != (axes or len(shape)):
        wanted = "[C, H, W]" if axes else "whole numbers"
        raise UserError(f"{where}.{name}: must be {wanted} of at least 1 each, got {shape!r}")
    return tuple(map(int, shape))


def _dtype(given: Any, where: str) -> str:
    try:
        dtype = np.dtype("float32" if given is None else given)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        raise UserError(
            f"{where}.sample_dtype: must be a dtype of numbers of NumPy such as float32, got {given!r}"
        )
    return dtype.name


def _number(value: Any, where: str) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)) or not math.isfinite(value):
        raise UserError(f"{where}: must be one number, got {value!r}")
    return float(value)
