"""Define the base classes of data sets, all that the trainer and the loader use of them. No ranks, no Paddle.

Your own: derive from Dataset (training, classification), PairSet (verification), TemplatePairs (verification
of sets of images), IdentificationSet (search in a gallery), set the attributes in __init__, write the
abstract methods, and name the class in the config as `name: "my_module:MyClass"`. The arguments of __init__,
with their annotations and defaults, are what the config accepts; one that takes `seed` is given the run's.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import ValidationError

from plsc.errors import MissingFileError, UserError
from plsc.utils.preprocessing import MEAN, SCALE, Preprocessing
from plsc.utils.section import first_problem

EVALUATION = 2**32  # the epoch of the images that are evaluated


class ImageSet:
    """Declares shape and preprocessing of a set's images, uint8 [C, H, W], which all have the same.

    The network's input is float32, (pixel - mean) * scale.
    """

    image_shape: tuple[int, int, int]  # C, H, W
    mean: float = MEAN
    scale: float = SCALE
    channels: str = ""  # "grey", "RGB" or "BGR"; "": grey for one, RGB for three
    aligned: bool | None = None  # whether they are aligned faces; None: not known
    files: tuple[str, ...] = ()  # arguments of __init__ that name a file, or a folder

    @classmethod
    def check(cls, **arguments: Any) -> None:
        """Raise UserError about the arguments that a config has, MissingFileError if one of the `files` is
        missing.

        It is called before any process starts, so it looks at values and whether paths exist, and reads
        nothing large.
        """
        for key in cls.files:
            if not os.path.exists(path := arguments[key]):
                raise MissingFileError(f"file '{path}' does not exist (looked in {os.getcwd()})", key=key)

    @property
    def preprocessing(self) -> Preprocessing:
        """Describe the images, and how they become the network's input."""
        where = type(self).__name__
        if getattr(self, "image_shape", None) is None:
            raise UserError(f"{where}.image_shape: is not set; it is the shape of an image, [C, H, W]")
        names = "image_shape", "mean", "scale", "channels", "aligned"
        try:
            return Preprocessing(*(getattr(self, name) for name in names))
        except ValidationError as error:
            number, message = first_problem(error)
            raise UserError(f"{where}.{names[int(number[:1])]}: {message}") from error

    def _checked(self, made: object, call: str) -> np.ndarray:
        return check_image(made, self.preprocessing.shape, lambda: f"{type(self).__name__}.{call}")


def check_image(made: object, shape: tuple[int, ...], what: Callable[[], str]) -> np.ndarray:
    """Refuse an image without the shape that its set declares; UserError calls it `what()`."""
    if isinstance(made, np.ndarray) and made.dtype == np.uint8 and made.shape == tuple(shape):
        return made
    got = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
    remedy = "; mean and scale of the set normalise the pixels later" if "float" in got else ""
    raise UserError(
        f"{what()}: must be an array uint8 {list(shape)} like every image of its set, got {got}{remedy}"
    )


class Dataset(ImageSet, ABC):
    """Labelled samples, to train on or to classify. The labels run from 0 to num_classes - 1."""

    num_classes: int
    labels: np.ndarray  # int64 [len(self)]
    # What the classes are, in the order of the labels, where that is known: text or whole numbers, see
    # shared_identities().
    identities: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> list[str] | None:
        """Name the classes, in the order of the labels; None: not known, or only numbers. They differ where
        `identities` of joined sets repeat one."""
        names = self.identities
        is_text = names is not None and names.dtype.kind == "U" and len(names) == self.num_classes
        return names.tolist() if is_text else None

    @abstractmethod
    def sample(self, index: int, epoch: int) -> np.ndarray:
        """Make sample `index` as augmented in `epoch`, an array of the declared shape and dtype.

        The same arguments give the same bytes.
        Raises CorruptImageError for one that cannot be decoded: training takes another sample instead.
        """

    def name(self, index: int) -> str:
        """Return the sample's name for messages and reports: a path, a glyph's name."""
        return f"sample {index}"

    @functools.cached_property
    def title(self) -> str:
        """Return the set's name for logs and reports."""
        return type(self).__name__

    def images(self, start: int, stop: int) -> np.ndarray:
        """Make samples [start, stop) to evaluate on, [n, *shape], as augmented in an epoch that training
        never has."""
        return np.stack(
            [
                self._checked(self.sample(index, EVALUATION), f"sample({index}) ({self.name(index)})")
                for index in range(start, stop)
            ]
        )


