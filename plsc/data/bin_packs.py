"""Read InsightFace's verification packs (lfw.bin, cfp_fp.bin, agedb_30.bin, ...).

A pack is a pickle of ([encoded image, ...], [whether the pair shows one person, ...]). Images 2 i and 2 i + 1
are pair i. An image is bytes, or a uint8 array [n] or [n, 1]. plsc.utils.safe_pickle reads the pickle and
runs no code from it. Try it:

    BinPairs("lfw.bin").pairs.shape
"""

import os
import pickle  # noqa: TID251 (to write)
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from plsc.data.images import EncodedPairs
from plsc.errors import UserError
from plsc.utils.atomic_write import atomic_write
from plsc.utils.safe_pickle import load_pickle


class BinPairs(EncodedPairs):
    """The pairs in a .bin pack.

    - `path`: the pack.
    - further keys: those of EncodedPairs (plsc.data.images).
    """

    files = ("path",)

    def __init__(self, path: str, **options):
        super().__init__(**options)
        self._images, self.same = read_pack(path)
        self.num_images = len(self._images)
        self.pairs = np.arange(self.num_images, dtype=np.int64).reshape(-1, 2)
        self.path = path
        self.title = Path(path).stem

    def pairs_by_content(self) -> np.ndarray:
        numbers: dict[bytes, int] = {}
        content = np.array([numbers.setdefault(image, len(numbers)) for image in self._images])
        return content[self.pairs]

    def encoded(self, index: int) -> np.ndarray:
        return np.frombuffer(self._images[index], np.uint8)

    def image_name(self, index: int) -> str:
        return f"{os.path.basename(self.path)}: image {index} (pair {index // 2})"


def read_pack(path: str) -> tuple[list[bytes], np.ndarray]:
    """Read a pack's 2 P encoded images and its flags, bool [P].

    Raises what load_pickle raises, and UserError if the pickle is not a pack.
    """
    pack = load_pickle(path, "verification pack")
    if not (
        isinstance(pack, (tuple, list)) and len(pack) == 2 and all(isinstance(part, list) for part in pack)
    ):
        raise UserError(
            f"{path}: is not a verification pack, which holds a list of images and a list of flags"
        )
    images, flags = pack
    if not flags or len(images) != 2 * len(flags):
        raise UserError(
            f"{path}: has {len(images):,} images and {len(flags):,} flags; a pack has two images for each "
            "flag, and at least one flag"
        )
    kinds = bool, int, float, np.bool_, np.number
    wrong = next(
        (n for n, flag in enumerate(flags) if not isinstance(flag, kinds) or flag not in (0, 1)), None
    )
    if wrong is not None:
        raise UserError(
            f"{path}: flag {wrong} is a {type(flags[wrong]).__name__}, must be true or false, 1 or 0"
        )
    return [_as_bytes(path, number, image) for number, image in enumerate(images)], np.array(flags, bool)


def _as_bytes(path: str, number: int, image: object) -> bytes:
    if isinstance(image, str):  # Python 2 wrote the pack
        return image.encode("latin-1")
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return image.tobytes()
    if isinstance(image, bytes):
        return image
    kind = f"an array of {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
    raise UserError(f"{path}: image {number} is {kind}, must be the bytes of an encoded image")


def write_pack(path: str, images: Iterable[bytes], same: Iterable[bool]) -> None:
    """Write a pack that InsightFace can also read.

    Args:
        path: the file to write.
        images: the encoded images. Images 2 i and 2 i + 1 are pair i.
        same: whether each pair shows one person.
    """
    images, flags = [bytes(image) for image in images], [bool(flag) for flag in same]
    with atomic_write(path, new=True) as beside, open(beside, "xb") as file:
        pickle.dump((images, flags), file, protocol=4)
