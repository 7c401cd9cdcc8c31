"""Define the data sets' base classes. The trainer and the loader use only this interface.

The module needs neither ranks nor Paddle. To write your own data set:

1. Derive from Dataset (training, classification), PairSet (verification), TemplatePairs (verification of
   image sets) or IdentificationSet (search in a gallery).
2. Set the attributes in __init__ and write the abstract methods.
3. Name the class in the config as `name: "my_module:MyClass"`.

The config accepts the arguments of __init__, with their annotations and defaults. A class whose __init__
takes `seed` receives the run's seed.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
from pydantic import ValidationError

from plsc.errors import MissingFileError, UserError, escape, in_one_line
from plsc.utils.preprocessing import MEAN, SCALE, Preprocessing
from plsc.utils.section import first_problem

_SHOWN = 5  # missing or new classes that a message names
EVALUATION = 2**32  # epoch number that evaluation uses. Training never reaches it


class ImageSet:
    """Declares the shape and the preprocessing that all images in a set share.

    An image is uint8 [C, H, W]. The network's input is float32, (pixel - mean) * scale.
    """

    image_shape: tuple[int, int, int]  # C, H, W
    mean: float = MEAN
    scale: float = SCALE
    channels: str = ""  # "grey", "RGB" or "BGR". "" is grey for one channel, RGB for three
    aligned: bool | None = None  # whether the images are aligned faces. None is unknown
    # Names of __init__'s arguments that name a file or a folder. If none are named, a config's texts for all
    # arguments are looked for among the files beside the config, too.
    files: tuple[str, ...] = ()

    @classmethod
    def check(cls, **arguments: Any) -> None:
        """Check the arguments that a config gives.

        Raises UserError if an argument is invalid, and MissingFileError if one of the `files` does not exist.
        The method is called before any process starts. It only checks values and whether paths exist, and
        reads no large file.
        """
        for key in cls.files:
            if not os.path.exists(path := arguments[key]):
                raise MissingFileError(f"file '{path}' does not exist (looked in {os.getcwd()})", key=key)

    @property
    def preprocessing(self) -> Preprocessing:
        """Describe the images and how they become the network's input."""
        where = type(self).__name__
        shape = getattr(self, "image_shape", None)
        if shape is None:
            raise UserError(f"{where}.image_shape: is not set; set it to the shape of an image, [C, H, W]")
        if not isinstance(shape, (tuple, list)) or len(shape) != 3:
            raise UserError(
                f"{where}.image_shape: must be three numbers (C, H, W), got {escape(repr(shape))}; for data "
                "without channels or a height, set these to 1, as in (1, 1, 128)"
            )
        names = "image_shape", "mean", "scale", "channels", "aligned"
        try:
            return Preprocessing(*(getattr(self, name) for name in names))
        except ValidationError as error:
            number, message = first_problem(error)
            raise UserError(f"{where}.{names[int(number[:1])]}: {message}") from error


def make_image(make: Callable[[], object], shape: tuple[int, ...], what: Callable[[], str]) -> np.ndarray:
    """Return the image that a data set's code makes: uint8 of the declared shape.

    Raises UserError with the name of the image if the code makes anything else, or if it raises an error that
    is neither a UserError nor a lack of memory.

    Args:
        make: calls the data set's code.
        shape: the declared shape.
        what: returns the image's name for the message.
    """
    try:
        made = make()
    except (UserError, MemoryError):
        raise
    except Exception as error:  # any error, since the code may be a user's
        raise UserError(f"{what()}: {in_one_line(error)}") from error
    if isinstance(made, np.ndarray) and made.dtype == np.uint8 and made.shape == tuple(shape):
        return made
    got = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
    remedy = (
        "; mean and scale of the set normalise the pixels later, and docs/data.md shows how to store floats "
        "as bytes"
    )
    raise UserError(
        f"{what()}: must be an array uint8 {list(shape)}, got {got}{remedy if 'float' in got else ''}"
    )