class _Images(ImageSet, ABC):
    """Images without labels, each embedded once: the base class of sets for verification and search."""

    title: str  # for logs and reports
    num_images: int

    @abstractmethod
    def image(self, index: int) -> np.ndarray:
        """Make an image, uint8 of the declared shape; the same bytes each time."""

    def image_name(self, index: int) -> str:
        """Return the image's name, for the worst pairs of the report."""
        return f"image {index}"

    def images(self, start: int, stop: int) -> np.ndarray:
        """Make images [start, stop) as one array [n, *shape]."""
        return np.stack(
            [
                self._checked(self.image(index), f"image({index}) ({self.image_name(index)})")
                for index in range(start, stop)
            ]
        )


class PairSet(_Images):
    """Pairs of images for verification: each image is embedded once, and the pairs index the embeddings."""

    pairs: np.ndarray  # int64 [P, 2], indices of images
    same: np.ndarray  # bool [P], True where both images are of one class
    identities: np.ndarray | None = None  # of all classes in the pairs, as in a Dataset, in any order
    # [num_images] (of templates: one of each), the identity of each image, text or whole numbers; None: not
    # known. With it the confidence intervals are over people, and the report names the hardest ones.
    identity_of: np.ndarray | None = None

    def pair_name(self, number: int) -> str:
        """Return a pair's name for messages."""
        return f"pair {number}"

    def pairs_by_content(self) -> np.ndarray:
        """Return the pairs as numbers that are the same for the same image, int64 [P, 2]."""
        return self.pairs


class TemplatePairs(PairSet):
    """Pairs of templates, as IJB's 1:1 protocol compares them: a template is a set of images of one identity.

    `pairs` index templates here, 0 to max(template). Images of one medium (the frames of one video) count as
    one when a template's embedding is made.
    """

    template: np.ndarray  # int64 [num_images], the template that an image belongs to
    media: np.ndarray  # int64 [num_images], the medium that it comes from


class IdentificationSet(_Images):
    """Search, 1:N: the probes are looked for in the gallery.

    A probe whose identity is not in the gallery belongs to open-set search: it should not be found.
    """

    gallery: np.ndarray  # int64 [G], indices of images
    probe: np.ndarray  # int64 [Q], indices of images
    identities: np.ndarray  # int64 [num_images], the number of each image's identity
    names: np.ndarray | None = None  # what the numbers stand for, comparable with a Dataset's identities

    def probes_in_gallery(self) -> list[tuple[int, int]]:
        """Find the probes that are pictures of the gallery, byte for byte: (probe, gallery image) each."""
        return []


def count_classes(labels: np.ndarray, where: str) -> int:
    """Count the classes of int64 labels [N]; UserError, which begins with `where`, unless they are 0, 1, ...
    without gaps."""
    present = np.unique(labels)
    count = int(present[-1]) + 1
    if len(present) < count:
        gap = int(np.argmax(present != np.arange(len(present))))
        raise UserError(
            f"{where}: no image has label {gap} ({count - len(present)} of the labels 0 to {count - 1} are "
            "missing); number the classes 0, 1, 2, ... without gaps"
        )
    return count


