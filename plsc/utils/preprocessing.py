"""Describe a data set's images, and convert them to the network's input.

    Preprocessing((3, 112, 112))     # uint8 pixels; (pixel - 127.5) * (1 / 127.5) lies in [-1, 1]

A data set defines its preprocessing, and a checkpoint stores it. Training, evaluation, prediction, export and
`plsc doctor` use it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass

MEAN, SCALE = 127.5, 1 / 127.5  # applied to pixels
_NAMES = {1: "grey", 3: "RGB"}

_Side = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Preprocessing:
    """Converts images, uint8 [C, H, W], to the network's input, float32.

    Args:
        shape: (C, H, W).
        mean: number that is subtracted from a pixel, before the scale.
        scale: factor on the difference.
        channels: "grey", "RGB", "BGR", or the channel count. "" means grey for one and RGB for three.
        aligned: whether the images are faces whose landmarks are at ArcFace's positions, as `plsc align`
            writes them. None if it is not known.
    """

    shape: tuple[_Side, _Side, _Side]
    mean: FiniteFloat = MEAN
    scale: Annotated[FiniteFloat, Field(gt=0)] = SCALE
    channels: str = ""
    aligned: bool | None = None

    def __post_init__(self):
        if not self.channels:
            object.__setattr__(self, "channels", _NAMES.get(self.shape[0], str(self.shape[0])))

    @property
    def darkest(self) -> float | None:
        """An image without a pixel above this number gets a zero embedding, because it is black, or because
        it was already normalised.

        None means that every image counts. That is so if mean and scale change nothing: then no image can
        be normalised twice, and the bytes may be something else than brightness, such as letters.
        """
        return None if (self.mean, self.scale) == (0, 1) else 3.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, from which it can be built again. An unknown `aligned` is
        omitted."""
        fields = {**vars(self), "shape": list(self.shape)}
        return {name: value for name, value in fields.items() if value is not None}

    def differences(self, other: Preprocessing) -> list[tuple[str, Any, Any]]:
        """List the fields that differ from `other`: name, own value, other's value.

        A field that is unknown on one side does not differ.
        """
        ours, theirs = self.to_json(), other.to_json()
        both = (name for name in ours if name in theirs)
        return [(name, ours[name], theirs[name]) for name in both if ours[name] != theirs[name]]

    def __call__(self, pixels: Any) -> Any:
        """Convert images [n, C, H, W], an array or a tensor, to the network's input, float32 with the same
        shape."""
        return (pixels.astype("float32") - self.mean) * self.scale