class Dataset(ImageSet, ABC):
    """Labelled samples for training or classification. The labels run from 0 to num_classes - 1."""

    num_classes: int
    labels: np.ndarray  # int64 [len(self)]
    # The classes' identities in label order, text or whole numbers (see shared_identities()).
    # None if they are unknown.
    identities: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> list[str] | None:
        """Return the class names in label order.

        None if they are unknown or only numbers. The names differ from `identities` if joined sets share an
        identity.
        """
        names = self.identities
        is_text = names is not None and names.dtype.kind == "U" and len(names) == self.num_classes
        return names.tolist() if is_text else None

    @abstractmethod
    def sample(self, index: int, epoch: int) -> np.ndarray:
        """Make sample `index` as augmented in `epoch`: uint8 of the declared shape.

        The same arguments give the same bytes. Raises CorruptImageError if the sample cannot be decoded.
        Training then takes another sample instead.
        """

    def name(self, index: int) -> str:
        """Return the sample's name for messages and reports, such as a path or a glyph's name."""
        return f"sample {index}"

    @functools.cached_property
    def title(self) -> str:
        """Return the set's name for logs and reports."""
        return type(self).__name__

    def images(self, start: int, stop: int) -> np.ndarray:
        """Make samples [start, stop) for evaluation: uint8 [n, *shape].

        They are augmented with the epoch number EVALUATION, which training never reaches.
        """
        shape = self.preprocessing.shape
        return np.stack([make_sample(self, index, EVALUATION, shape) for index in range(start, stop)])