def check_preprocessing(theirs: Preprocessing, first: Preprocessing, key: str, words: str) -> None:
    """Refuse a set, which `key` names, whose images are unlike those of the first; UserError, with `words` in
    front of what the first has."""
    if differences := [
        f"{what} {value} ({words} {other})" for what, value, other in theirs.differences(first)
    ]:
        text = f"its samples have {', '.join(differences)}; the network needs the same of all sets"
        raise UserError(text, key=key)


def check_array(data: object, name: str, wanted: str, below: int | None, length: int | None = None) -> None:
    """Refuse an array without the dtype and shape `wanted`, with indices not below `below`, or without
    `length` rows."""
    array, what = getattr(data, name, None), f"{type(data).__name__}.{name}"
    if not isinstance(array, np.ndarray):
        raise UserError(f"{what}: must be an array {wanted}, got {type(array).__name__}")
    axes = wanted.count(",") + 1
    fits = array.dtype == wanted.split()[0] and array.ndim == axes and (axes == 1 or array.shape[1] == 2)
    if not fits or length not in (None, len(array)):
        long = "" if length is None else f" of {length:,} rows"
        raise UserError(f"{what}: must be {wanted}{long}, got {array.dtype} {list(array.shape)}")
    if below is not None and array.size and not 0 <= array.min() <= array.max() < below:
        raise UserError(f"{what}: must be in [0, {below:,}), has {array.min()} to {array.max()}")


def shared_identities(trained: np.ndarray | None, others: np.ndarray | None) -> np.ndarray | None:
    """Return the identities in `trained` that another set has too, which verification must not share.

    None if that is not known: numbers and names are not comparable.
    """
    if trained is None or others is None or trained.dtype.kind != others.dtype.kind:
        return None
    return np.intersect1d(trained, others)


def misnumbered_class(trained: list[str] | None, data: Dataset, strangers: bool = False) -> str | None:
    """Describe the first class of labelled images whose number differs from that in the classes `trained`.

    So it is where one of the folders, one for each person, is missing. None: there is none, or names are not
    known.

    strangers: whether two sets without a name in common are of different people; else their folders may just
    be called otherwise.
    """
    names, known = data.class_names or [], trained or []
    # Numbered folders are known by their whole path, which two sets of the same people do not share.
    here, there = ([os.path.basename(name) for name in names] for names in (names, known))
    if not strangers and not set(here) & set(there):
        return None
    for number, (theirs, ours) in enumerate(zip(names, known)):
        if here[number] != there[number]:
            return f"its class {number} is '{theirs}', the one trained on is '{ours}'"
    return None


def check_against_training(
    data: Dataset | PairSet | IdentificationSet,
    key: str,
    preprocessing: Preprocessing,
    num_classes: int,
    names: list[str] | None,
    seen: np.ndarray | None,
) -> None:
    """Refuse a set to evaluate on, which `key` names, that does not fit the set trained on; UserError.

    Args:
        preprocessing, num_classes: of the set trained on.
        names: of its classes, in the order of their numbers, which labelled images must share; None: not
            known.
        seen: its `identities`, which no pair and no search may have; None: not known.
    """
    if isinstance(data, Dataset):
        if data.num_classes > num_classes:
            raise UserError(
                f"its images are of {data.num_classes} classes, but the head has learned {num_classes}; give "
                "images of the classes that are trained on, or pairs to verify",
                key=key,
            )
        if wrong := misnumbered_class(names, data):
            raise UserError(
                f"{wrong}, so right predictions would count as wrong; give it the classes that are trained "
                "on, all of them, in the same order",
                key=key,
            )
    else:
        own = data.names if isinstance(data, IdentificationSet) else data.identities
        shared = shared_identities(seen, own)
        if shared is not None and len(shared):
            raise UserError(
                f"{len(shared)} of its classes are trained on (the first is {shared[0]}), so the accuracy "
                "would be of classes seen before; leave them out of one of the two: give both the same "
                "hold_out (Glyphs: held_out)",
                key=key,
            )
    check_preprocessing(data.preprocessing, preprocessing, key, "trained on")
