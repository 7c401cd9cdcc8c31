"""Read pairs for verification from a file, or draw them from labelled images.

`PairList` reads lines `path_a<TAB>path_b<TAB>0 or 1`, lines with commas instead of tabs, and LFW's pairs.txt.
`ImagePairs` draws its pairs from any format that plsc.data.autodetect recognises. Each image is stored and
embedded once. Try it:

    ImagePairs("label.txt", num_pairs=1000).pairs
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from plsc.data.autodetect import open_images
from plsc.data.folder import EXTENSIONS
from plsc.data.hold_out import choose_held_out
from plsc.data.image_list import LABEL_DIGITS, SHOWN, Paths, check_list, identity_names, refuse_missing
from plsc.data.images import Below1, EncodedPairs, read_file
from plsc.data.pair_sampling import draw_pairs
from plsc.errors import UserError, escape, reading
from plsc.utils.files import read_regular
from plsc.utils.logging import get_logger


class _Pair(NamedTuple):
    line: int
    images: tuple[str, str]  # paths
    same: bool
    people: tuple[str, ...] = ()  # names of the people, in LFW's pairs.txt only


class PairList(EncodedPairs):
    """The pairs in a text file.

    - `list`: the file, with one pair per line: `path_a<TAB>path_b<TAB>1` for two images with one identity,
      and 0 for two identities. Commas may replace the tabs, and the first line may contain headings. LFW's
      pairs.txt is also accepted. Its first line has the pair count per kind, or the fold count and that
      number. Each further line is `name n1 n2` or `name1 n1 name2 n2`, for the images name/name_0001.jpg (or
      another extension).
    - `root`: folder in which relative paths start. If it is empty, they start in the list's own folder.
    - further keys: those of EncodedPairs (plsc.data.images).
    """

    def __init__(self, list: str, root: str = "", **options):
        super().__init__(**options)
        root = root or os.path.dirname(list)
        pairs = read_pairs(list, root)
        index: dict[str, int] = {}
        for pair in pairs:
            for path in pair.images:
                index.setdefault(path, len(index))
        self.paths = Paths.of(root, index)
        refuse_missing(self.paths, list)
        self.num_images = len(index)
        self.title = Path(list).stem
        self.pairs = np.array([[index[path] for path in pair.images] for pair in pairs], np.int64)
        self.same = np.array([pair.same for pair in pairs], bool)
        self._lines = [pair.line for pair in pairs]
        people = _people(pairs, index, root)
        if np.array_equal(people[self.pairs[:, 0]] == people[self.pairs[:, 1]], self.same):
            self.identity_of = people
            self.identities = np.unique(people)

    @classmethod
    def check(cls, list: str, root: str = "", **options) -> None:
        check_list(list, root)

    def encoded(self, index: int) -> np.ndarray:
        return read_file(self.paths[index])

    def image_name(self, index: int) -> str:
        return self.paths[index]

    def pair_name(self, number: int) -> str:
        return f"line {self._lines[number]}"


def _people(pairs: Sequence[_Pair], images: Iterable[str], root: str) -> np.ndarray:
    """Return the person that each image probably shows, text [num_images].

    It is the name in LFW's pairs.txt, or the image's folder.
    """
    if pairs[0].people:
        named = {image: person for pair in pairs for image, person in zip(pair.images, pair.people)}
        return np.array([named[image] for image in images])
    return identity_names([os.path.dirname(os.path.join(root, image)) for image in images])


def read_pairs(path: str, root: str) -> list[_Pair]:
    """Read a file's pairs (see PairList). Raises UserError, which names the bad lines."""
    lines = open_text(path)
    head = lines[0].split() if lines else []
    pairs, bad = (_lfw_pairs if is_lfw(head) else _listed_pairs)(path, lines, root)
    if bad:
        more = f"; {len(bad)} bad lines in all" if len(bad) > SHOWN else ""
        raise UserError(f"{path}: {'; '.join(bad[:SHOWN])}{more}")
    if not pairs:
        raise UserError(f"{path}: has no pairs; it needs lines of 'path_a<TAB>path_b<TAB>1', or LFW's")
    return pairs


def open_text(path: str) -> list[str]:
    """Read a text file's lines without their line ends and without a byte order mark.

    Raises UserError if the file is not text.
    """
    with reading(path):
        text = read_regular(path).decode("utf-8-sig")
    # Split at line breaks only. str.splitlines() would also split names that contain rarer separators.
    lines = re.split(r"\r\n|\r|\n", text)
    return lines[:-1] if not lines[-1] else lines


