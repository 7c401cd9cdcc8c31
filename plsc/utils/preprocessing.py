"""Describe the images of a data set, and turn them into the network's input.

    Preprocessing((3, 112, 112))     # uint8 pixels; (pixel - 127.5) * (1 / 127.5) lies in [-1, 1]

The data set has it; training, evaluation, prediction, export and plsc doctor use it; a checkpoint keeps it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass

MEAN, SCALE = 127.5, 1 / 127.5  # of pixels
# An image without a brighter pixel was normalised before, by whatever mean and deviation, or is black.
DARKEST = 3.0
_NAMES = {1: "grey", 3: "RGB"}

_Side = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Preprocessing:
    """Turns images, uint8 [C, H, W], into the network's input, float32.

    shape: [C, H, W]. channels: "grey", "RGB" or "BGR", or how many they are; "": grey for one, RGB for three.
    aligned: whether the images are faces whose landmarks lie at ArcFace's places, as `plsc align` writes
    them; None: not known.
    """

    shape: tuple[_Side, _Side, _Side]
    mean: FiniteFloat = MEAN
    scale: FiniteFloat = SCALE
    channels: str = ""
    aligned: bool | None = None

    def __post_init__(self):
        if not self.channels:
            object.__setattr__(self, "channels", _NAMES.get(self.shape[0], str(self.shape[0])))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, which build it again, without an `aligned` that is not known."""
        fields = {**vars(self), "shape": list(self.shape)}
        return {name: value for name, value in fields.items() if value is not None}

    def differences(self, other: Preprocessing) -> list[tuple[str, Any, Any]]:
        """List the fields that `other` has otherwise: name, own value, its value.

        What is not known of one is no difference.
        """
        ours, theirs = self.to_json(), other.to_json()
        both = (name for name in ours if name in theirs)
        return [(name, ours[name], theirs[name]) for name in both if ours[name] != theirs[name]]

    def __call__(self, pixels: Any) -> Any:
        """Prepare images [n, C, H, W], an array or a tensor: the network's input, float32."""
        return (pixels.astype("float32") - self.mean) * self.scale
