"""Decode pictures with OpenCV, resize them for the network, and augment them in training.

All formats of labelled image files derive from `EncodedImages`. `EncodedPairs` is the base class for
verification. A format only returns an image's bytes. Prediction, galleries and the service also make
their samples with `read_sample` or `to_sample`, so that they prepare a picture exactly as training did. Try
it:

    read_sample("face.jpg", Preprocessing((3, 112, 112))).shape
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
from plsc.data.dataset import Dataset, PairSet, count_classes, make_image, name_of
from plsc.data.hold_out import choose_held_out
from plsc.data.transforms import generator, resize
from plsc.errors import CorruptImageError, UserError, escape, reading
from plsc.utils.files import read_regular
from plsc.utils.preprocessing import MEAN, SCALE, Preprocessing

DARK = 10  # mean value, out of 255, below which a picture is almost empty
DIM = 64  # a picture whose largest value is at most this is almost empty: 14 bits of 16 reach 64
CHANNELS = {"RGB": 3, "BGR": 3, "grey": 1}

# A file's first bytes -> the format.
_KINDS = {
    b"\xff\xd8": "JPEG",
    b"\x89PNG": "PNG",
    b"RIFF": "WebP",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"GIF8": "GIF",
}

Side = Annotated[int, Field(ge=1, le=math.isqrt(MOST_PIXELS))]
UpTo1 = Annotated[float, Field(ge=0, le=1)]
Below1 = Annotated[float, Field(ge=0, lt=1)]


def read_file(path: str) -> np.ndarray:
    """Read a file's bytes: uint8 [n].

    Raises MissingFileError if the file does not exist, and UserError if it cannot be read.
    """
    with reading(path, missing="no such image"):
        try:
            return np.frombuffer(read_regular(path), np.uint8)
        except IsADirectoryError:
            raise UserError(f"{escape(path)}: is a folder; name the pictures in it") from None


def _is_cut_off_png(data: np.ndarray) -> bool:
    """Return whether a chunk of a PNG extends beyond the file's end.

    OpenCV 5 allocates the length that a chunk declares: 4 GB for a file of 61 bytes.
    """
    at, kind = 8 if data[:8].tobytes() == b"\x89PNG\r\n\x1a\n" else len(data), b""
    while at < len(data) and kind != b"IEND":
        length, kind = data[at : at + 4].tobytes(), data[at + 4 : at + 8].tobytes()
        at += 12 + int.from_bytes(length, "big")  # length, kind, content and checksum
    return at > len(data)


def decode_pixels(data: np.ndarray, grey: bool, name: Callable[[], str]) -> np.ndarray:
    """Decode an image without resizing it.

    Args:
        data: the image file's bytes, uint8 [n].
        grey: whether to decode to grey.
        name: returns the image's name for messages.

    Returns the picture, uint8 [H, W, 3] in OpenCV's order BGR, or grey [H, W].

    Raises CorruptImageError if the image cannot be decoded or has more than MOST_PIXELS pixels.
    """
    try:
        flags = cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR
        picture = cv2.imdecode(data, flags) if data.size and not _is_cut_off_png(data) else None
    except cv2.error:  # an impossible header, or one with too large a size. Other faults return None
        picture = None
    if picture is None:
        raise CorruptImageError(
            f"{escape(name())}: not an image that OpenCV can decode ({data.size} bytes); "
            f"{_why_not_decoded(data.tobytes())}"
        )
    return picture


def _why_not_decoded(data: bytes) -> str:
    """Explain why a file's bytes are not an image, and give the remedy."""
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), "")
    width, height = _size_in_header(data)
    if not data:
        return "the file is empty"
    if width * height > MOST_PIXELS:
        return f"it has {width:,} x {height:,} pixels, at most {MOST_PIXELS:,} are read; make it smaller"
    if kind == "GIF":
        return f"this GIF is truncated or damaged, or OpenCV {cv2.__version__} does not read GIF"
    if kind:
        return f"this {kind} is truncated or damaged"
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"msf1", b"avif"):
        return f"it is HEIC or AVIF, and OpenCV {cv2.__version__} cannot read it; convert it to JPEG or PNG"
    return f"it does not begin as {', '.join(dict.fromkeys(_KINDS.values()))} do"


def _size_in_header(data: bytes) -> tuple[int, int]:
    """Return width and height in a PNG's or a JPEG's header. (0, 0): not found."""
    if data.startswith(b"\x89PNG"):
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    at = 2 if data.startswith(b"\xff\xd8") else len(data)
    while at + 9 < len(data) and data[at] == 0xFF:
        if data[at + 1] in range(0xC0, 0xD0) and data[at + 1] not in (0xC4, 0xC8, 0xCC):  # start of frame
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return 0, 0