def _listed_pairs(path: str, lines: list[str], root: str) -> tuple[list[_Pair], list[str]]:
    pairs, bad = [], []
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split("\t" if "\t" in line else ",")]
        if len(fields) == 3 and all(fields) and fields[2] in ("0", "1"):
            pairs.append(_Pair(number, (fields[0], fields[1]), fields[2] == "1"))
        elif number > 1 or len(fields) != 3 or os.path.exists(os.path.join(root, fields[0])):
            bad.append(
                f"line {number}: must be 'path_a<TAB>path_b<TAB>1' or 0, or with commas (got "
                f"'{escape(line[:60])}')"
            )
    return pairs, bad


def is_number(text: str) -> bool:
    """Return whether a text is a whole number of ASCII digits.

    str.isdigit() also accepts superscripts, which int() does not accept.
    """
    return text.isascii() and text.isdigit() and len(text) <= LABEL_DIGITS


def is_lfw(head: list[str]) -> bool:
    """Return whether a file's first line, split into words, is the first line of LFW's pairs.txt."""
    return 1 <= len(head) <= 2 and all(map(is_number, head))


def _lfw_pairs(path: str, lines: list[str], root: str) -> tuple[list[_Pair], list[str]]:
    head = [int(number) for number in lines[0].split()]
    folds, each = head if len(head) == 2 else (1, head[0])
    pairs, bad = [], []
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) == 3:
            fields = [*fields[:2], fields[0], fields[2]]
        if len(fields) != 4 or not (is_number(fields[1]) and is_number(fields[3])):
            bad.append(
                f"line {number}: must be 'name n1 n2' or 'name1 n1 name2 n2' (got '{escape(line[:60])}')"
            )
            continue
        people, numbers = fields[0::2], fields[1::2]
        images = tuple(_lfw_image(root, *one) for one in zip(people, numbers))
        pairs.append(_Pair(number, images, people[0] == people[1], tuple(people)))
    if not bad and len(pairs) != 2 * folds * each:
        raise UserError(
            f"{path}: line 1 promises {folds} x 2 x {each} = {2 * folds * each:,} pairs, the file has "
            f"{len(pairs):,}"
        )
    return pairs, bad


def _lfw_image(root: str, person: str, number: str) -> str:
    stem = f"{person}/{person}_{int(number):04}"
    there = (extension for extension in EXTENSIONS if os.path.exists(os.path.join(root, stem + extension)))
    return stem + next(there, EXTENSIONS[0])  # if none exists, it is reported with the other missing images


class ImagePairs(EncodedPairs):
    """Pairs drawn from labelled images. Positive and negative pairs alternate, and half are
    positive. No pair occurs twice. The pairs are the same in every run.

    - `images`: an image folder, a list file or a .rec file.
    - `root`: where a list's relative paths start, see ImageList.
    - `hold_out`: the share of classes to draw from. Training on the same images with the same `hold_out`
      excludes exactly these classes.
    - `num_pairs`: how many pairs. null means 6,000, or all possible pairs if they are fewer.
    - further keys: those of EncodedPairs (plsc.data.images).
    """

    files = ("images",)

    def __init__(
        self,
        images: str,
        root: str = "",
        num_pairs: Annotated[int, Field(ge=1)] | None = None,
        hold_out: Below1 = 0.0,
        **options,
    ):
        super().__init__(**options)
        self.hold_out = hold_out
        self.source = open_images(images, root=root)
        chosen = np.arange(len(self.source))
        where = images
        if hold_out:
            held = choose_held_out(self.source, hold_out, images)
            counts = f"{held.sum():,} of {len(held):,} classes are held out (hold_out: {hold_out:g})"
            get_logger().info(f"{escape(images)}: {counts}")
            chosen = np.flatnonzero(held[self.source.labels])
            where = f"{images} (held out)"
        pairs, self.same = draw_pairs(self.source.labels[chosen], num_pairs, where)
        self._used, places = np.unique(chosen[pairs], return_inverse=True)
        self.pairs = places.reshape(-1, 2).astype(np.int64)
        self.num_images = len(self._used)
        self.title = f"{'held-out ' if hold_out else ''}pairs of {self.source.title}"
        self.identity_of = self.source.labels[self._used]
        if self.source.identities is not None:
            self.identities = self.source.identities[np.unique(self.identity_of)]
            self.identity_of = self.source.identities[self.identity_of]

    def encoded(self, index: int) -> np.ndarray:
        return self.source.encoded(int(self._used[index]))

    def image_name(self, index: int) -> str:
        return self.source.name(int(self._used[index]))

    def pair_name(self, number: int) -> str:
        """Name both pictures, because users do not know the number of a drawn pair."""
        return f"({', '.join(escape(self.image_name(image)) for image in self.pairs[number].tolist())})"
