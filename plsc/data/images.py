"""Decode pictures by OpenCV, resize them for the network, and augment them in training.

`EncodedImages` is what all formats of labelled image files share, `EncodedPairs` the same for verification: a
format only says where the bytes of an image are. Prediction, galleries and the service make their samples by
`read_sample` or `to_sample`, too, so that a picture is prepared there exactly as it was in training.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Annotated, Literal

import cv2
import numpy as np
from pydantic import Field

from plsc.data import MOST_PIXELS
from plsc.data.augment import Augment
from plsc.data.dataset import Dataset, PairSet, count_classes
from plsc.data.hold_out import choose_held_out
from plsc.data.transforms import generator, resize
from plsc.errors import CorruptImageError, UserError, escape, reading
from plsc.utils.files import read_regular
from plsc.utils.preprocessing import MEAN, SCALE, Preprocessing

DARK = 10  # mean of 255: below, there is next to nothing in a picture
DIM = 64  # nor in one without larger values: 14 bits of 16 reach 64
CHANNELS = {"RGB": 3, "BGR": 3, "grey": 1}

Side = Annotated[int, Field(ge=1, le=math.isqrt(MOST_PIXELS))]
UpTo1 = Annotated[float, Field(ge=0, le=1)]
Below1 = Annotated[float, Field(ge=0, lt=1)]


def read_file(path: str) -> np.ndarray:
    """Read the bytes of a file, uint8 [n]. Raises MissingFileError, or UserError if it cannot be read."""
    with reading(path, missing="no such image"):
        try:
            return np.frombuffer(read_regular(path), np.uint8)
        except IsADirectoryError:
            raise UserError(f"{escape(path)}: is a folder; name the pictures in it") from None


def _is_cut_off_png(data: np.ndarray) -> bool:
    """Say whether a chunk of a PNG reaches beyond its end: OpenCV 5 allocates what a chunk's length says,
    4 GB for 61 bytes."""
    at, kind = 8 if data[:8].tobytes() == b"\x89PNG\r\n\x1a\n" else len(data), b""
    while at < len(data) and kind != b"IEND":
        length, kind = data[at : at + 4].tobytes(), data[at + 4 : at + 8].tobytes()
        at += 12 + int.from_bytes(length, "big")  # length, kind, content and checksum
    return at > len(data)


def decode_pixels(data: np.ndarray, grey: bool, name: Callable[[], str]) -> np.ndarray:
    """Decode an image, uint8 [n], unchanged: uint8 [H, W, 3] in OpenCV's order BGR, or grey [H, W]. Raises
    CorruptImageError, with the image's `name()`, also for one of more than MOST_PIXELS."""
    try:
        flags = cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR
        picture = cv2.imdecode(data, flags) if data.size and not _is_cut_off_png(data) else None
    except cv2.error:  # where a header is impossible or promises too much; else None is returned
        picture = None
    if picture is None:
        raise CorruptImageError(
            f"{escape(name())}: not an image that OpenCV can decode ({data.size} bytes); cut off, not an "
            f"image, or of more than {MOST_PIXELS:,} pixels?"
        )
    return picture