def read_sample(
    picture: str | np.ndarray,
    preprocessing: Preprocessing,
    name: Callable[[], str] | None = None,
    augment: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Read a picture for the network: uint8 [C, H, W] with the preprocessing's size and channels.

    Args:
        picture: a file's path, or its bytes, uint8 [n].
        preprocessing: the sample's size and channels.
        name: returns the picture's name for messages. If it is None, the name is the path.
        augment: see `to_sample`.

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
    """Turn pixels into a sample: uint8 [C, H, W]. The aspect ratio is not preserved.

    Args:
        pixels: a picture as decode_pixels returns it.
        preprocessing: the sample's size and channels.
        augment: function that changes the pixels after they are resized, or None. It must return uint8 of the
            same shape.
    """
    if preprocessing.channels == "grey" and pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    pixels = resize(pixels, *preprocessing.shape[1:])
    if augment:
        pixels = augment(pixels)
    if pixels.ndim == 2:
        return pixels[np.newaxis]
    sample = np.empty((3, *pixels.shape[:2]), np.uint8)
    # OpenCV splits the channels in one pass. NumPy takes several times as long to copy a transposed view.
    cv2.split(pixels, list(sample[::-1] if preprocessing.channels == "RGB" else sample))
    return sample


def is_dark(pixels: np.ndarray) -> bool:
    """Return whether a picture is almost empty: nearly black, or with one value only."""
    return bool(pixels.mean() < DARK or pixels.max() <= DIM or pixels.min() == pixels.max())


def why_dark(data: np.ndarray | None, pixels: np.ndarray) -> str:
    """Explain why a picture is almost empty.

    A picture of 10 to 14 bits in a 16-bit file becomes nearly black, because 16-bit values are divided by
    256.

    Args:
        data: the image file's bytes, uint8 [n], or None if they are unknown.
        pixels: the picture as the network sees it.
    """
    whole = None if data is None else cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if whole is not None and whole.dtype == np.uint16 and whole.max() < 2**15:
        return f"16-bit, largest value {whole.max():,}: read as nearly black; scale to 65,535 or to 8 bits"
    if pixels.min() == pixels.max():
        return f"all pixels are {pixels.max()}"
    return f"its mean is {pixels.mean():.1f} of 255, its largest value {pixels.max()}"


def is_transparent(data: np.ndarray) -> bool:
    """Return whether an image has transparent pixels. Only PNG, WebP, GIF and AVIF are examined.

    An image is decoded only if its header has an alpha channel, or does not tell.

    Args:
        data: the bytes of an image file that can be decoded, uint8 [n].
    """
    begin = data[:26].tobytes()
    if begin.startswith(b"\x89PNG"):
        has_alpha = begin[25] & 4 or b"tRNS" in data.tobytes().partition(b"IDAT")[0]
    else:
        has_alpha = begin.startswith(b"RIFF") and begin[12:16] != b"VP8 "
        has_alpha = has_alpha or begin.startswith(b"GIF8") or begin[4:12] == b"ftypavif"
    whole = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if has_alpha else None
    if whole is None or whole.ndim != 3 or whole.shape[2] != 4:
        return False
    return bool(whole[..., 3].min() < np.iinfo(whole.dtype).max)


class Encoded:
    """Holds an encoded image set's preprocessing."""

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
        """Return image `index` as it is stored, uint8 [n]."""


class EncodedImages(Encoded, Dataset):
    """Labelled images that are decoded when they are needed. All formats derive from it.

    - `size`: [height, width] to which images are resized, or one integer for both.
    - `channels`: "RGB", "BGR" or "grey". The network's input is (pixel - `mean`) * `scale`.
    - `aligned`: whether the images are faces that `plsc align`, or another program, has aligned to ArcFace's
      landmarks. If true, the run's gallery also detects and aligns faces. null means true for a folder that
      `plsc align` wrote, and unknown otherwise.
    - `hold_out`: the share of classes that is excluded from training. The classes' names decide which, or
      their numbers in a .rec file. ImagePairs with the same `hold_out` verifies on these classes.

    The following keys change a picture in training. The changes are random in each epoch, and all are off by
    default. The same seed, epoch and sample give the same picture for any number of processes.

    - `flip`: mirror half the images. Use it for faces and most products, never for text.
    - `crop`: the largest share that is cut off the sides. The rest is resized to the original size. Use 0.15
      for a detector's boxes and 0.1 for aligned faces.
    - `colour`: brightness, contrast and saturation are each multiplied by a factor from 1 - colour to 1 +
      colour. Use 0.3 for many camera types, and less if colour distinguishes products.
    - `low_resolution`: probability that a picture is shrunk, to at least a quarter in height and width, and
      enlarged again. Use 0.2 for small faces in large pictures.
    - `cutout`: probability that a rectangle of 10 to 45 % of each side is painted over. It simulates masks,
      glasses and hands.
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
        """Set the labels of all images except those in held-out classes.

        Args:
            labels: int64 [N], one per image.
            where: the set's name for messages.

        Returns bool [N], which is True for the images that stay.

        Raises what count_classes and choose_held_out raise.
        """
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
        augment = partial(self._augmented, index, epoch) if self.augment else None
        return read_sample(self.encoded(index), self.preprocessing, lambda: self.name(index), augment)

    def _augmented(self, index: int, epoch: int, pixels: np.ndarray) -> np.ndarray:
        """Augment the pixels of sample `index`. The function may be a user's, so its result is checked."""
        rng = generator(self.seed, epoch, index)
        what = lambda: f"{type(self).__name__}.augment(...) ({name_of(self.name, index)})"
        return make_image(lambda: self.augment(pixels, rng=rng), pixels.shape, what)


class EncodedPairs(Encoded, PairSet):
    """Verification pairs of images that are decoded when they are needed.

    This is the base class of all formats.

    - `size`, `channels`, `mean`, `scale`: as in EncodedImages. They must equal the training set's.
    """

    def pairs_by_content(self) -> np.ndarray:
        numbers: dict[object, int] = {}
        every = range(self.num_images)
        return np.array([numbers.setdefault(self._digest(index), index) for index in every])[self.pairs]

    def _digest(self, index: int) -> object:
        """Return a key that is equal for images with equal bytes.

        An unreadable image has a key of its own.
        """
        try:
            return sha256(self.encoded(index)).digest()
        except UserError:
            return index

    def image(self, index: int) -> np.ndarray:
        return read_sample(self.encoded(index), self.preprocessing, lambda: self.image_name(index))