def make_sample(data: Dataset, index: int, epoch: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return sample `index` as augmented in `epoch`: uint8 of the declared shape.

    Raises UserError with the class, the index and the name of the sample if it cannot be made.
    """
    what = lambda: f"{type(data).__name__}.sample({index}) ({name_of(data.name, index)})"
    return make_image(lambda: data.sample(index, epoch), shape, what)


def name_of(name: Callable[[int], str], index: int) -> str:
    """Return the name that `name`, a method of a data set, gives, or the index if the method fails.

    The name is for a message, which is more important.
    """
    try:
        return name(index)
    except Exception:  # noqa: BLE001 (any error, since the code may be a user's)
        return f"number {index}"


class _Images(ImageSet, ABC):
    """Images without labels. Each is embedded once.

    Sets for verification and search derive from it.
    """

    title: str  # for logs and reports
    num_images: int

    @abstractmethod
    def image(self, index: int) -> np.ndarray:
        """Make an image, uint8 of the declared shape. The same index gives the same bytes."""

    def image_name(self, index: int) -> str:
        """Return the image's name. The report uses it to list the worst pairs."""
        return f"image {index}"

    def images(self, start: int, stop: int) -> np.ndarray:
        """Make images [start, stop) as one array, uint8 [n, *shape]."""
        shape, kind = self.preprocessing.shape, type(self).__name__

        def make(index: int) -> np.ndarray:
            what = lambda: f"{kind}.image({index}) ({name_of(self.image_name, index)})"
            return make_image(lambda: self.image(index), shape, what)

        return np.stack([make(index) for index in range(start, stop)])


class PairSet(_Images):
    """Image pairs for verification. Each image is embedded once, and the pairs index the embeddings."""

    pairs: np.ndarray  # int64 [P, 2], image indices
    same: np.ndarray  # bool [P], True where both images are of one class
    identities: np.ndarray | None = None  # of all classes in the pairs, in any order, see Dataset.identities
    # [num_images], or [template count]: identity of each image or template, text or whole numbers. None:
    # unknown. If it is known, the confidence intervals are over people.
    identity_of: np.ndarray | None = None

    def pair_name(self, number: int) -> str:
        """Return a pair's name for messages."""
        return f"pair {number}"

    def pairs_by_content(self) -> np.ndarray:
        """Return the pairs as numbers of image contents, int64 [P, 2]. Equal images have equal numbers."""
        return self.pairs


class TemplatePairs(PairSet):
    """Template pairs for IJB's 1:1 protocol. A template is a set with one identity's images.

    `pairs` contains template indices here, 0 to max(template). When a template's embedding is computed,
    all images of one medium (such as the frames of one video) count as one image.
    """

    template: np.ndarray  # int64 [num_images], the template that an image belongs to
    media: np.ndarray  # int64 [num_images], the medium that an image comes from


class IdentificationSet(_Images):
    """A search (1:N) for the probes in a gallery.

    A probe whose identity is not in the gallery belongs to open-set search. The search should not find it.
    """

    gallery: np.ndarray  # int64 [G], image indices
    probe: np.ndarray  # int64 [Q], image indices
    identities: np.ndarray  # int64 [num_images], each image's identity as a number
    names: np.ndarray | None = None  # identity of each number, comparable with a Dataset's identities

    def probes_in_gallery(self) -> list[tuple[int, int]]:
        """Find the probes whose files equal a gallery image byte for byte: a list of (probe, gallery image).

        Both are image indices.
        """
        return []


def count_classes(labels: np.ndarray, where: str) -> int:
    """Count the classes of int64 labels [N].

    Raises UserError if the labels are not 0, 1, ... without gaps. The message begins with `where`.
    """
    ordered = np.sort(labels)  # since NumPy 2.3, np.unique takes 30 times as long for 40 million labels
    present = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    count = int(present[-1]) + 1
    if len(present) < count:
        gap = int(np.argmax(present != np.arange(len(present))))
        raise UserError(
            f"{where}: no image has label {gap} ({count - len(present)} of the labels 0 to {count - 1} are "
            "missing); number the classes 0, 1, 2, ... without gaps"
        )
    return count


def check_preprocessing(theirs: Preprocessing, first: Preprocessing, key: str, words: str) -> None:
    """Raise UserError if two sets need different preprocessing.

    Args:
        theirs: the checked set's preprocessing.
        first: the preprocessing that it must match.
        key: the checked set's key in the config.
        words: words that the message puts before each value of `first`.
    """
    if differences := [
        f"{what} {value} ({words} {other})" for what, value, other in theirs.differences(first)
    ]:
        text = f"its samples have {', '.join(differences)}; all sets must have the same"
        raise UserError(text, key=key)


def check_array(data: object, name: str, wanted: str, below: int | None, length: int | None = None) -> None:
    """Raise UserError if the array `name` of a data set is invalid.

    Args:
        data: the data set that has the array as an attribute.
        name: the attribute's name.
        wanted: dtype and shape that the array must have, such as "int64 [N]".
        below: all values must be in [0, below). None means no limit.
        length: how many rows the array must have. None allows any number.
    """
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


def check_labels(data: Dataset) -> None:
    """Raise UserError if a labelled set's `num_classes` or `labels` are invalid."""
    classes = getattr(data, "num_classes", None)
    if isinstance(classes, bool) or not isinstance(classes, Integral) or classes < 1:
        got = "it is not set" if classes is None else f"got {escape(classes)}"
        raise UserError(
            f"{type(data).__name__}.num_classes: must be the number of classes, 1 or more ({got})"
        )
    check_array(data, "labels", "int64 [N]", int(classes))


def checked_identities(data: ImageSet) -> np.ndarray:
    """Return the `identities` of a set of a user's own, text or int64 [num_classes], as an array.

    A PairSet's identities are not in the classes' order, and may be of any number.

    Raises UserError if they are anything else, or if two classes have the same one.
    """
    what = f"{type(data).__name__}.identities"
    given = np.asarray(data.identities)
    if given.dtype.kind not in "Ui" or given.ndim != 1:
        raise UserError(
            f"{what}: must be a list of names or of whole numbers, got {escape(data.identities)[:80]}"
        )
    if not isinstance(data, Dataset):
        return given
    if len(given) != getattr(data, "num_classes", len(given)):  # check_labels refuses a missing one
        raise UserError(
            f"{what}: must have one name for each class, in the order of the class numbers; got "
            f"{len(given):,} for {data.num_classes:,} classes"
        )
    values, counts = np.unique(given, return_counts=True)
    if len(values) < len(given):
        raise UserError(f"{what}: two classes have the same name, {escape(values[np.argmax(counts > 1)])}")
    return given


def shared_identities(trained: np.ndarray | None, others: np.ndarray | None) -> np.ndarray | None:
    """Return the identities in `trained` that are also in `others`. Verification must not share any.

    Returns None if this is unknown. Numbers and names cannot be compared.
    """
    if trained is None or others is None or trained.dtype.kind != others.dtype.kind:
        return None
    return np.intersect1d(trained, others)


def misnumbered_class(trained: list[str] | None, data: Dataset, strangers: bool = False) -> str | None:
    """Describe how the classes of labelled images differ from the classes `trained`.

    The description names the first classes that are missing or new. If there are none, it names the first
    class that has another number. Returns None if all numbers agree, or if the names are unknown.

    Args:
        trained: names of the trained classes, by number, or None if they are unknown.
        data: the labelled images.
        strangers: whether two sets without a common name are taken to show different people. If False, their
            folders may only be named differently, and the result is None. It is also None if the set has only
            the first trained classes.
    """
    names, known = data.class_names or [], trained or []
    if not names or not known or (not strangers and matched_by_number(trained, data)):
        return None
    # A numbered folder's identity is its whole path. Two sets of the same people have different paths.
    here, there = ([os.path.basename(name) for name in each] for each in (names, known))
    if here == (there if strangers else there[: len(here)]):
        return None
    in_both = set(here) & set(there)
    differences = []
    for what, part in (("missing", there), ("new", here)):
        only = [f"'{escape(name)}'" for name in part if name not in in_both]
        more = f", ... {len(only):,} in all" if len(only) > _SHOWN else ""
        if only:
            differences.append(f"{what}: {', '.join(only[:_SHOWN])}{more}")
    if differences:
        return f"its classes differ from the trained ones ({'; '.join(differences)})"
    for number, (theirs, ours) in enumerate(zip(names, known)):
        if here[number] != there[number]:
            return f"its class {number} is '{escape(theirs)}', the trained one is '{escape(ours)}'"
    return None


def matched_by_number(trained: list[str] | None, data: Dataset) -> str | None:
    """Tell why the classes of labelled images correspond to the classes `trained` by number.

    Returns None if they correspond by name, or if neither have names.
    """
    if not trained and not data.class_names:
        return None
    if not trained or not data.class_names:
        return "only the trained classes have names" if trained else "the trained classes have no names"
    # A numbered folder's identity is its whole path. Two sets of the same people have different paths.
    here, there = ({os.path.basename(name) for name in names} for names in (data.class_names, trained))
    if here & there:
        return None
    return f"none has a trained class's name (the first is '{data.class_names[0]}', and '{trained[0]}')"


def check_against_training(
    data: Dataset | PairSet | IdentificationSet,
    key: str,
    preprocessing: Preprocessing,
    num_classes: int,
    names: list[str] | None,
    seen: np.ndarray | None,
) -> None:
    """Raise UserError if an evaluation set does not fit the training set.

    Args:
        data: the evaluation set.
        key: the evaluation set's key in the config.
        preprocessing: the training set's preprocessing.
        num_classes: the training set's class count.
        names: names of the training classes, by number. Labelled images must have the same
            names. It is None if they are unknown.
        seen: the training set's `identities`. No pair and no search may contain any of them. None if they are
            unknown.
    """
    if isinstance(data, Dataset):
        if wrong := misnumbered_class(names, data):
            raise UserError(
                f"{wrong}, so right predictions would count as wrong; it must have all trained classes in "
                "the same order, also with the same hold_out",
                key=key,
            )
        if data.num_classes > num_classes:
            raise UserError(
                f"its images have {data.num_classes} classes, but the head was trained on "
                f"{num_classes}; give images of the trained classes, or pairs to verify",
                key=key,
            )
    else:
        own = data.names if isinstance(data, IdentificationSet) else data.identities
        shared = shared_identities(seen, own)
        if shared is not None and len(shared):
            raise UserError(
                f"{len(shared)} of its classes are also trained on (the first is {shared[0]}), so the "
                "accuracy would include classes seen in training; remove them from one of the two sets, "
                "for example with the same hold_out in both (Glyphs: held_out)",
                key=key,
            )
    check_preprocessing(data.preprocessing, preprocessing, key, "trained on")