def read_sample(
    picture: str | np.ndarray,
    preprocessing: Preprocessing,
    name: Callable[[], str] | None = None,
    augment: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Read a picture for the network: uint8 [C, H, W] of the preprocessing's size and channels.

    Args:
        picture: the path of a file, or its bytes, uint8 [n].
        name: of the picture, for messages; None: the path. augment: as in `to_sample`.

    Raises what read_file and decode_pixels raise.
    """
    data = read_file(picture) if isinstance(picture, str) else picture
    pixels = decode_pixels(data, preprocessing.channels == "grey", name or (lambda: picture))
    return to_sample(pixels, preprocessing, augment)


def to_sample(
    pixels: np.ndarray,
    preprocessing: Preprocessing,
    augment: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Turn pixels as decode_pixels gives them into a sample; the ratio of their sides is not kept.

    augment: changes them once they have their size.
    """
    if preprocessing.channels == "grey" and pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    pixels = resize(pixels, *preprocessing.shape[1:])
    if augment:
        pixels = augment(pixels)
    if pixels.ndim == 2:
        return pixels[np.newaxis]
    sample = np.empty((3, *pixels.shape[:2]), np.uint8)
    # OpenCV splits in one pass, several times faster than NumPy copies a transposed view.
    cv2.split(pixels, list(sample[::-1] if preprocessing.channels == "RGB" else sample))
    return sample


def is_dark(pixels: np.ndarray) -> bool:
    """Say whether there is next to nothing in a picture."""
    return bool(pixels.mean() < DARK or pixels.max() <= DIM or pixels.min() == pixels.max())


def why_dark(data: np.ndarray | None, pixels: np.ndarray) -> str:
    """Say why there is next to nothing in a picture: pictures of 10 to 14 bits in 16-bit files are read as
    nearly black, since 16 bits are divided by 256."""
    whole = None if data is None else cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if whole is not None and whole.dtype == np.uint16 and whole.max() < 2**15:
        return f"16-bit, largest value {whole.max():,}: read as nearly black; scale to 65,535 or to 8 bits"
    if pixels.min() == pixels.max():
        return f"all pixels are {pixels.max()}"
    return f"its mean is {pixels.mean():.1f} of 255, its largest value {pixels.max()}"


class Encoded:
    """The preprocessing of a set of encoded images."""

    def __init__(
        self,
        size: Side | tuple[Side, Side] = (112, 112),
        channels: Literal["RGB", "BGR", "grey"] = "RGB",
        mean: float = MEAN,
        scale: Annotated[float, Field(gt=0)] = SCALE,
        aligned: bool | None = None,
    ):
        self.image_shape = (CHANNELS[channels], *((size, size) if isinstance(size, int) else size))
        self.channels = channels
        self.mean = mean
        self.scale = scale
        self.aligned = aligned

    @abstractmethod
    def encoded(self, index: int) -> np.ndarray:
        """Return the stored bytes of image `index`: uint8 [n]."""


class EncodedImages(Encoded, Dataset):
    """Labelled images that are decoded when they are needed; the base of all formats.

    `size`: [height, width] that images are resized to, or an integer for both. `channels`: "RGB", "BGR" or
    "grey". The network sees (pixel - `mean`) * `scale`. `aligned`: whether the images are faces that `plsc
    align` has aligned, or another program to ArcFace's places; a gallery of the run then finds and aligns
    faces, too. null: not known, but a folder that `plsc align` wrote is. What training changes in a
    picture, drawn anew each epoch, all off by default:

    `flip`: mirror half of the images: faces, most products; never writing. `crop`: the share of the sides
    that may be cut off; the rest is resized back: 0.15 for boxes of a detector, 0.1 for aligned faces.
    `colour`: brightness, contrast and saturation each times 1 - colour to 1 + colour: 0.3 for cameras of many
    kinds, little where colour tells products apart. `low_resolution`: probability that it is shrunk, to a
    quarter of its sides at least, and enlarged again: 0.2 for small faces in large pictures. `cutout`:
    probability that a rectangle of 10 to 45 % of each side is painted over: masks, glasses, hands. The same
    seed, epoch and sample give the same picture, with any number of processes.

    `hold_out`: the share of the classes that is left out, chosen by their names, in a .rec by their numbers;
    ImagePairs with the same `hold_out` verify on them.
    """

    def __init__(
        self,
        flip: bool = False,
        crop: Below1 = 0.0,
        colour: UpTo1 = 0.0,
        low_resolution: UpTo1 = 0.0,
        cutout: UpTo1 = 0.0,
        hold_out: Below1 = 0.0,
        seed: int = 0,
        **options,
    ):
        super().__init__(**options)
        self.hold_out = hold_out
        augment = Augment(flip, crop, colour, low_resolution, cutout)
        self.augment = augment if augment != Augment() else None
        self.seed = seed

    def _set_labels(self, labels: np.ndarray, where: str) -> np.ndarray:
        """Set int64 labels [N] but for those of classes that are held out; return which images stay, bool
        [N]. Raises what count_classes and choose_held_out raise."""
        self.labels, self.num_classes = labels, count_classes(labels, where)
        if not self.hold_out:
            return np.ones(len(labels), bool)
        kept = ~choose_held_out(self, self.hold_out, where)
        if self.identities is not None:
            self.identities = self.identities[kept]
        self.num_classes = int(kept.sum())
        stays = kept[labels]
        self.labels = (np.cumsum(kept) - 1)[labels[stays]]
        return stays

    def sample(self, index: int, epoch: int) -> np.ndarray:
        augment = None
        if self.augment:
            augment = partial(self.augment, rng=generator(self.seed, epoch, index))
        return read_sample(self.encoded(index), self.preprocessing, lambda: self.name(index), augment)


class EncodedPairs(Encoded, PairSet):
    """Verification pairs of images that are decoded when they are needed; the base of all formats.

    `size`, `channels`, `mean`, `scale` as in EncodedImages; they must be those of training.
    """

    def pairs_by_content(self) -> np.ndarray:
        numbers: dict[object, int] = {}
        every = range(self.num_images)
        return np.array([numbers.setdefault(self._digest(index), index) for index in every])[self.pairs]

    def _digest(self, index: int) -> object:
        """Return the same for images with the same bytes; one that cannot be read is like no other."""
        try:
            return sha256(self.encoded(index)).digest()
        except UserError:
            return index

    def image(self, index: int) -> np.ndarray:
        return read_sample(self.encoded(index), self.preprocessing, lambda: self.image_name(index))
